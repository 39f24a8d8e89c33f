"""Are keys new and unchanged, and sessions signed and announced once?"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from deltafl.secagg import keys
from deltafl.secagg.messages import (
    AdvertiseKeys,
)
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import RoundView, SessionView
from deltafl.sim.record.transcript import Record, Resumed

_KEY_WORD = np.dtype("<u8")

RULES: Final = Rules.read(
    """\
keys.reused high device A6: a public key was used twice
    Masks under one key pair repeat, and the difference of two vectors is the difference of their
    inputs.
keys.low-order high device A23: a public key is of low order
    Anybody can compute the secrets that are agreed with it.
keys.unsigned high settings A3: sessions are not signed although the server may be active
    Devices cannot tell whose keys they use, or whether all were told the same survivors.
keys.identity-changed high device A3: a device's identity key changed between sessions
    Somebody else may have spoken for the device since then.
session.reused high server A6: the parameters of a session were used twice
    Masks are bound to the session. In two equal sessions, masks can be made equal.
session.twice high server A20: one round was announced in two sessions
    Two sums of the same inputs over different devices differ by the inputs of the devices that
    are in only one of them.
"""
)


@dataclass(slots=True)
class PastKeys:
    """Keys, sessions and identities of the rounds so far.

    Keys are kept as eight bytes each and compared at the end, all at once: two different keys share
    them by chance with a probability of 2^-64 for each pair.
    """

    sessions: dict[bytes, Evidence] = field(default_factory=dict)
    contexts: dict[bytes, Evidence] = field(default_factory=dict)
    identities: dict[int, tuple[bytes, Evidence]] = field(default_factory=dict)
    unsigned: Evidence | None = None
    unseen: set[int] = field(default_factory=set)  # since the run was resumed
    _keys: list[np.ndarray] = field(default_factory=list)
    _owners: list[tuple[int, Evidence, int]] = field(default_factory=list)

    def add(self, device: int, message: AdvertiseKeys, place: Evidence) -> None:
        """Keep the keys of an advertisement."""
        public = (message.sealing_key, *message.mask_keys)
        words = [keys.coordinate(key).to_bytes(32, "little")[:8] for key in public]
        self._keys.append(np.frombuffer(b"".join(words), dtype=_KEY_WORD))
        self._owners.append((device, place, len(public)))

    def resume(self) -> None:
        """Note that the run was interrupted: a simulator then draws new identities for devices."""
        self.unseen = set(self.identities)

    def repeated(self) -> Iterator[Finding]:
        """Find the keys that came more than once."""
        if not self._keys:
            return
        every = np.concatenate(self._keys)
        ends = np.cumsum([count for _, _, count in self._owners])
        order = np.argsort(every, kind="stable")
        again = np.flatnonzero(every[order][1:] == every[order][:-1])
        for index in again.tolist():
            places = [int(order[index]), int(order[index + 1])]
            first, second = (self._owners[int(np.searchsorted(ends, p, "right"))] for p in places)
            detail = f"one key in the advertisements of devices {first[0]} and {second[0]}"
            yield RULES.found("keys.reused", detail, [second[1], first[1]])


class Keys(Check):
    """Looks at the keys of every session, and at what sessions have in common."""

    name = "keys and sessions"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._past = PastKeys()

    def on_record(self, record: Record, digest: bytes) -> tuple[Finding, ...]:
        """After an interruption, devices may come back under other identities."""
        del digest
        if isinstance(record, Resumed):
            self._past.resume()
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sessions, one by one."""
        past, is_active = self._past, self._premises.expected.is_active
        yield from _announced_twice(over.view)
        for tag, session in over.view.sessions.items():
            place = session.announcements[0].place
            if (before := past.sessions.setdefault(tag, place)) != place:
                detail = f"session {tag.hex()} was opened before"
                yield RULES.found("session.reused", detail, [place, before])
            yield from _binding(session, past)
            if is_active and not session.params.signed and past.unsigned is None:
                past.unsigned = place
                detail = "the server may be active, but nothing is signed"
                yield RULES.found("keys.unsigned", detail, [place])
            yield from _advertised(session, past)

    def on_end(self) -> Iterator[Finding]:
        """Compare the keys of all rounds."""
        return self._past.repeated()

    def coverage(self, tally: Tally) -> Coverage:
        """Keys and signatures are in whole messages only."""
        return Coverage(tally.whole, f"{tally.whole} of {tally.rounds} rounds are recorded whole")


def _announced_twice(round_: RoundView) -> Iterator[Finding]:
    """Devices to which a round was announced in two ways."""
    first: dict[bytes, Seen] = {}
    told: Counter[int] = Counter()
    for session in round_.sessions.values():
        for seen in session.announcements:
            first.setdefault(seen.record.sha256, seen)
            told[seen.record.peer] += 1
    devices = sorted(device for device, times in told.items() if times > 1)
    if len(first) > 1 and devices:
        detail = f"the round was announced twice to {len(devices)} devices, such as {devices[0]}"
        yield RULES.found("session.twice", detail, [seen.place for seen in first.values()])


def _binding(session: SessionView, past: PastKeys) -> Iterator[Finding]:
    params = session.params
    place = session.announcements[0].place
    if (before := past.contexts.setdefault(params.context, place)) != place:
        detail = "model, settings and round are those of an earlier session"
        yield RULES.found("session.twice", detail, [place, before])


def _advertised(session: SessionView, past: PastKeys) -> Iterator[Finding]:
    for device, message, seen in session.advertised():
        past.add(device, message, seen.place)
        if any(keys.is_low_order(key) for key in (message.sealing_key, *message.mask_keys)):
            yield RULES.found("keys.low-order", f"device {device} sent such a key", [seen.place])
        if message.credential is None:
            continue
        identity = message.credential.identity
        before, place = past.identities.setdefault(device, (identity, seen.place))
        if before != identity:
            past.identities[device] = identity, seen.place
            detail, severity = f"device {device} has another key than before", None
            if device in past.unseen:
                detail, severity = f"{detail}; the run was interrupted in between", Severity.LOW
            yield RULES.found("keys.identity-changed", detail, [seen.place, place], severity)
        past.unseen.discard(device)
