"""What the specification demands of the sessions of a run together, and of the keys in them.

As in `invariants`, nothing here plays a machine. The table `INVARIANTS` has all demands.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Final

from deltafl.fl.strategies.masked import FIRST_WEIGHT_BITS, WEIGHT_BITS
from deltafl.protocol.levels import Levels
from deltafl.protocol.selection import Threshold
from deltafl.secagg import keys, pedersen
from deltafl.secagg.params import SessionParams
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.public_keys import (
    is_in_group,
    is_multiple_of_base,
    of_edwards,
)
from deltafl.sim.inspect.audit.session_log import Breach, Session

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
_KEY_BYTES: Final = 8
"""So much of a key is compared: two share it by chance with a probability of 2^-64."""


@dataclass(slots=True, eq=False)
class Past:
    """What is known of the sessions so far.

    Attributes:
        unseen: Devices that have not come back since the run was interrupted. A simulator draws new
            identities then.
    """

    unseen: set[int] = field(default_factory=set)
    _first: dict[tuple[str, Hashable], tuple[object, Evidence]] = field(default_factory=dict)
    _invited: dict[int, int] = field(default_factory=dict)  # in which round last
    _models: bytes = b""  # of the round before, if that was given up
    _has_threshold: set[Fraction] = field(default_factory=set)
    _seeds: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_SEEDS))
    _identities: dict[int, tuple[bytes, Evidence]] = field(default_factory=dict)
    _keys: dict[bytes, tuple[int, Evidence]] = field(default_factory=dict)

    def resume(self) -> None:
        """Note that the run was interrupted."""
        self.unseen = set(self._identities)

    def end_round(self, sessions: list[Session], *, is_lost: bool) -> None:
        """Note how a round ended, once its sessions were looked at."""
        self._models = b""
        for s in sessions:
            if is_lost:
                self._models = s.models
            else:
                self._has_threshold |= set(_found_thresholds(s))

    # Parameters and announcements.

    def signed_if_active(self, s: Session) -> Iterator[Breach]:
        """The first session in which devices do not sign although the server may be active."""
        if s.colluding is not None and not s.params.signed:
            _, first = self._first.setdefault(("unsigned", None), (None, s.place))
            if first == s.place:
                yield Breach("the server may be active, but nothing is signed", [s.place])

    def used_twice(self, s: Session) -> Iterator[Breach]:
        """A session, or what it is bound to, that was there before."""
        for name, value in (("parameters", s.params.tag), ("context", s.params.context)):
            _, before = self._first.setdefault((name, value), (None, s.place))
            if before != s.place:
                yield Breach(f"the {name} of a session are those of another", [s.place, before])
        invited = {one.peer for one in s.of(Kind.OPEN)}
        if both := [device for device in invited if self._invited.get(device) == s.number]:
            yield Breach(f"device {min(both)} was invited to two sessions of a round", [s.place])
        self._invited.update(dict.fromkeys(invited, s.number))

    def announced_in_its_round(self, s: Session) -> Iterator[Breach]:
        """An announcement under another number, or to other devices, than it says."""
        number, wanted = s.number, s.params.num_invited
        if (index := s.levels.common.round_index) != number - 1:
            yield Breach(f"round_index = {index} was announced in round {number}", [s.place])
        invited = len({one.peer for one in s.of(Kind.OPEN)})
        may_lack = s.breaks_off or s.models == self._models
        if invited > wanted or (invited < wanted and not may_lack):
            yield Breach(f"{invited} devices were invited, and num_invited = {wanted}", [s.place])

    def settings_stay(self, s: Session) -> Iterator[Breach]:
        """Settings that are not those of the rounds before."""
        for name, size, now in (*_settings(s.levels, s.params), *self._starts(s.levels)):
            before, _ = self._first.setdefault((name, size), (now, s.place))
            if before != now and not may_change(name, before, now, s.levels):
                yield Breach(f"{name} = {now} was announced, and {before} before", [s.place])

    def _starts(self, levels: Levels) -> Iterator[tuple[str, None, bool]]:
        """Whether searches start at a threshold, where there is one to start at."""
        for config in levels.rounds:
            if config.theta in self._has_threshold:
                yield "a warm start", None, config.warm_start is not None

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
            if not is_multiple_of_base(public) and not keys.is_low_order(public):
                yield Breach(f"the {role} of device {device}: {public!r}", [place])
        for device, identity, place in _identities(s):
            if not is_in_group(identity):
                yield Breach(f"the identity of device {device}: {identity!r}", [place])
        for (slot, device), committed in s.committed.items():
            point = committed[: pedersen.COMMITMENT_SIZE]
            if point and not is_in_group(point):
                places = [one.place for one in s.of(Kind.MASKED, slot) if one.peer == device]
                detail = f"the commitment of device {device} in slot {slot}: {point!r}"
                yield Breach(detail, places[:1])

    def no_low_order(self, s: Session) -> Iterator[Breach]:
        """Keys whose agreements everybody knows."""
        for device, role, public, place in _public_keys(s):
            if keys.is_low_order(public):
                yield Breach(f"the {role} of device {device}", [place])

    def keys_are_new(self, s: Session) -> Iterator[Breach]:
        """Keys that came before."""
        for device, role, public, place in _public_keys(s):
            short = keys.canonical(public)[:_KEY_BYTES]
            if before := self._keys.get(short):
                detail = f"the {role} of device {device} was a key of device {before[0]}"
                yield Breach(detail, [place, before[1]])
            self._keys[short] = device, place

    def identities_stay(self, s: Session) -> Iterator[Breach]:
        """A device that comes with another identity than before."""
        for device, identity, place in _identities(s):
            before, first = self._identities.setdefault(device, (identity, place))
            if before != identity:
                self._identities[device] = identity, place
                detail, severity = f"device {device} has another key than before", None
                if device in self.unseen:
                    detail, severity = f"{detail}; the run was interrupted between", Severity.LOW
                yield Breach(detail, [place, first], severity)
            self.unseen.discard(device)

    def one_identity_each(self, s: Session) -> Iterator[Breach]:
        """Devices that have one identity."""
        for device, identity, place in _identities(s):
            owner, first = self._first.setdefault(("identity", identity), (device, place))
            if owner != device:
                yield Breach(f"devices {owner} and {device} have one identity", [place, first])

    def one_role_each(self, s: Session) -> Iterator[Breach]:
        """Identities that agree on masks or open boxes, too."""
        roles = {
            keys.canonical(public): f"{role} of device {device}"
            for device, role, public, _ in _public_keys(s)
        }
        for device, own, place in _identities(s):
            for alike in roles.keys() & {keys.canonical(own), of_edwards(own)}:
                yield Breach(f"the identity of device {device} is the {roles[alike]}", [place])


def _public_keys(s: Session) -> Iterator[tuple[int, str, keys.PublicKey, Evidence]]:
    """All keys that were advertised, with their devices, roles and places."""
    for device, (message, place) in s.keys.items():
        yield device, "sealing key", message.sealing_key, place
        for public in message.mask_keys:
            yield device, "mask key", public, place


def _identities(s: Session) -> Iterator[tuple[int, bytes, Evidence]]:
    for device, (message, place) in s.keys.items():
        if message.credential is not None:
            yield device, bytes(message.credential.identity), place


def _found_thresholds(s: Session) -> Iterator[Fraction]:
    """The levels at which a search has found a threshold, at which another may start."""
    for level, config in enumerate(s.levels.rounds):
        first, end = s.levels.first_slot(level), s.levels.first_slot(level + 1)
        asked = s.of(Kind.SLOT, end - 1)
        question = asked[0].question if asked else None
        has_sums = any(first <= learnt.slot < end - 1 for learnt in s.sums)
        if has_sums and isinstance(question, Threshold) and question.eta_half_ticks:
            yield config.theta


def _settings(levels: Levels, params: SessionParams) -> Iterator[tuple[str, int | None, object]]:
    """What stays the same in a run: name, the size of the cohorts that it is of, and value."""
    common, real = levels.common, _has_real_weights(levels)
    yield "θ", None, tuple(str(config.theta) for config in levels.rounds)
    for part in (common, common.search, common.update, params):
        for one in fields(part):
            if one.init and one.name not in _CHANGING and not (real and one.name == "slots"):
                size = params.num_invited if one.name in _OF_SIZE else None
                yield f"{type(part).__name__}.{one.name}", size, getattr(part, one.name)


def _has_real_weights(levels: Levels) -> bool:
    """Whether a round is one of a weighted mean with real weights."""
    common, update = levels.common, levels.common.update
    is_mean = len(levels.rounds) == 1 and common.theta == 1
    return is_mean and update.resolution_bits == 0 and update.max_weight in _REAL_WEIGHTS


def may_change(name: str, before: object, now: object, levels: Levels) -> bool:
    """Whether the server has to set a value anew in each round, by the sums of the last one."""
    if name == "UpdateParams.radius":  # the run played again knows which
        return None not in (before, now)
    is_weight = name == "UpdateParams.max_weight" and {before, now} <= _REAL_WEIGHTS
    return is_weight and _has_real_weights(levels)


INVARIANTS: Final[tuple[tuple[str, str, Callable[[Past, Session], Iterator[Breach]]], ...]] = (
    ("3.7", "keys.unsigned", Past.signed_if_active),
    ("3.2, 12.13", "session.twice", Past.used_twice),
    ("12.1", "parameters.unfitting", Past.announced_in_its_round),
    ("12.1", "parameters.changed", Past.settings_stay),
    ("3.2, 10.12", "session.seed-repeated", Past.seeds_are_drawn),
    ("2.3, 2.9", "keys.outside-group", Past.keys_are_multiples),
    ("9.5, 10.4", "keys.low-order", Past.no_low_order),
    ("10.4", "keys.reused", Past.keys_are_new),
    ("6.2", "keys.identity-changed", Past.identities_stay),
    ("6.2", "keys.shared-identity", Past.one_identity_each),
    ("9.12", "keys.two-roles", Past.one_role_each),
)
"""As in `invariants`; what looks for a breach also notes what later sessions are compared with."""
