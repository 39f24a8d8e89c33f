"""What devices signed: every signature that came in a session, and the message it must be of."""

from collections.abc import Iterator
from dataclasses import dataclass

from deltafl.secagg import openings, pedersen, signing
from deltafl.secagg.errors import present
from deltafl.secagg.graph import Members
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.messages import AdvertiseKeys, ConsistencySignature
from deltafl.secagg.params import ClientId
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.views import SessionView, SlotView


@dataclass(frozen=True, slots=True)
class Signed:
    """A signature of a device.

    Attributes:
        device: Whose.
        what: What was signed, in words.
        identity: The device's, 32 bytes.
        statement: What must be signed; None where it is not known.
        signature: 64 bytes.
        place: Where it came.
    """

    device: int
    what: str
    identity: bytes
    statement: bytes | None
    signature: bytes
    place: Evidence


def advertised(session: SessionView) -> Iterator[Signed]:
    """The signatures of keys."""
    for device, message, seen in session.advertised():
        if message.credential is not None:
            statement = signing.advertisement(
                session.params, ClientId(device), message.sealing_key, message.mask_keys
            )
            own = message.credential
            yield Signed(
                device, "keys", bytes(own.identity), statement, bytes(own.signature), seen.place
            )


def of_lists(session: SessionView, slot: SlotView) -> Iterator[Signed]:
    """The signatures of lists of devices, of devices whose keys are known."""
    told = {seen.record.peer: seen.content.members for seen in slot.checks}
    what = f"the {'members' if session.is_whole_slot(slot) else 'survivors'} of slot {slot.index}"
    for seen in slot.signatures:
        device, message = seen.record.peer, seen.content.message
        listed, keys = told.get(device), keys_of(session, device)
        if keys is None or not isinstance(message, ConsistencySignature):
            continue
        statement = None
        if listed is not None:
            statement = of_list(session, slot, listed, keys.sealing_key)
        identity = bytes(present(keys.credential).identity)
        yield Signed(device, what, identity, statement, bytes(message.signature), seen.place)


def of_commitments(session: SessionView, slot: SlotView) -> Iterator[Signed]:
    """The signatures of commitments to answers, of devices whose keys are known."""
    places = {seen.record.peer: seen.place for seen in reversed(slot.inputs)}
    context = session.slot_context(slot) if slot.committed else None
    for device, committed in slot.committed.items():
        keys = keys_of(session, device)
        if keys is None:
            continue
        commitment = committed[: pedersen.COMMITMENT_SIZE]
        statement = None
        if context is not None:
            statement = openings.statement(context, commitment, keys.sealing_key)
        yield Signed(
            device,
            f"the commitment in slot {slot.index}",
            bytes(present(keys.credential).identity),
            statement,
            committed[pedersen.COMMITMENT_SIZE :],
            places[device],
        )


def keys_of(session: SessionView, device: int) -> AdvertiseKeys | None:
    """The signed keys that a device sent; None where they are not known."""
    seen = session.advertisements.get(device)
    message = seen.content.message if seen else None
    is_known = isinstance(message, AdvertiseKeys) and message.credential is not None
    return message if isinstance(message, AdvertiseKeys) and is_known else None


def of_list(
    session: SessionView, slot: SlotView, listed: Members, sealing_key: PublicKey
) -> bytes | None:
    """What a device signs when it is sent a list; None where it is not known."""
    if session.is_whole_slot(slot):
        return signing.members(session.session_id, slot.index, listed, sealing_key)
    context = session.slot_context(slot)
    return None if context is None else signing.survivors(context, listed, sealing_key)
