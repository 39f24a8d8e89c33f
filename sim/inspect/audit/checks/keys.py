"""Are keys new, their owners' own, and signed? Are sessions bound to what was announced?"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from deltafl.secagg import keys, signing
from deltafl.secagg.errors import present
from deltafl.secagg.identity import verify
from deltafl.secagg.messages import AdvertiseKeys, ConsistencySignature
from deltafl.secagg.params import ClientId
from deltafl.sim.inspect.audit.catalogue import found
from deltafl.sim.inspect.audit.expected import Expected
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.views import RoundView, SessionView, SlotView

_KEY_WORD = np.dtype("<u8")


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
        """The run was interrupted: a simulator draws its devices' identities anew."""
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
            yield found("keys.reused", detail, [second[1], first[1]])


def check(round_: RoundView, past: PastKeys, expected: Expected) -> Iterator[Finding]:
    """Look at the keys, signatures and bindings of a round's sessions."""
    for tag, session in round_.sessions.items():
        place = session.announcements[0].place
        if (before := past.sessions.setdefault(tag, place)) != place:
            yield found("session.reused", f"session {tag.hex()} was opened before", [place, before])
        yield from _binding(session, past)
        if expected.is_active and not session.params.signed and past.unsigned is None:
            past.unsigned = place
            yield found("keys.unsigned", "the server may be active, and nothing is signed", [place])
        yield from _advertised(session, past)
        for seen, device in session.substituted:
            detail = f"device {seen.record.peer} was shown keys that device {device} did not send"
            yield found("keys.substituted", detail, [seen.place])
        for seen in session.exchanged:
            detail = f"device {seen.record.peer} got a box that no device had sealed for it"
            yield found("boxes.exchanged", detail, [seen.place])
        if session.params.signed:
            for slot in session.slots.values():
                yield from _signatures(session, slot)


def _binding(session: SessionView, past: PastKeys) -> Iterator[Finding]:
    levels, params = session.levels, session.params
    place = session.announcements[0].place
    if (before := past.contexts.setdefault(params.context, place)) != place:
        detail = "model, settings and round are those of an earlier session"
        yield found("session.twice", detail, [place, before])
    if session.context is not None and session.context != params.context:
        yield found("session.unbound", "its context is another than that of its model", [place])
    elif levels is not None and (
        params.slots != levels.slots() or params.num_invited != levels.common.cohort_size
    ):
        yield found("session.unbound", "its slots are not those of its round", [place])


def _advertised(session: SessionView, past: PastKeys) -> Iterator[Finding]:
    for seen in session.repeated:
        detail = f"device {seen.record.peer} advertised other keys before"
        yield found("keys.twice", detail, [seen.place])
    for device, message, seen in session.advertised():
        past.add(device, message, seen.place)
        if any(keys.is_low_order(key) for key in (message.sealing_key, *message.mask_keys)):
            yield found("keys.low-order", f"device {device} sent such a key", [seen.place])
        if message.credential is None:
            continue
        identity, signature = message.credential.identity, message.credential.signature
        statement = signing.advertisement(
            session.params, ClientId(device), message.sealing_key, message.mask_keys
        )
        if not verify(identity, statement, signature):
            detail = f"device {device}'s signature of its keys does not hold"
            yield found("keys.bad-signature", detail, [seen.place])
        before, place = past.identities.setdefault(device, (identity, seen.place))
        if before != identity:
            past.identities[device] = identity, seen.place
            detail, severity = f"device {device} has another key than before", None
            if device in past.unseen:
                detail, severity = f"{detail}; the run was interrupted meanwhile", Severity.LOW
            yield found("keys.identity-changed", detail, [seen.place, place], severity)
        past.unseen.discard(device)


def _signatures(session: SessionView, slot: SlotView) -> Iterator[Finding]:
    context = session.slot_context(slot)
    told = {seen.record.peer: seen.content.members for seen in slot.checks}
    for seen in slot.signatures:
        device, message = seen.record.peer, seen.content.message
        advertised = session.advertisements.get(device)
        keys_of = advertised.content.message if advertised else None
        survivors = told.get(device)
        if (
            context is None
            or survivors is None
            or not isinstance(message, ConsistencySignature)
            or not isinstance(keys_of, AdvertiseKeys)
        ):
            continue
        statement = signing.survivors(context, survivors, keys_of.sealing_key)
        if not verify(present(keys_of.credential).identity, statement, message.signature):
            detail = f"device {device}'s signature of the survivors of slot {slot.index} is wrong"
            yield found("keys.bad-signature", detail, [seen.place])
