"""Canonical bytes of the messages: a flat msgpack array of integers and byte strings.

Contract: decode(encode(m)) == m; encode(decode(b)) == b for every accepted b; any other b raises
`DecodeError` and nothing else. The first elements are version, kind and session tag. Lists are byte
strings of fixed-size records, so there is no nesting to abuse. The session's parameters bound every
size before anything is allocated.

Spec: §7, §8.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from typing import Final

import numpy as np

from deltafl.secagg import keys, links, ring, shamir
from deltafl.secagg.codec import FieldReader, Records, Value, read_fields, record_size, write_fields
from deltafl.secagg.errors import DecodeError, UsageError
from deltafl.secagg.graph import Members
from deltafl.secagg.identity import IDENTITY_SIZE, SIGNATURE_SIZE, IdentityKey
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.labels import VERSION
from deltafl.secagg.messages import (
    SHARES_PER_SLOT,
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    Credential,
    MaskedInput,
    Message,
    OpenSlot,
    Roster,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareKind,
    ShareReceipt,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.openings import COMMITTED_SIZE
from deltafl.secagg.params import (
    DIGEST_SIZE,
    MAX_LABEL_BYTES,
    MAX_LENGTH,
    MAX_PROOF_BYTES,
    MAX_SLOTS,
    TAG_SIZE,
    SessionParams,
    SlotSpec,
)

_Fields = Sequence[Value]

MAX_OPEN_BYTES: Final = 1 << 20
"""Longest SessionOpen that a device reads: the only bound it has before it has the parameters."""


class Kind(IntEnum):
    """The kind of a message. An answer's kind is the kind it answers plus 0x10. Spec: §7.3."""

    OPEN = 0x01
    ROSTER = 0x02
    DELIVERY = 0x03
    SLOT = 0x04
    CHECK = 0x05
    REQUEST = 0x06
    OPENING = 0x07
    ADVERTISE = 0x11
    SHARE_KEYS = 0x12
    RECEIPT = 0x13
    MASKED = 0x14
    SIGNATURE = 0x15
    SHARES = 0x16


_OVERHEAD: Final = 64  # array header, version, kind, tag, and the header of each field
_MAX_FIELDS: Final = 12
_POSITION: Final = np.dtype("<u4")
_SHARE: Final = np.dtype([("position", "<u4"), ("kind", "u1"), ("share", "<u4", shamir.NUM_LIMBS)])
_SLOT_FIELDS: Final = 5
ADVERTISEMENT_SIZE: Final = keys.KEY_SIZE + IDENTITY_SIZE + SIGNATURE_SIZE


def plaintext_size(params: SessionParams) -> int:
    """Bytes of a box's content: half of the link, and both shares of every tolerant slot.

    Spec: §8.8.
    """
    return links.HALF_SIZE + SHARES_PER_SLOT * shamir.SHARE_SIZE * len(params.columns)


def box_size(params: SessionParams) -> int:
    """Bytes of one sealed box: 1168 + 72·(tolerant slots). Spec: §7.4."""
    return keys.OVERHEAD + plaintext_size(params)


def receipt_size(params: SessionParams) -> int:
    """Bytes of what a receipt says of one link. Spec: §8.9."""
    return 2 * links.TAG_SIZE + (links.TAG_SIZE + DIGEST_SIZE) * len(params.columns)


def tag_of(data: bytes) -> bytes | None:
    """The session tag of a message, or None if it has none; cheap, and it trusts nothing.

    Spec: §7.3.
    """
    tag = data[5 : 5 + TAG_SIZE]
    return tag if data[3:5] == b"\xc4\x10" and len(tag) == TAG_SIZE else None


def encode(message: Message, params: SessionParams) -> bytes:
    """The canonical bytes of a message of a session."""
    kind, fields = _to_fields(message, params)
    return write_fields([VERSION, kind, params.tag, *fields])


def encode_roster(roster: Roster, advertised: Records, params: SessionParams) -> bytes:
    """The bytes of a `RosterMessage`, from advertisements that are already encoded.

    Args:
        roster: Ids of all devices, ascending; uint32.
        advertised: The `advertisement` of each of the recipient's neighbours.
        params: The session's parameters.
    """
    return write_fields([VERSION, Kind.ROSTER, params.tag, *_roster_fields(roster, advertised)])


def decode(data: bytes, params: SessionParams) -> Message:
    """Parse exactly one message of a session.

    Raises:
        DecodeError: unknown version or kind, another session's tag, short, long, oversized or
            non-canonical input, or a value out of its range.
    """
    if len(data) > max_bytes(params):
        raise DecodeError(f"{len(data)} bytes: a message of this session has fewer")
    kind, tag, fields = _parse(data)
    if tag != params.tag:
        raise DecodeError("the message belongs to another session")
    reader = _READERS.get(kind)
    if reader is None:
        raise DecodeError(f"unknown message kind {kind}")
    message = reader(fields, params)
    fields.finish()
    return message


