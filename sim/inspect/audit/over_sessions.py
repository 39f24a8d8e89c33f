"""What the specification demands of the sessions of a run together, and of the keys in them.

As in `invariants`, nothing here plays a machine. The table `INVARIANTS` has all demands.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Final

from deltafl.fl.strategies.masked import FIRST_WEIGHT_BITS, WEIGHT_BITS
from deltafl.protocol.levels import Levels
from deltafl.protocol.radius import Clipped
from deltafl.protocol.selection import Threshold
from deltafl.secagg import pedersen
from deltafl.secagg.params import SessionParams
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.invariants import Breach
from deltafl.sim.inspect.audit.public_keys import (
    coordinate,
    is_in_group,
    is_multiple_of_base,
    of_edwards,
)
from deltafl.sim.inspect.audit.session_log import Session

MIN_DISTINCT: Final = 16
"""Of 32 random bytes, fewer are distinct with a probability of 10^-14."""

MIN_DISTANCE: Final = 48
"""Two random seeds differ in fewer bits with a probability below 2^-70."""

MAX_SEEDS: Final = 1 << 14
"""Seeds that are compared with each new one."""

_REAL_WEIGHTS: Final = {1 << WEIGHT_BITS, 1 << FIRST_WEIGHT_BITS}
_CHANGING: Final = {
    *("round_index", "theta", "warm_start", "search", "update", "context", "graph_seed"),
}
_OF_SIZE: Final = {
    *("cohort_size", "num_invited", "degree", "threshold", "min_cohort", "min_roster", "min_tail"),
    *("slots", "noise"),
}
"""What follows from the number of devices."""
_IDENTITY: Final = "identity"
_LATTICE: Final = "ML-KEM key"
_CURVE_SIZE: Final = 32  # of an X25519 key, which ends a device's key
_KEY_BYTES: Final = 8
"""So much of a key is compared: two share it by chance with a probability of 2^-64."""


@dataclass(slots=True, eq=False)
class Past:
    """What is known of the sessions so far.

    Attributes:
        colluding: Share of devices that may collude with an active server; None if it is curious.
        breaks_off: Whether the record of the round stops somewhere.
        unseen: Devices that have not come back since the run was interrupted. A simulator draws new
            identities then.
    """

    colluding: float | None = None
    breaks_off: bool = False
    unseen: set[int] = field(default_factory=set)
    _first: dict[tuple[str, Hashable], tuple[object, Evidence]] = field(default_factory=dict)
    _invited: dict[int, int] = field(default_factory=dict)  # in which round last
    _models: bytes = b""  # of the round before, if that was given up
    _has_threshold: set[Fraction] = field(default_factory=set)
    _seeds: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_SEEDS))
    _identities: dict[int, tuple[bytes, Evidence]] = field(default_factory=dict)
    _keys: dict[bytes, tuple[int, str, Evidence]] = field(default_factory=dict)

    def resume(self) -> None:
        """Note that the run was interrupted."""
        self.unseen = set(self._identities)

    def end_round(self, sessions: Iterable[Session], *, is_lost: bool) -> None:
        """Note how a round ended, once its sessions were looked at."""
        self._models = b""
        for s in sessions:
            if is_lost:
                self._models = s.models
            else:
                self._has_threshold |= set(_found_thresholds(s))

    # Parameters and announcements.

    def withstands(self, s: Session) -> Iterator[Breach]:
        """A threshold that an active server gets round with the devices that collude with it."""
        if self.colluding is None:
            return
        params = s.params
        holders = min(params.num_invited, params.degree + (params.degree >= params.num_invited - 1))
        most = int((self.colluding + 1e-14) * holders)
        if 2 * params.threshold <= holders + most:
            detail = f"{params.threshold} of {holders} holders sign a list, of whom {most} may "
            yield Breach(f"{detail}collude: two lists can have enough", [s.place])

    def used_twice(self, s: Session) -> Iterator[Breach]:
        """A session, or what it is bound to, that was there before."""
        _, before = self._first.setdefault(("context", s.params.context), (None, s.place))
        if before != s.place:
            yield Breach("the context of a session is that of another", [s.place, before])
        invited = s.first(Kind.OPEN)
        if both := [device for device in invited if self._invited.get(device) == s.number]:
            yield Breach(f"device {min(both)} was invited to two sessions of a round", [s.place])
        self._invited.update(dict.fromkeys(invited, s.number))

    def announced_in_its_round(self, s: Session) -> Iterator[Breach]:
        """An announcement under another number, or to other devices, than it says."""
        number, wanted = s.number, s.params.num_invited
        if (index := s.levels.common.round_index) != number - 1:
            yield Breach(f"round_index = {index} was announced in round {number}", [s.place])
        invited = len(s.first(Kind.OPEN))
        may_lack = self.breaks_off or s.models == self._models
        if invited > wanted or (invited < wanted and not may_lack):
            yield Breach(f"{invited} devices were invited, and num_invited = {wanted}", [s.place])

    def settings_stay(self, s: Session) -> Iterator[Breach]:
        """Settings that are not those of the rounds before."""
        found = self._has_threshold  # where a search can start
        starts = (one.warm_start is not None for one in s.levels.rounds if one.theta in found)
        started = (("a warm start", None, each) for each in starts)
        for name, size, now in (*_settings(s.levels, s.params), *started):
            before, _ = self._first.setdefault((name, size), (now, s.place))
            if before != now:
                yield Breach(f"{name} = {now} was announced, and {before} before", [s.place])

    def seeds_are_drawn(self, s: Session) -> Iterator[Breach]:
        """A seed that somebody may have chosen."""
        distinct, seed = len(set(s.params.graph_seed)), int.from_bytes(s.params.graph_seed)
        if distinct < MIN_DISTINCT:
            detail = f"only {distinct} of its 32 bytes are distinct: {s.params.graph_seed.hex()}"
            yield Breach(detail, [s.place])
        apart = min(((seed ^ before).bit_count() for before in self._seeds), default=MIN_DISTANCE)
        if apart < MIN_DISTANCE:
            yield Breach(f"it differs in {apart} bits from that of an earlier session", [s.place])
        self._seeds.append(seed)

    # Keys and identities.

    def keys_are_multiples(self, s: Session) -> Iterator[Breach]:
        """Keys and commitments that are no multiples of the base point, or not encoded as one."""
        for device, role, public, place in _public_keys(s):
            is_one = is_in_group if role == _IDENTITY else is_multiple_of_base
            if role != _LATTICE and not is_one(public):
                yield Breach(f"the {role} of device {device}: {public!r}", [place])
        for slot in s.slots:
            for device, seen in s.first(Kind.MASKED, slot).items():
                committed = getattr(seen.content.message, "committed", b"")
                point = committed[: pedersen.COMMITMENT_SIZE]
                if point and not is_in_group(point):
                    detail = f"the commitment of device {device} in slot {slot}: {point!r}"
                    yield Breach(detail, [seen.place])

    def used_once(self, s: Session) -> Iterator[Breach]:
        """Keys that came before, identities of others, and secrets in several roles."""
        for device, role, public, place in _public_keys(s):
            own, forms = (device, role, place), [public[:_KEY_BYTES]]
            if role == _IDENTITY:  # which is no key, but its secret may be one's
                forms.insert(0, of_edwards(public)[:_KEY_BYTES])
            elif role != _LATTICE:  # of which another encoding may have been there
                forms = [coordinate(public).to_bytes(_CURVE_SIZE, "little")[:_KEY_BYTES]]
            before = next((self._keys[form] for form in forms if form in self._keys), own)
            if before is not own and (role != _IDENTITY or before[:2] != own[:2]):
                detail = f"the {role} of device {device} was the {before[1]} of device {before[0]}"
                yield Breach(detail, [place, before[2]])
            self._keys |= dict.fromkeys(forms, own)

    def identities_stay(self, s: Session) -> Iterator[Breach]:
        """A device that comes with another identity than before."""
        identities = (one for one in _public_keys(s) if one[1] == _IDENTITY)
        for device, _, identity, place in identities:
            before, first = self._identities.setdefault(device, (identity, place))
            if before != identity:
                self._identities[device] = identity, place
                detail, severity = f"device {device} has another key than before", None
                if device in self.unseen:
                    detail, severity = f"{detail}; the run was interrupted between", Severity.LOW
                yield Breach(detail, [place, first], severity)
            self.unseen.discard(device)


def _public_keys(s: Session) -> Iterator[tuple[int, str, bytes, Evidence]]:
    """All keys that were advertised, and identities, with their devices, roles and places."""
    for device, message, place in s.advertised():
        yield device, _LATTICE, message.key[:-_CURVE_SIZE], place
        yield device, "X25519 key", message.key[-_CURVE_SIZE:], place
        yield device, _IDENTITY, bytes(message.credential.identity), place


def _found_thresholds(s: Session) -> Iterator[Fraction]:
    """The levels at which a search has found a threshold, at which another may start."""
    for level in s.by_level():
        question = s.question(level.update_slot)
        has_sums = any(slot != level.update_slot for slot, _, _ in level.answered())
        if has_sums and isinstance(question, Threshold) and question.eta_half_ticks:
            yield level.config.theta


def _settings(levels: Levels, params: SessionParams) -> Iterator[tuple[str, int | None, object]]:
    """What stays the same in a run: name, the size of the cohorts that it is of, and value.

    A radius, and what follows from real weights, may be others in each round, by the sums of the
    last one.
    """
    common, real = levels.common, _has_real_weights(levels)
    yield "θ", None, tuple(str(config.theta) for config in levels.rounds)
    for part in (common, common.search, common.update, params):
        for one in fields(part):
            value, size = getattr(part, one.name), params.num_invited
            if real and one.name in ("slots", "max_weight"):
                value = "that of real weights"
            if isinstance(value, Clipped):  # the run played again knows to which radius
                value = Clipped
            if one.init and one.name not in _CHANGING:
                name = f"{type(part).__name__}.{one.name}"
                yield name, size if one.name in _OF_SIZE else None, value


def _has_real_weights(levels: Levels) -> bool:
    """Whether a round is one of a weighted mean with real weights."""
    common, update = levels.common, levels.common.update
    is_mean = len(levels.rounds) == 1 and common.theta == 1
    return is_mean and update.resolution_bits == 0 and update.max_weight in _REAL_WEIGHTS


INVARIANTS: Final[tuple[tuple[str, str, Callable[[Past, Session], Iterator[Breach]]], ...]] = (
    ("3.7, 14.2", "spec.threshold", Past.withstands),
    ("3.2, 12.13", "session.twice", Past.used_twice),
    ("12.1", "parameters.unfitting", Past.announced_in_its_round),
    ("12.1", "parameters.changed", Past.settings_stay),
    ("3.2, 10.12", "session.seed-repeated", Past.seeds_are_drawn),
    ("2.3, 2.9, 9.5", "keys.outside-group", Past.keys_are_multiples),
    ("6.2, 9.12, 10.4", "keys.reused", Past.used_once),
    ("6.2", "keys.identity-changed", Past.identities_stay),
)
"""As in `invariants`; what looks for a breach also notes what later sessions are compared with."""
