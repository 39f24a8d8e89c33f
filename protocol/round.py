"""The server's side of Algorithm 3: what it asks, in what order, and what it learns.

    search      for the (1 − θ)-quantile η of the losses, one secure sum a query
    threshold   η and its half-width δ are announced; devices filter themselves
    update      one secure sum of n_k·Δ_k, n_k, n_k·F_k, 1 where devices passed, zeros otherwise
    model       w ← w + Σ n_k·Δ_k / Σ n_k; if the sums of updates have noise, all weigh the same,
                and so many are counted as the noise lets it (`update_noise`)

If a device vanished during the search, the difference of two sums would expose it. So the slots of
all queries but the first are whole (all-or-nothing), which the devices enforce; if a device
vanishes, the search ends with what it has. If there are fewer devices than the configuration asks
for, there is no search at all.

A round that is lost before its updates are unmasked has revealed sums of its search and nothing
else. Another round over the model may go on with these: it is over devices of the search alone,
asks no query, and announces what the sums lead to. If there is no sum, though a query was asked,
one may come to be known late. Then the other round asks it again of exactly these devices, or keeps
all. So there is one search and one sum of updates for each model, over however many rounds. Source:
"Device Heterogeneity in Federated Learning: A Superquantile Approach", Algorithm 3 and appendix
B.1; differences are argued in docs/architecture.md.

Spec: §12.9, §12.13, §12.15, §14.12.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from deltafl.protocol.anonymity import Tail
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.errors import SearchError
from deltafl.protocol.quantile.search import Ended, Query, Search, SearchResult
from deltafl.protocol.selection import Threshold
from deltafl.protocol.update_noise import NoisyUpdates
from deltafl.secagg import ClientId, Drop, SessionAborted, SlotSum
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.ring import Vector


@dataclass(frozen=True, slots=True, eq=False)
class LostSearch:
    """What a lost round has revealed of a model, with which another round over it goes on.

    Attributes:
        devices: Those of its search, to which the other round is limited; none if nobody was asked,
            so that nothing limits it.
        sums: The answers to its queries, in order: ring vectors of the search layout.
    """

    devices: tuple[ClientId, ...] = ()
    sums: tuple[Vector, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class RoundOutcome:
    """Everything that the server has learned in a round.

    Attributes:
        search: What the search found; None if the round ended before that.
        secure_sums: Number of sums that were revealed.
        update: Σ n_k·Δ_k / Σ n_k, float64 of shape (d,); None if the model does not change.
        kept_weight: Σ n_k over the devices that passed.
        kept_devices: How many passed.
        train_loss: Σ n_k·F_k / Σ n_k over them; None if Σ n_k = 0.
        clipped: How many numbers the devices had to clip.
        drops: The devices that were lost, and how.
        aborted: Why the round ended early; None if it did not.
        asked: Whether devices were asked anything, so that they may have answered for the model.
        longer: How many of `kept_devices` had an update longer than the round's radius; None
            without a radius, or without a sum.
        lost: With what another round over the model may go on; None if none may, because the sum of
            updates is known, or may come to be known late, or devices follow the search.
    """

    search: SearchResult | None
    secure_sums: int
    update: npt.NDArray[np.float64] | None
    kept_weight: int
    kept_devices: int
    train_loss: float | None
    clipped: int
    drops: Mapping[ClientId, Drop]
    aborted: str | None
    asked: bool = True
    longer: int | None = None
    lost: LostSearch | None = None


class Round:
    """The server's side of a round. It is driven by sums, and does not depend on who computes them.

    Args:
        config: The round.
        lost: What earlier rounds over the model, with the same settings but for their number, have
            revealed.

    Attributes:
        question: What to ask the devices next; None when the round is over.
    """

    def __init__(self, config: RoundConfig, lost: LostSearch | None = None) -> None:
        self.config = config
        self._earlier = self._known = LostSearch() if lost is None else lost
        self._num_left = config.cohort_size
        self._shrank = False
        self._num_asked = 0
        self.question: Query | Threshold | None = None
        self._search: Search = config.start_search()
        self._found: SearchResult | None = None
        self._num_sums = 0
        self._num_summed = 0
        self._is_unmasked = False
        self._totals: dict[str, npt.NDArray[np.int64]] = {}
        self._spoiled: str | None = None
        self._asked = False
        for total in self._known.sums:
            self._follow(total)
        if self._known.sums:
            self._end_search(shrank=True)
        else:
            self._ask()
        self.assemble(config.cohort_size)

    @property
    def slot(self) -> int:
        """The slot in which the question is asked."""
        return self._num_sums if isinstance(self.question, Query) else self.config.update_slot

    def assemble(self, num_devices: int) -> None:
        """Record how many devices can be asked; if they are too few, keep all without a search.

        If devices of the sums are gone, the threshold keeps as many more as may be missing.

        Args:
            num_devices: Devices that are left, before the question's slot is opened.
        """
        before, self._num_left = self._num_left, num_devices
        if self._is_repeated_over_fewer(num_devices):
            self._end_search(shrank=True)
        elif isinstance(self.question, Query) and num_devices < self.config.search.min_cohort:
            self._announce(
                SearchResult(
                    grid=self.config.search.grid,
                    eta_half_ticks=0,
                    half_width_half_ticks=0,
                    certified=False,
                    ended=Ended.TOO_FEW,
                    num_queries=self._num_sums,
                )
            )
        elif isinstance(self.question, Threshold) and self._num_searched and num_devices < before:
            self._end_search()

    def _is_repeated_over_fewer(self, num_devices: int) -> bool:
        """Whether the first query was, or may come to be, summed over others besides."""
        before = self._earlier.devices
        if not isinstance(self.question, Query) or not before or self._known.sums:
            return False
        return num_devices < len(before) or not self.config.slots()[0].whole

    def check_opened(self, devices: Sequence[ClientId]) -> None:
        """Check that the question may be asked of the devices that its slot was opened with.

        There may be fewer of them than were left, because a device without enough neighbours is not
        asked.

        Args:
            devices: These devices, ascending.

        Raises:
            SessionAborted: a query would be over too few devices, or a threshold would keep too
                few, so that all of them would refuse it.
        """
        if self._is_repeated_over_fewer(len(devices)):
            raise SessionAborted(
                f"{len(devices)} devices are left of the {len(self._earlier.devices)} that this "
                "query was asked of in a round that was lost, and a sum over fewer would tell "
                "about the others"
            )
        self._check_asked(len(devices))

    def ask(self, devices: Sequence[ClientId]) -> None:
        """Note of whom the question is asked, ascending."""
        if isinstance(self.question, Query) and not self._known.sums:
            self._known = LostSearch(tuple(devices))
        self._asked = True

    def _check_asked(self, num_devices: int) -> None:
        self._num_asked = num_devices
        self.check_tail(num_devices)
        needed = self.config.search.min_cohort
        if isinstance(self.question, Query) and num_devices < needed:
            raise SessionAborted(
                f"{num_devices} devices are left to be searched over and min_search_cohort is "
                f"{needed}: invite more devices or lower it"
            )

    def can_go_on(self, num_devices: int) -> bool:
        """Whether a round that goes on with the search of a lost one keeps enough of so many.

        The round is not to be used afterwards.

        Args:
            num_devices: Devices of the search that are there.
        """
        try:
            self.assemble(num_devices)
            self._check_asked(num_devices)
        except SessionAborted:
            return False
        return True

    def check_tail(self, num_left: int) -> None:
        """Check that the updates may be unmasked over the devices that are left.

        Args:
            num_left: How many there are.

        Raises:
            SessionAborted: all devices that were lost may have been in the tail, and there would be
                too few in it. All devices would refuse to go on.
        """
        if not isinstance(self.question, Threshold):
            return
        fewest, needed = self.tail_left(num_left).fewest, self.config.min_tail
        if fewest < needed:
            raise SessionAborted(
                f"the tail may have as few as {fewest} devices, and min_tail is {needed}: invite "
                "more devices, raise theta or expect fewer colluding devices"
            )

    def unmask(self) -> None:
        """Note that shares are asked for: from here on, those that come late may complete a sum."""
        self._is_unmasked |= isinstance(self.question, Threshold)

    def tail_left(self, num_left: int) -> Tail:
        """The devices whose updates are summed; see `check_tail`."""
        asked, tail = self._num_asked, None if self._found is None else self._found.tail
        if tail is None:
            return Tail(asked, asked).among(asked, asked, num_left)
        return tail.among(self._num_searched, asked, num_left)

    def take(self, revealed: SlotSum) -> None:
        """Go on with the sum that answers the question."""
        total = revealed.vector.astype(np.uint64)
        self._num_sums += 1
        if isinstance(self.question, Query):
            self._take_answer(total, revealed)
        else:
            self._num_summed = len(revealed.contributors)
            self._take_update(total)

    def lose(self) -> None:
        """Go on without an answer, because a device was missing from a whole slot."""
        self._end_search(shrank=True)

    def outcome(self, drops: Mapping[ClientId, Drop], aborted: str | None = None) -> RoundOutcome:
        """The outcome of the round.

        Args:
            drops: The devices that were lost.
            aborted: Why the session ended early, if it did.
        """
        ended = RoundOutcome(
            search=self._found,
            secure_sums=self._num_sums,
            update=None,
            kept_weight=0,
            kept_devices=0,
            train_loss=None,
            clipped=0,
            drops=dict(drops),
            aborted=aborted or self._spoiled,
            asked=self._asked,
            lost=self._lost,
        )
        if not self._totals:
            return ended
        noisy = self.config.noisy_updates
        return self._with_means(ended) if noisy is None else self._with_noisy_means(ended, noisy)

    def _with_means(self, ended: RoundOutcome) -> RoundOutcome:
        """The outcome with what the sums of updates say."""
        layout, sums = self.config.update_layout, self._totals
        outcome = replace(
            ended,
            kept_devices=int(sums["count"][0]),
            clipped=int(sums["clipped"][0]),
            longer=int(sums["longer"][0]) if "longer" in sums else None,
        )
        weight = int(sums["weight"][0])
        if not weight:
            return outcome
        loss = float(layout.to_float("weighted_loss", sums["weighted_loss"])[0])
        mean = layout.to_float("update", sums["update"]) / weight
        return replace(outcome, update=mean, kept_weight=weight, train_loss=loss / weight)

    def _with_noisy_means(self, ended: RoundOutcome, noisy: NoisyUpdates) -> RoundOutcome:
        """The same where they were summed with noise; all devices weigh the same."""
        means = noisy.read(self._totals, self._kept_share, self._num_summed)
        loss, bound = means.loss, self.config.search.grid.bound
        return replace(
            ended,
            update=means.update,
            kept_weight=means.num_kept,
            kept_devices=means.num_kept,
            train_loss=None if loss is None else loss * bound,
            clipped=means.num_clipped,
        )

    @property
    def _lost(self) -> LostSearch | None:
        is_followed = self.config.search.verified and self._asked
        return None if is_followed or self._is_unmasked or self._num_summed else self._known

    @property
    def _num_searched(self) -> int:
        """Devices in the sums of the search; 0 before the first."""
        return len(self._known.devices) if self._known.sums else 0

    @property
    def _kept_share(self) -> Fraction:
        """The share of devices that the announced threshold is to keep: all, if nobody is below it.

        Spec: §12.16.
        """
        threshold = None if self._found is None else self._found.threshold
        keeps_all = threshold is not None and threshold.passes(0)
        return Fraction(1) if keeps_all else self.config.theta

    def _ask(self) -> None:
        self.question = self._search.query
        if self.question is None:
            self._end_search()

    def _end_search(self, *, shrank: bool = False) -> None:
        self._shrank |= shrank
        lost = max(self._num_searched - self._num_left, 0)
        self._announce(self._search.result(shrank=self._shrank, num_lost=lost))

    def _announce(self, found: SearchResult) -> None:
        self._found = found
        self.question = found.threshold

    def _take_answer(self, total: npt.NDArray[np.uint64], revealed: SlotSum) -> None:
        self._known = LostSearch(revealed.contributors, (*self._known.sums, revealed.vector))
        is_sound = self._follow(total)
        shrank = self._search.query is not None and revealed.remaining != revealed.contributors
        if is_sound and not shrank:
            self._ask()
        else:
            self._end_search(shrank=True)

    def _follow(self, total: Vector) -> bool:
        """Go on with an answer; whether it is one that honest devices can give."""
        try:
            answer = self.config.search_layout.decode(total.astype(np.uint64))
            self._search = self._search.update(answer)
        except (EncodingError, SearchError):
            return False
        return True

    def _take_update(self, total: npt.NDArray[np.uint64]) -> None:
        self.question = None
        try:
            self._totals = self.config.update_layout.decode(total)
        except EncodingError as error:
            self._spoiled = str(error)


def limited_to(lost: Iterable[LostSearch], devices: Iterable[ClientId]) -> frozenset[ClientId]:
    """Those of some devices that were asked in all searches with which a round goes on.

    The others stay away from it: the difference of search and update would be about them.
    """
    return frozenset(devices).intersection(*(search.devices for search in lost if search.devices))