@lru_cache(maxsize=64)
def reader(params: SessionParams) -> Callable[[bytes], Message]:
    """`decode` for the messages of one session; the same function for equal parameters."""
    return partial(decode, params=params)


def decode_open(data: bytes) -> SessionOpen:
    """Parse the message that opens a session, before anything about the session is known.

    Spec: §8.1.

    Raises:
        DecodeError: as `decode`; also if the tag does not match the parameters.
    """
    if len(data) > MAX_OPEN_BYTES:
        raise DecodeError(f"{len(data)} bytes: an opening message has at most {MAX_OPEN_BYTES}")
    kind, _, fields = _parse(data)
    if kind != Kind.OPEN:
        raise DecodeError(f"message kind {kind} does not open a session")
    message = _open_from_fields(fields)
    fields.finish()
    if encode(message, message.params) != data:
        raise DecodeError("the encoding is not canonical, or its tag not that of the parameters")
    return message


def _to_fields(message: Message, params: SessionParams) -> tuple[int, _Fields]:
    match message:
        case SessionOpen():
            return Kind.OPEN, _open_to_fields(message)
        case RosterMessage():
            advertised = Records.of(
                {p: advertisement(own) for p, own in message.keys.items()}, ADVERTISEMENT_SIZE
            )
            return Kind.ROSTER, _roster_fields(message.roster, advertised)
        case ShareDelivery():
            return Kind.DELIVERY, (
                *_members_fields(message.members),
                _boxes_field(message.boxes, params),
            )
        case OpenSlot():
            tags = Records.of(message.tags, links.TAG_SIZE).encode()
            return Kind.SLOT, (message.slot, *_members_fields(message.members), tags)
        case ConsistencyCheck():
            return Kind.CHECK, (message.slot, *_members_fields(message.survivors))
        case UnmaskRequest():
            signatures = Records.of(message.signatures, SIGNATURE_SIZE).encode()
            return Kind.REQUEST, (message.slot, *_members_fields(message.survivors), signatures)
        case SumOpening():
            committed = Records.of(message.committed, COMMITTED_SIZE).encode()
            return Kind.OPENING, (message.slot, message.packed, committed)
        case AdvertiseKeys():
            return Kind.ADVERTISE, (advertisement(message),)
        case ShareKeys():
            boxes = _boxes_field(message.boxes, params)
            return Kind.SHARE_KEYS, (b"".join(message.commitments), boxes)
        case ShareReceipt():
            return Kind.RECEIPT, (Records.of(message.links, receipt_size(params)).encode(),)
        case MaskedInput():
            committed = bytes(message.committed) + bytes(message.proof)
            return Kind.MASKED, (message.slot, message.packed, committed)
        case ConsistencySignature():
            return Kind.SIGNATURE, (message.slot, message.signature)
        case UnmaskShares():
            return Kind.SHARES, _shares_to_fields(message)


def max_bytes(params: SessionParams) -> int:
    """Upper bound on the size of a message of a session, in bytes. Spec: §7.2."""
    num_slots, num_devices = len(params.columns), params.num_invited
    largest = max(
        ADVERTISEMENT_SIZE, box_size(params), receipt_size(params), COMMITTED_SIZE, _SHARE.itemsize
    )
    lists = num_devices * (_POSITION.itemsize + record_size(largest)) + 2 * DIGEST_SIZE * num_slots
    return _OVERHEAD + params.longest_vector + params.longest_proof + max(lists, MAX_OPEN_BYTES)


def _parse(data: bytes) -> tuple[int, bytes, FieldReader]:
    """Kind, tag, and the fields that follow."""
    reader = FieldReader(read_fields(data, most=_MAX_FIELDS))
    reader.integer(VERSION, VERSION)
    return reader.integer(0, 0x7F), reader.binary(TAG_SIZE), reader


def _open_to_fields(message: SessionOpen) -> _Fields:
    params = message.params
    slots = write_fields([part for slot in params.slots for part in _slot_to_fields(slot)])
    return (
        slots,
        params.num_invited,
        params.degree,
        params.threshold,
        params.min_cohort,
        params.graph_seed,
        params.context,
        params.min_roster,
    )


def _slot_to_fields(slot: SlotSpec) -> _Fields:
    kind = (int(slot.whole), slot.assurance)
    return (slot.label.encode(), slot.length, slot.ring_bits, *kind)


