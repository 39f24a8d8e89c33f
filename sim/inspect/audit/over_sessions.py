"""What the specification demands of the sessions of a run together, and of the keys in them.

As in `invariants`, nothing here plays a machine. The table `INVARIANTS` has all demands.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.fl.strategies.masked import FIRST_WEIGHT_BITS, WEIGHT_BITS
from deltafl.protocol.levels import Levels
from deltafl.protocol.selection import Threshold
from deltafl.secagg import keys, pedersen
from deltafl.secagg.messages import AdvertiseKeys
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
_KEY_WORD: Final = np.dtype("<u8")


@dataclass(slots=True, eq=False)
class Past:
    """What is known of the sessions so far.

    Attributes:
        unseen: Devices that have not come back since the run was interrupted. A simulator draws new
            identities then.
    """

    unseen: set[int] = field(default_factory=set)
    _seen: dict[bytes, Evidence] = field(default_factory=dict)  # tags and contexts
    _invited: tuple[int, set[int]] = field(default_factory=lambda: (0, set()))  # of the round
    _models: bytes = b""  # of the round before, if that was given up
    _fixed: dict[tuple[str, int | None], object] = field(default_factory=dict)
    _has_threshold: set[Fraction] = field(default_factory=set)
    _starts_warm: bool | None = None
    _seeds: list[bytes] = field(default_factory=list)
    _identities: dict[int, tuple[bytes, Evidence]] = field(default_factory=dict)
    _owners: dict[bytes, tuple[int, Evidence]] = field(default_factory=dict)
    _keys: list[bytes] = field(default_factory=list)
    _whose: list[tuple[int, Evidence]] = field(default_factory=list)

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

    def used_twice(self, s: Session) -> Iterator[Breach]:
        """A session, or what it is bound to, that was there before."""
        for name, value in (("parameters", s.params.tag), ("context", s.params.context)):
            if (before := self._seen.setdefault(value, s.place)) != s.place:
                yield Breach(f"the {name} of a session are those of another", [s.place, before])
        invited = {one.peer for one in s.of(Kind.OPEN)}
        if self._invited[0] != s.number:
            self._invited = s.number, set()
        if both := self._invited[1] & invited:
            yield Breach(f"device {min(both)} was invited to two sessions of a round", [s.place])
        self._invited[1].update(invited)

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
        for name, size, now in _settings(s.levels, s.params):
            before = self._fixed.setdefault((name, size), now)
            if before != now and not may_change(name, before, now, s.levels):
                yield Breach(f"{name} = {now} was announced, and {before} before", [s.place])
        for config in s.levels.rounds:
            is_warm = config.warm_start is not None
            if config.theta not in self._has_threshold:
                continue
            if self._starts_warm not in (None, is_warm):
                how = ("afresh", "at the last threshold")
                detail = f"a search starts {how[is_warm]}, and others {how[not is_warm]}"
                yield Breach(detail, [s.place])
            self._starts_warm = is_warm if self._starts_warm is None else self._starts_warm

    def seeds_are_drawn(self, s: Session) -> Iterator[Breach]:
        """A seed that somebody may have chosen."""
        seed = s.params.graph_seed
        if len(set(seed)) < MIN_DISTINCT:
            detail = f"only {len(set(seed))} of its 32 bytes are distinct: {seed.hex()}"
            yield Breach(detail, [s.place])
        if self._seeds:
            before = np.frombuffer(b"".join(self._seeds), np.uint8).reshape(-1, len(seed))
            bits = np.unpackbits(before ^ np.frombuffer(seed, np.uint8), axis=1).sum(axis=1)
            if bits.min() < MIN_DISTANCE:
                detail = f"it differs in {bits.min()} bits from that of an earlier session"
                yield Breach(detail, [s.place])
        self._seeds = [*self._seeds[-MAX_SEEDS + 1 :], seed]

    # Keys and identities.

    def keys_are_multiples(self, s: Session) -> Iterator[Breach]:
        """Keys and commitments that are no multiples of the base point, or not encoded as one."""
        for device, (message, place) in s.keys.items():
            own = message.credential
            for role, public in public_keys(message):
                if not is_multiple_of_base(public) and not keys.is_low_order(public):
                    yield Breach(f"the {role} of device {device}: {public!r}", [place])
            if own is not None and not is_in_group(bytes(own.identity)):
                yield Breach(f"the identity of device {device}: {own.identity!r}", [place])
        for (slot, device), committed in s.committed.items():
            point = committed[: pedersen.COMMITMENT_SIZE]
            if point and not is_in_group(point):
                places = [one.place for one in s.of(Kind.MASKED, slot) if one.peer == device]
                detail = f"the commitment of device {device} in slot {slot}: {point!r}"
                yield Breach(detail, places[:1])

    def no_low_order(self, s: Session) -> Iterator[Breach]:
        """Keys whose agreements everybody knows; notes all keys for the end."""
        for device, (message, place) in s.keys.items():
            public = [key for _, key in public_keys(message)]
            if any(map(keys.is_low_order, public)):
                yield Breach(f"device {device} sent such a key", [place])
            self._keys += [keys.canonical(key)[: _KEY_WORD.itemsize] for key in public]
            self._whose += [(device, place)] * len(public)

    def keys_once(self) -> Iterator[Breach]:
        """At the end: keys that came more than once.

        Eight bytes of each are compared: two keys share them by chance with a probability of 2^-64.
        """
        every = np.frombuffer(b"".join(self._keys), _KEY_WORD)
        order = np.argsort(every, kind="stable")
        for index in np.flatnonzero(every[order][1:] == every[order][:-1]).tolist():
            first, second = (self._whose[int(order[index + step])] for step in (0, 1))
            detail = f"one key in the advertisements of devices {first[0]} and {second[0]}"
            yield Breach(detail, [second[1], first[1]])

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
            owner, first = self._owners.setdefault(identity, (device, place))
            if owner != device:
                yield Breach(f"devices {owner} and {device} have one identity", [place, first])

    def one_role_each(self, s: Session) -> Iterator[Breach]:
        """Identities that agree on masks or open boxes, too."""
        roles = {
            keys.canonical(public): f"{role} of device {device}"
            for device, (message, _) in s.keys.items()
            for role, public in public_keys(message)
        }
        for device, own, place in _identities(s):
            for alike in roles.keys() & {keys.canonical(own), of_edwards(own)}:
                yield Breach(f"the identity of device {device} is the {roles[alike]}", [place])


def public_keys(message: AdvertiseKeys) -> Iterator[tuple[str, keys.PublicKey]]:
    """The keys of an advertisement, with their roles."""
    yield "sealing key", message.sealing_key
    for public in message.mask_keys:
        yield "mask key", public


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
    for prefix, part in (
        ("", common),
        ("search.", common.search),
        ("update.", common.update),
        ("", params),
    ):
        for one in fields(part):
            if one.init and one.name not in _CHANGING and not (real and one.name == "slots"):
                size = params.num_invited if one.name in _OF_SIZE else None
                yield prefix + one.name, size, getattr(part, one.name)


def _has_real_weights(levels: Levels) -> bool:
    """Whether a round is one of a weighted mean with real weights."""
    common = levels.common
    is_mean = len(levels.rounds) == 1 and common.theta == 1
    return (
        is_mean and common.update.resolution_bits == 0 and common.update.max_weight in _REAL_WEIGHTS
    )


def may_change(name: str, before: object, now: object, levels: Levels) -> bool:
    """Whether the server has to set a value anew in each round, by the sums of the last one."""
    if name == "update.radius":  # the run played again knows which
        return None not in (before, now)
    return (
        name == "update.max_weight" and _has_real_weights(levels) and {before, now} <= _REAL_WEIGHTS
    )


INVARIANTS: Final[tuple[tuple[str, str, Callable[[Past, Session], Iterator[Breach]]], ...]] = (
    ("3.2, 12.13", "session.twice", Past.used_twice),
    ("12.1", "parameters.unfitting", Past.announced_in_its_round),
    ("12.1", "parameters.changed", Past.settings_stay),
    ("3.2, 10.12", "session.seed-repeated", Past.seeds_are_drawn),
    ("2.3, 2.9", "keys.outside-group", Past.keys_are_multiples),
    ("9.5, 10.4", "keys.low-order", Past.no_low_order),
    ("6.2", "keys.identity-changed", Past.identities_stay),
    ("6.2", "keys.shared-identity", Past.one_identity_each),
    ("9.12", "keys.two-roles", Past.one_role_each),
)
"""As in `invariants`; what looks for a breach also notes what later sessions are compared with."""
