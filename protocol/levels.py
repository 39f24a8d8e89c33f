"""Rounds at several conformity levels that share one session: one set-up, then level by level.

The framework trains r models at once, one for each conformity level, and people choose among them
afterwards. Levels differ only in θ and in their models; the rest of their rounds is the same, and
so is the cohort. The session has the slots of all levels, one level after another, and its context
covers all of them. Each level is a round of `deltafl.protocol.round` that begins when the previous
one has ended. With a single level, the session is that round, byte for byte.

Source: "Device Heterogeneity in Federated Learning: A Superquantile Approach", section 3.

Spec: §12.11.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from typing import Final

from deltafl.protocol.anonymity import Tail
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.labels import Label
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import LostSearch, Round, RoundOutcome
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ClientId, Drop, SessionAborted, SlotSpec, SlotSum, UsageError
from deltafl.secagg.labels import digest

MAX_LEVELS: Final = 16
"""Most levels of a session."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The rounds of one session, one for each level.

    Spec: §12.11.

    Attributes:
        rounds: One configuration for each level, θ falling; they differ in θ and warm
            start alone.

    Raises:
        ConfigurationError: there are none or too many, they are not in order, or they differ in
            more than θ and warm start.
    """

    rounds: tuple[RoundConfig, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.rounds) <= MAX_LEVELS:
            raise ConfigurationError(
                f"{len(self.rounds)} conformity levels are not from 1 to {MAX_LEVELS}"
            )
        thetas = [config.theta for config in self.rounds]
        if any(after >= before for before, after in pairwise(thetas)):
            raise ConfigurationError(
                f"conformity levels {', '.join(map(str, thetas))} do not fall: name each once, "
                "the largest first"
            )
        first = self.rounds[0]
        for config in self.rounds:
            if replace(config, theta=first.theta, warm_start=first.warm_start) != first:
                raise ConfigurationError(
                    f"the round of θ = {config.theta} differs from that of θ = {first.theta} in "
                    "more than θ and warm start"
                )

    @classmethod
    def at(
        cls,
        config: RoundConfig,
        thetas: Sequence[Fraction],
        warm_starts: Sequence[int | None] | None = None,
    ) -> "Levels":
        """The levels `thetas` of a round that is otherwise configured as `config`.

        Args:
            config: The round.
            thetas: Its levels.
            warm_starts: For each level, the tick near which its η is expected, or None; by default
                that of the round.

        Raises:
            ConfigurationError: `Levels` does not accept these levels.
        """
        starts = [config.warm_start] * len(thetas) if warm_starts is None else warm_starts
        each = zip(thetas, starts, strict=True)
        return cls(tuple(replace(config, theta=theta, warm_start=tick) for theta, tick in each))

    @property
    def common(self) -> RoundConfig:
        """The first level's round, which is the same as all others except for θ."""
        return self.rounds[0]

    @property
    def can_be_followed(self) -> bool:
        """Whether a device can work out by itself how many devices each threshold keeps.

        It can if sums are proved to it and exact, and if a round keeps all devices from the start.
        The sums of `noisy` do not tell how many devices are in the tail, even if they are proved: a
        server can choose bins so wide that one device looks like many.
        """
        return all(
            not config.selects or (config.search.verified and config.noise is None)
            for config in self.rounds
        )

    def first_slot(self, level: int) -> int:
        """The session's slot that is a level's slot 0."""
        return sum(config.num_slots for config in self.rounds[:level])

    def slots(self) -> tuple[SlotSpec, ...]:
        """The slots of the session: those of the levels, joined."""
        return tuple(spec for config in self.rounds for spec in config.slots())

    def context(self, models: bytes) -> bytes:
        """The digest of the levels and their models, 32 bytes: the context of their session.

        Spec: §12.6.

        Args:
            models: The levels' models, joined in their order.
        """
        described = (config.canonical() for config in self.rounds)
        return digest(Label.ROUND, *described, sha256(models).digest())

    def split(self, models: bytes) -> tuple[bytes, ...]:
        """Each level's model.

        Args:
            models: The levels' models, joined in their order, of one size.

        Raises:
            ConfigurationError: they cannot be of one size.
        """
        size, rest = divmod(len(models), len(self.rounds))
        if rest:
            raise ConfigurationError(
                f"models of {len(models)} bytes are not {len(self.rounds)} of one size"
            )
        return tuple(models[i * size : (i + 1) * size] for i in range(len(self.rounds)))