def _open_from_fields(fields: FieldReader) -> SessionOpen:
    packed = fields.records(1, most=MAX_OPEN_BYTES)
    num_invited, degree = fields.integer(0, 2**32 - 1), fields.integer(0, 2**32 - 1)
    threshold, min_cohort = fields.integer(0, 2**32 - 1), fields.integer(0, 2**32 - 1)
    graph_seed, context = fields.binary(DIGEST_SIZE), fields.binary(DIGEST_SIZE)
    min_roster = fields.integer(0, 2**32 - 1)
    slots = read_fields(packed, most=_SLOT_FIELDS * MAX_SLOTS)
    if len(slots) % _SLOT_FIELDS:
        raise DecodeError("not a list of slots: five fields each")
    specs = []
    for start in range(0, len(slots), _SLOT_FIELDS):
        reader = FieldReader(slots[start : start + _SLOT_FIELDS])
        label = reader.records(1, most=MAX_LABEL_BYTES)
        length, bits = reader.integer(1, MAX_LENGTH), reader.integer(1, ring.MAX_BITS)
        whole, assurance = bool(reader.integer(0, 1)), reader.integer(0, 1 + MAX_PROOF_BYTES)
        kind = (whole, assurance > 0, max(assurance - 1, 0))
        try:
            specs.append(SlotSpec(label.decode(), length, bits, *kind))
        except (UsageError, UnicodeDecodeError) as error:
            raise DecodeError(f"impossible slot: {error}") from None
    try:
        return SessionOpen(
            SessionParams(
                tuple(specs),
                num_invited,
                degree,
                threshold,
                min_cohort,
                graph_seed,
                context,
                min_roster,
            )
        )
    except UsageError as error:
        raise DecodeError(f"impossible parameters: {error}") from None


def _reopen_from_fields(fields: FieldReader, params: SessionParams) -> SessionOpen:
    message = _open_from_fields(fields)
    if message.params.tag != params.tag:
        raise DecodeError("an opening under the tag of other parameters")
    return message


def _advertise_from_fields(fields: FieldReader, params: SessionParams) -> AdvertiseKeys:
    del params
    return _read_advertisement(fields.binary(ADVERTISEMENT_SIZE))


def advertisement(message: AdvertiseKeys) -> bytes:
    """A device's key and credential as one string. Spec: §8.7."""
    return message.key + message.credential.identity + message.credential.signature


def _read_advertisement(data: bytes) -> AdvertiseKeys:
    key, credential = data[: keys.KEY_SIZE], data[keys.KEY_SIZE :]
    identity, signature = credential[:IDENTITY_SIZE], credential[IDENTITY_SIZE:]
    return AdvertiseKeys(PublicKey(key), Credential(IdentityKey(identity), signature))


def _roster_fields(roster: Roster, advertised: Records) -> _Fields:
    return (roster.astype(_POSITION).tobytes(), advertised.encode())


def _roster_from_fields(fields: FieldReader, params: SessionParams) -> RosterMessage:
    ids = fields.records(_POSITION.itemsize, most=params.num_invited)
    roster = np.frombuffer(ids, dtype=_POSITION).astype(np.uint32)
    if len(roster) < 1 or not (roster[1:] > roster[:-1]).all():
        raise DecodeError("the roster's ids do not ascend")
    advertised = _read_records(fields, ADVERTISEMENT_SIZE, params.num_invited)
    parsed = {position: _read_advertisement(data) for position, data in advertised.items()}
    return RosterMessage(roster, parsed)


def _share_from_fields(fields: FieldReader, params: SessionParams) -> ShareKeys:
    commitments = fields.binary(DIGEST_SIZE * SHARES_PER_SLOT * len(params.columns))
    boxes = _read_records(fields, box_size(params), params.num_invited)
    return ShareKeys(tuple(_cut(commitments, DIGEST_SIZE)), boxes)


def _delivery_from_fields(fields: FieldReader, params: SessionParams) -> ShareDelivery:
    members = _read_members(fields, params)
    boxes = _read_records(fields, box_size(params), params.num_invited)
    return ShareDelivery(members, boxes)


def _receipt_from_fields(fields: FieldReader, params: SessionParams) -> ShareReceipt:
    return ShareReceipt(_read_records(fields, receipt_size(params), params.num_invited))


def _slot_from_fields(fields: FieldReader, params: SessionParams) -> OpenSlot:
    slot, members = _read_slot(fields, params), _read_members(fields, params)
    return OpenSlot(slot, members, _read_records(fields, links.TAG_SIZE, params.num_invited))


def _masked_from_fields(fields: FieldReader, params: SessionParams) -> MaskedInput:
    slot = _read_slot(fields, params)
    spec = params.slots[slot]
    packed = _read_vector(fields, spec)
    committed = fields.binary(COMMITTED_SIZE + spec.proof_size if spec.verified else 0)
    return MaskedInput(slot, packed, committed[:COMMITTED_SIZE], committed[COMMITTED_SIZE:])


