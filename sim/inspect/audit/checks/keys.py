"""Are keys new, unchanged and signed? Are sessions bound to what was announced?"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from deltafl.secagg import keys
from deltafl.secagg.errors import present
from deltafl.secagg.graph import Members
from deltafl.secagg.identity import verify
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencySignature,
    OpenSlot,
    ShareReceipt,
    UnmaskRequest,
)
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.proved import proofs
from deltafl.sim.inspect.audit.rules import A1, A3, A6, A8, A20, A23, Rule, Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.statements import (
    Signed,
    advertised,
    keys_of,
    of_commitments,
    of_list,
    of_lists,
)
from deltafl.sim.inspect.audit.views import RoundView, SessionView, SlotView
from deltafl.sim.record.transcript import Record, Resumed

_KEY_WORD = np.dtype("<u8")

RULES: Final = Rules(
    {
        "keys.substituted": Rule(
            Severity.HIGH,
            "a device's keys were replaced on the way",
            "Whoever replaced them can read the shares that were sealed with the new keys, and "
            "compute the masks.",
            "Sign sessions with identities that the server does not choose.",
            A3,
        ),
        "keys.twice": Rule(
            Severity.MEDIUM,
            "a device advertised two sets of keys",
            "The server can choose which of the two it shows to other devices.",
            "Advertise keys once, and repeat them only byte for byte.",
            A3,
        ),
        "keys.reused": Rule(
            Severity.HIGH,
            "a public key was used twice",
            "Masks under one key pair repeat, and the difference of two vectors is the "
            "difference of their inputs.",
            "Draw new keys for every slot of every session.",
            A6,
        ),
        "keys.low-order": Rule(
            Severity.HIGH,
            "a public key is of low order",
            "Anybody can compute the secrets that are agreed with it.",
            "Refuse such keys, as this protocol's devices and server do.",
            A23,
        ),
        "keys.unsigned": Rule(
            Severity.HIGH,
            "sessions are not signed although the server may be active",
            "Devices cannot tell whose keys they use, or whether all were told the same survivors.",
            'Set `privacy.adversary = "active"` or `privacy.signed = true`.',
            A3,
        ),
        "keys.bad-signature": Rule(
            Severity.HIGH,
            "a signature is invalid",
            "Nothing proves that keys or lists come from the device that is said to have sent "
            "them.",
            "Find out whether the device or the server made it.",
            A3,
        ),
        "keys.identity-changed": Rule(
            Severity.HIGH,
            "a device's identity key changed between sessions",
            "Somebody else may have spoken for the device since then.",
            "Compare fingerprints with the device's owner.",
            A3,
        ),
        "lists.no-quorum": Rule(
            Severity.HIGH,
            "devices were told a list that too few devices had signed",
            "Without enough signatures of one list, the server can tell every device another one.",
            "Keep using devices that count signatures, and stop using this server.",
            A1,
        ),
        "lists.strange-signature": Rule(
            Severity.HIGH,
            "a list was shown with a signature that its device did not send",
            "The server made it, so it has the device's identity; or a message is missing from the "
            "record.",
            "Find out who has the device's secret key. Give the device another identity.",
            A1,
        ),
        "boxes.exchanged": Rule(
            Severity.MEDIUM,
            "sealed shares did not arrive as they were sent",
            "Devices refuse a box that was changed. A device whose shares are missing is easier "
            "to isolate.",
            "Find out whether the network or the server changed them.",
            A3,
        ),
        "session.reused": Rule(
            Severity.HIGH,
            "the parameters of a session were used twice",
            "Masks are bound to the session. In two equal sessions, masks can be made equal.",
            "Draw a new graph seed for every session; keep the devices' ledgers.",
            A6,
        ),
        "session.twice": Rule(
            Severity.HIGH,
            "one round was announced in two sessions",
            "Two sums of the same inputs over different devices differ by the inputs of the "
            "devices that are in only one of them.",
            "Keep the devices' ledgers. With them, devices refuse a round that they have already "
            "taken part in.",
            A20,
        ),
        "session.unbound": Rule(
            Severity.HIGH,
            "a session is not bound to the model and settings that it was announced with",
            "Devices cannot tell whether all were shown the same model.",
            "Keep using devices that check the binding, and stop using this server.",
            A8,
        ),
    }
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
    """Looks at the keys, signatures and bindings of every session."""

    name = "keys, signatures, bindings"
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
            yield from _invalid(advertised(session))
            yield from _relayed(session)
            if session.params.signed:
                proved = {proof.slot.index for proof in proofs(session)}
                for slot in session.slots.values():
                    yield from _invalid(of_lists(session, slot))
                    if slot.index not in proved:  # a proof is examined with its signatures
                        yield from _invalid(of_commitments(session, slot))
                    yield from _strange_signatures(session, slot)
                yield from _quorums(session)

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


def _relayed(session: SessionView) -> Iterator[Finding]:
    """Keys and boxes that are not what was sent."""
    for seen, device in session.substituted:
        detail = f"device {seen.record.peer} was shown keys that device {device} did not send"
        yield RULES.found("keys.substituted", detail, [seen.place])
    for seen in session.exchanged:
        detail = f"device {seen.record.peer} got a box that no device had sealed for it"
        yield RULES.found("boxes.exchanged", detail, [seen.place])


def _binding(session: SessionView, past: PastKeys) -> Iterator[Finding]:
    levels, params = session.levels, session.params
    place = session.announcements[0].place
    if (before := past.contexts.setdefault(params.context, place)) != place:
        detail = "model, settings and round are those of an earlier session"
        yield RULES.found("session.twice", detail, [place, before])
    if session.context is not None and session.context != params.context:
        yield RULES.found("session.unbound", "its context is not that of its model", [place])
    elif levels is not None and (
        params.slots != levels.slots() or params.num_invited != levels.common.cohort_size
    ):
        yield RULES.found("session.unbound", "its slots are not those of its round", [place])


def _advertised(session: SessionView, past: PastKeys) -> Iterator[Finding]:
    for seen in session.repeated:
        detail = f"device {seen.record.peer} advertised other keys before"
        yield RULES.found("keys.twice", detail, [seen.place])
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


def _invalid(signed: Iterable[Signed]) -> Iterator[Finding]:
    for one in signed:
        if one.statement is not None and not verify(one.identity, one.statement, one.signature):
            detail = f"device {one.device}'s signature of {one.what} is invalid"
            yield RULES.found("keys.bad-signature", detail, [one.place])


def _quorums(session: SessionView) -> Iterator[Finding]:
    """Lists that were acted on although too few holders of a device's shares had signed them."""
    agreed = False
    for _, slot in sorted(session.slots.items()):
        if slot.index >= len(session.params.slots):
            continue
        if not session.is_whole_slot(slot):
            yield from _without_quorum(session, slot, slot.requests)
            agreed = agreed or bool(slot.requests)
        elif not agreed and slot.opened:
            yield from _without_quorum(session, slot, slot.opened)
            agreed = True