class LevelRounds:
    """The server's side of all levels: one `Round` after the other.

    Args:
        levels: The rounds.
        keeps_cohort: Whether devices insist that nobody is lost after the first level.
        lost: What earlier rounds have revealed of each level's model; see `Round`.

    Raises:
        UsageError: `lost` is not about these levels.
    """

    def __init__(
        self, levels: Levels, *, keeps_cohort: bool = False, lost: Sequence[LostSearch] = ()
    ) -> None:
        known = lost or [LostSearch()] * len(levels.rounds)
        if len(known) != len(levels.rounds):
            raise UsageError(f"{len(known)} lost searches for {len(levels.rounds)} levels")
        self._levels = levels
        self._keeps_cohort = keeps_cohort
        self._later_cohort = 0
        self._rounds = list(map(Round, levels.rounds, known))
        self._tails: dict[int, Tail] = {}
        self._level = 0

    @property
    def level(self) -> int:
        """The current level; once all are over, the last one."""
        return self._level

    @property
    def question(self) -> Query | Threshold | None:
        """What to ask the devices next; None when the last level is over."""
        return self._playing.question

    @property
    def slot(self) -> int:
        """The session's slot in which the question is asked."""
        return self._levels.first_slot(self._level) + self._playing.slot

    def assemble(self, num_devices: int) -> None:
        """Record how many devices can be asked; see `Round`."""
        self._playing.assemble(num_devices)

    def check_opened(self, devices: Sequence[ClientId]) -> None:
        """Check that the question may be asked of the devices that its slot was opened with.

        Args:
            devices: These devices, ascending.

        Raises:
            SessionAborted: a query would be over too few, or a tail be too small, or a device is
                gone on which others insist.
        """
        self._check_cohort(len(devices))
        self._playing.check_opened(devices)
        self._check_difference(len(devices))
        self._playing.ask(devices)

    def check_tail(self, num_left: int) -> None:
        """Check that the updates may be unmasked over the devices that are left; see `Round`.

        Raises:
            SessionAborted: the tail may be too small, or a device is gone on which others insist.
        """
        self._check_cohort(num_left)
        self._playing.check_tail(num_left)
        self._check_difference(num_left)
        self._playing.unmask()

    def _check_difference(self, num_left: int) -> None:
        """Give the level up if its tail may differ by too few from that of the level before."""
        if self._levels.common.noise is not None or not isinstance(self.question, Threshold):
            return
        self._tails[self._level] = self._playing.tail_left(num_left)
        if self._level == 0:
            return
        apart = self._tails[self._level - 1].apart(self._tails[self._level])
        needed = self._levels.common.min_tail
        if apart < needed:
            raise SessionAborted(
                f"the tails of two levels may differ by {apart} devices, and min_tail is {needed}: "
                "take levels that are farther apart, or expect fewer colluding devices"
            )

    def _check_cohort(self, num_left: int) -> None:
        if num_left < self._later_cohort:
            raise SessionAborted(
                f"{num_left} devices are left of the {self._later_cohort} of the first level, and "
                "devices that expect an active server do not go on without one of them"
            )

    def take(self, revealed: SlotSum) -> None:
        """Go on with the sum that answers the question, if necessary to the next level."""
        self._playing.take(revealed)
        if self._playing.question is None and self._level + 1 < len(self._rounds):
            if self._level == 0 and self._keeps_cohort:
                self._later_cohort = len(revealed.contributors)
            self._level += 1

    def lose(self) -> None:
        """Go on without an answer to a query."""
        self._playing.lose()

    def outcomes(
        self, drops: Mapping[ClientId, Drop], aborted: str | None = None
    ) -> tuple[RoundOutcome, ...]:
        """The outcome of each level.

        If the session ended early, the levels that were already over still have a complete outcome.

        Args:
            drops: The devices that were lost, at any level.
            aborted: Why the session ended early, if it did.
        """
        return tuple(
            played.outcome(drops, None if played.question is None else aborted)
            for played in self._rounds
        )

    @property
    def _playing(self) -> Round:
        return self._rounds[self._level]