def _opening_from_fields(fields: FieldReader, params: SessionParams) -> SumOpening:
    slot = _read_slot(fields, params)
    spec = params.slots[slot]
    if not spec.verified:
        raise DecodeError(f"slot {slot} is not verified: its sum is not shown to devices")
    packed = _read_vector(fields, spec)
    committed = _read_records(fields, COMMITTED_SIZE, params.num_invited)
    return SumOpening(slot, packed, committed)


def _check_from_fields(fields: FieldReader, params: SessionParams) -> ConsistencyCheck:
    slot, survivors = _read_slot(fields, params), _read_members(fields, params)
    return ConsistencyCheck(slot, survivors)


def _signature_from_fields(fields: FieldReader, params: SessionParams) -> ConsistencySignature:
    slot, signature = _read_slot(fields, params), fields.binary(SIGNATURE_SIZE)
    return ConsistencySignature(slot, signature)


def _request_from_fields(fields: FieldReader, params: SessionParams) -> UnmaskRequest:
    slot, survivors = _read_slot(fields, params), _read_members(fields, params)
    signatures = _read_records(fields, SIGNATURE_SIZE, params.num_invited)
    return UnmaskRequest(slot, survivors, signatures)


def _shares_to_fields(message: UnmaskShares) -> _Fields:
    records = np.zeros(len(message.positions), dtype=_SHARE)
    records["position"] = message.positions
    records["kind"] = message.kinds
    records["share"] = message.shares
    return (message.slot, records.tobytes())


def _shares_from_fields(fields: FieldReader, params: SessionParams) -> UnmaskShares:
    slot = _read_slot(fields, params)
    data = fields.records(_SHARE.itemsize, most=params.num_invited)
    records = np.frombuffer(data, dtype=_SHARE)
    positions = records["position"].astype(np.uint32)
    kinds, shares = records["kind"].copy(), records["share"].astype(np.uint32)
    if not (positions[1:] > positions[:-1]).all():
        raise DecodeError("the positions of the shares do not ascend")
    if (kinds > max(ShareKind)).any() or (shares >= shamir.PRIME).any():
        raise DecodeError("a share of unknown kind, or with a limb outside the field")
    return UnmaskShares(slot, positions, kinds, shares)


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _boxes_field(boxes: Mapping[int, bytes], params: SessionParams) -> bytes:
    return Records.of(boxes, box_size(params)).encode()


def _read_records(fields: FieldReader, size: int, most: int) -> Records:
    """Byte strings of `size` bytes by position; the positions ascend."""
    return Records.decode(fields.records(record_size(size), most=most), size)


def _read_slot(fields: FieldReader, params: SessionParams) -> int:
    return fields.integer(0, len(params.slots) - 1)


def _read_vector(fields: FieldReader, spec: SlotSpec) -> bytes:
    """A packed vector of a slot, whose unused bits are zero."""
    packed = fields.binary(ring.packed_size(spec.wire_length, spec.ring_bits))
    ring.check_packed(packed, spec.wire_length, spec.ring_bits)
    return packed


def _members_fields(members: Members) -> _Fields:
    return (len(members), np.packbits(members, bitorder="little").tobytes())


def _read_members(fields: FieldReader, params: SessionParams) -> Members:
    """A set of devices: one bit per roster position, with the last byte padded with zeros.

    Spec: §1.3.
    """
    count = fields.integer(1, params.num_invited)
    bits = np.frombuffer(fields.binary(ring.packed_size(count, 1)), dtype=np.uint8)
    if count % 8 and bits[-1] >> (count % 8):
        raise DecodeError("padding bits of a set of devices are not zero")
    members = np.unpackbits(bits, count=count, bitorder="little").astype(np.bool_)
    members.flags.writeable = False  # a simulation shows one decoded set to many devices
    return members


_READERS: Final[Mapping[int, Callable[[FieldReader, SessionParams], Message]]] = {
    Kind.OPEN: _reopen_from_fields,
    Kind.ROSTER: _roster_from_fields,
    Kind.DELIVERY: _delivery_from_fields,
    Kind.SLOT: _slot_from_fields,
    Kind.CHECK: _check_from_fields,
    Kind.REQUEST: _request_from_fields,
    Kind.OPENING: _opening_from_fields,
    Kind.ADVERTISE: _advertise_from_fields,
    Kind.SHARE_KEYS: _share_from_fields,
    Kind.RECEIPT: _receipt_from_fields,
    Kind.MASKED: _masked_from_fields,
    Kind.SIGNATURE: _signature_from_fields,
    Kind.SHARES: _shares_from_fields,
}
