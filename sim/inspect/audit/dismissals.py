"""Whom an honest server drops at a step, worked out from the record by the server's own rules.

A server may go on without a device that answered only if what the device sent makes it leave, or
if the receipts do. Both follow from the messages, so every other device that is missing was left
out by choice. A message that is not kept whole cannot be judged; it counts as a reason to drop its
sender only where nothing else is known of it.

Spec: §10.2 to §10.11.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from deltafl.secagg import keys, openings, signing, survival
from deltafl.secagg import wire as session_wire
from deltafl.secagg.graph import Members, without_isolated
from deltafl.secagg.identity import verify
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencySignature,
    ShareKind,
    ShareReceipt,
    UnmaskShares,
)
from deltafl.secagg.params import ClientId, SessionParams
from deltafl.secagg.signing import Signer
from deltafl.secagg.states import Stage, Step
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.steps import SessionStep
from deltafl.sim.inspect.audit.views import SessionView, SlotView, contributors
from deltafl.sim.inspect.audit.votes import unproved

_KINDS: Final = {
    "keys": Kind.ADVERTISE,
    "sealed shares": Kind.SHARE_KEYS,
    "receipts": Kind.RECEIPT,
    "vectors": Kind.MASKED,
    "signatures": Kind.SIGNATURE,
    "shares": Kind.SHARES,
}
_STAGES: Final = {
    Kind.ADVERTISE: Stage.ADVERTISE,
    Kind.SHARE_KEYS: Stage.SHARE,
    Kind.RECEIPT: Stage.RECEIPT,
    Kind.MASKED: Stage.MASK,
    Kind.SHARES: Stage.UNMASK,
}


@dataclass(slots=True)
class Said:
    """What a device said at a step, as an honest server takes it.

    Attributes:
        taken: The answer that the server takes; None if there is none.
        is_out: Whether the server drops the device for what it said.
        is_strange: Whether something was no message of the protocol.
    """

    taken: Seen | None = None
    is_out: bool = False
    is_strange: bool = False


def said_at(
    session: SessionView, strange: Iterable[Seen], step: SessionStep, before: int
) -> dict[int, Said]:
    """What devices said at a step, in any order of devices. Spec: §10.2.

    Args:
        session: The session.
        strange: The messages of the round that do not belong to the protocol.
        step: A step of the session.
        before: Number of the record at which the next step begins.
    """
    every = (
        seen
        for seen in (*session.said, *strange)
        if step.begins < seen.record.number < before and not seen.record.sent
    )
    found: dict[int, Said] = {}
    for seen in sorted(every, key=lambda one: one.record.number):
        _take(session, step, seen, found.setdefault(seen.record.peer, Said()))
    return found


def _take(session: SessionView, step: SessionStep, seen: Seen, said: Said) -> None:
    """Take one message as a server does that has taken the ones before."""
    if seen.content.problem:
        said.is_strange = True
        said.is_out |= session_wire.tag_of(seen.content.data) in (None, session.params.tag)
        return
    if said.is_out or (said.taken and said.taken.record.sha256 == seen.record.sha256):
        return
    kind, index = seen.content.kind, step.slot.index if step.slot is not None else None
    if (kind, seen.content.slot) != (_KINDS[step.asks], index):
        now = _order(session.params, _KINDS[step.asks], index)
        said.is_out = _order(session.params, kind, seen.content.slot) >= now
    elif said.taken is not None or is_at_fault(session, step, seen):
        said.is_out = True
    else:
        said.taken = seen


def _order(params: SessionParams, kind: Kind | None, slot: int | None) -> tuple[int, int, int]:
    """When a message is due."""
    at = slot or 0
    if kind is Kind.SIGNATURE:
        return Step(Stage.LIST if params.slots[at].whole else Stage.CONFIRM, at).order
    return Step(_STAGES[kind], at).order if kind in _STAGES else (2, 0, 0)


def is_at_fault(session: SessionView, step: SessionStep, answer: Seen) -> bool:
    """Whether a server drops the device for its answer alone, or whether that is not known."""
    message, device = answer.content.message, answer.record.peer
    match step.asks:
        case "keys":
            return not isinstance(message, AdvertiseKeys) or _has_bad_keys(session, answer, message)
        case "sealed shares":
            return device in session.sealed and not _is_for_all_neighbours(session, device)
        case "receipts":
            return isinstance(message, ShareReceipt) and not _may_refuse(
                session, step, device, message
            )
        case "signatures":
            return not isinstance(message, ConsistencySignature) or not _is_signed(
                session, step, device, message
            )
        case "vectors":
            return step.slot is not None and _has_bad_commitment(session, step.slot, device)
        case _:
            return False


def _has_bad_keys(session: SessionView, answer: Seen, message: AdvertiseKeys) -> bool:
    own = [keys.canonical(key) for key in (message.sealing_key, *message.mask_keys)]
    earlier = {
        keys.canonical(key)
        for _, theirs, seen in session.advertised()
        if seen.record.number < answer.record.number
        for key in (theirs.sealing_key, *theirs.mask_keys)
    }
    if len(set(own)) < len(own) or earlier & set(own) or any(map(keys.is_low_order, own)):
        return True
    if message.credential is None:
        return session.params.signed
    statement = signing.advertisement(
        session.params, ClientId(answer.record.peer), message.sealing_key, message.mask_keys
    )
    return not verify(message.credential.identity, statement, message.credential.signature)


def _is_for_all_neighbours(session: SessionView, device: int) -> bool:
    at = session.positions.get(device)
    return at is None or set(session.sealed[device]) == set(session.graph.neighbours(at).tolist())


def _may_refuse(
    session: SessionView, step: SessionStep, device: int, message: ShareReceipt
) -> bool:
    """Whether a receipt names only neighbours whose boxes were delivered."""
    at = session.positions.get(device)
    if at is None or step.listed is None:
        return True
    near = set(session.graph.neighbours(at).tolist())
    delivered = {session.positions.get(one) for one in step.listed}
    return set(message.refused) <= near & delivered


def _is_signed(
    session: SessionView, step: SessionStep, device: int, message: ConsistencySignature
) -> bool:
    seen = session.advertisements.get(device)
    own = seen.content.message if seen is not None else None
    members = next((s.content.members for s in step.sent if s.record.peer == device), None)
    if not isinstance(own, AdvertiseKeys) or own.credential is None or members is None:
        return False
    if step.slot is None:
        return False
    statement = _statement(session, step.slot, members, own)
    return statement is not None and verify(own.credential.identity, statement, message.signature)


def _statement(
    session: SessionView, slot: SlotView, members: Members, own: AdvertiseKeys
) -> bytes | None:
    if session.is_whole_slot(slot):
        return signing.members(session.session_id, slot.index, members, own.sealing_key)
    context = session.slot_context(slot)
    return None if context is None else signing.survivors(context, members, own.sealing_key)


def _has_bad_commitment(session: SessionView, slot: SlotView, device: int) -> bool:
    """Whether a vector has a commitment that a server refuses, or one that is not known."""
    if not session.params.slots[slot.index].verified:
        return False
    committed, context = slot.committed.get(device), session.slot_context(slot)
    seen = session.advertisements.get(device)
    own = seen.content.message if seen is not None else None
    if committed is None or context is None or not isinstance(own, AdvertiseKeys):
        return True
    if own.credential is None:
        return True
    signer = Signer(own.credential.identity, own.sealing_key)
    if not (openings.is_signed(context, signer, committed) and openings.is_point(committed)):
        return True
    return slot.index in unproved(session, device)


def are_as_asked(session: SessionView, seen: Seen) -> bool:
    """Whether shares are those that their sender was asked for; True where that is not known.

    Args:
        session: The session, up to the message.
        seen: A message, with its shares.
    """
    message, at = seen.content.message, session.positions.get(seen.record.peer)
    if not isinstance(message, UnmaskShares) or at is None:
        return True
    slot = session.slots[message.slot]
    members, survivors, refusals = slot.members, slot.survivors, refusals_of(session)
    if members is None or survivors is None or refusals is None:
        return True
    if not len(members) == len(survivors) == len(session.ids):
        return True
    owners = session.graph.holders_of(at)
    due = owners[members[owners] & ~np.isin(owners, list(refusals.get(at, frozenset())))]
    kinds = np.where(survivors[due], ShareKind.SEED, ShareKind.KEY)
    return np.array_equal(message.positions, due) and np.array_equal(message.kinds, kinds)


def who_leaves(
    session: SessionView, step: SessionStep, following: SessionStep, devices: frozenset[int]
) -> frozenset[int]:
    """Of the devices that answered, those that leave between two steps. Spec: §10.6, §10.11.

    All of them, if a receipt is not kept whole: then the complaints are not known.

    Args:
        session: The session.
        step: The step that was answered.
        following: The next step.
        devices: Those that are left after it.
    """
    if not _is_settled(session, step, following):
        return frozenset()
    refusals = refusals_of(session) if following.asks != "receipts" else {}
    if refusals is None:
        return devices
    graph, threshold, positions = session.graph, session.params.threshold, session.positions
    left = np.zeros(len(session.ids), dtype=np.bool_)
    left[[positions[device] for device in devices if device in positions]] = True
    first = left.copy()
    if step.asks != "receipts":  # complaints are judged as soon as all receipts are in
        left = without_isolated(graph, left, threshold)
    while True:
        blamed = list(survival.judge(graph, left, refusals, threshold))
        left[blamed] = False
        left, before = without_isolated(graph, left, threshold), left
        if not blamed and left.sum() == before.sum():
            return frozenset(contributors(session, first & ~left))


def _is_settled(session: SessionView, step: SessionStep, following: SessionStep) -> bool:
    """Whether devices that are isolated or blamed leave before a step: if it makes a new list."""
    if following.asks == "receipts":
        return True
    slot = following.slot
    if slot is None or slot is step.slot or following.asks == "shares":
        return False
    return not (session.is_whole_slot(slot) and _is_agreed(session, slot.index))


def _is_agreed(session: SessionView, before: int) -> bool:
    """Whether there is an agreed list when a slot is opened. Spec: §10.7."""
    return any(
        bool(slot.opened or slot.checks) if session.is_whole_slot(slot) else bool(slot.sums)
        for index, slot in session.slots.items()
        if index < before
    )


def refusals_of(session: SessionView) -> dict[int, frozenset[int]] | None:
    """Whose boxes each device refused, by position; None if a receipt is not kept whole."""
    found: dict[int, frozenset[int]] = {}
    for seen in session.receipts:
        if not isinstance(seen.content.message, ShareReceipt):
            return None
        at = session.positions.get(seen.record.peer)
        if at is not None:
            inside = (p for p in seen.content.message.refused if p < len(session.ids))
            found.setdefault(at, frozenset(inside))
    return found


def closings(
    answers: Sequence[tuple[int, int]], counted: frozenset[int]
) -> Iterator[frozenset[int]]:
    """The devices that had answered when a step was closed, for every place where it may have been.

    The record does not say where. It was not before the last answer that was counted.

    Args:
        answers: Number of the record and device of the answers that were taken.
        counted: The devices that the server went on with.

    >>> [sorted(devices) for devices in closings([(4, 8), (5, 7), (6, 9)], frozenset({7}))]
    [[7, 8], [7, 8, 9]]
    """
    last = max((number for number, device in answers if device in counted), default=-1)
    kept = counted | {device for number, device in answers if number <= last}
    yield kept
    for number, device in sorted(answers):
        if number > last:
            kept |= {device}
            yield kept