def _identity_at(session: SessionView, device: int) -> bytes:
    """A device's identity; where it is not known, something else that is its own."""
    known = keys_of(session, device)
    return present(known.credential).identity if known else device.to_bytes(4, "little")


def _refused(session: SessionView) -> dict[int, frozenset[int]]:
    """Whose boxes devices could not read, by device and roster position."""
    return {
        seen.record.peer: frozenset(seen.content.message.refused)
        for seen in session.receipts
        if isinstance(seen.content.message, ShareReceipt)
    }


def _strange_signatures(session: SessionView, slot: SlotView) -> Iterator[Finding]:
    """Signatures that are shown with a list of a slot, and did not come from their device."""
    came: dict[int, set[bytes]] = {}
    for seen in slot.signatures:
        if isinstance(seen.content.message, ConsistencySignature):
            came.setdefault(seen.record.peer, set()).add(bytes(seen.content.message.signature))
    ids = session.ids.tolist()
    for seen in (*slot.opened, *slot.requests):
        message = seen.content.message
        if not isinstance(message, OpenSlot | UnmaskRequest):
            continue
        for position, signature in message.signatures.items():
            device = ids[position] if position < len(ids) else -1
            if bytes(signature) not in came.get(device, set()):
                detail = f"slot {slot.index}: a signature of device {device}"
                yield RULES.found("lists.strange-signature", detail, [seen.place])
                break


def _without_quorum(
    session: SessionView, slot: SlotView, told: Sequence[Seen]
) -> Iterator[Finding]:
    """Messages with a list of a slot that have too few valid signatures of it.

    Those count of devices in the list that hold shares of the recipient's secrets, and whose box
    the recipient could read; and only once for each identity. If the transcript does not keep what
    was signed, they are only counted.
    """
    graph, positions, ids = session.graph, session.positions, session.ids.tolist()
    refused = _refused(session)
    known: dict[tuple[int, bytes, bytes], bool] = {}

    def is_valid(position: int, listed: Members, signature: bytes) -> bool:
        at = position, listed.tobytes(), bytes(signature)
        if at not in known:
            own = keys_of(session, ids[position])
            statement = own and of_list(session, slot, listed, own.sealing_key)
            known[at] = bool(
                own
                and statement
                and verify(present(own.credential).identity, statement, bytes(signature))
            )
        return known[at]

    short = []
    for seen in told:
        message, own = seen.content.message, positions.get(seen.record.peer)
        listed = seen.content.members
        if not isinstance(message, OpenSlot | UnmaskRequest) or own is None or listed is None:
            continue
        holders = set(graph.holders_of(own).tolist())
        holders -= refused.get(seen.record.peer, frozenset())
        signers = [
            position
            for position, signature in message.signatures.items()
            if position in holders
            and position < len(listed)
            and listed[position]
            and (not session.is_whole or is_valid(position, listed, signature))
        ]
        count = len({_identity_at(session, ids[position]) for position in signers})
        if count < session.params.threshold:
            short.append((seen, count))
    if short:
        seen, count = short[0]
        detail = (
            f"slot {slot.index}: {len(short)} devices, such as {seen.record.peer}, were shown "
            f"fewer than {session.params.threshold} valid signatures, such as {count}"
        )
        yield RULES.found("lists.no-quorum", detail, [one.place for one, _ in short])
