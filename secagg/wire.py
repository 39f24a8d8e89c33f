"""Canonical bytes of the messages: a flat msgpack array of integers and byte strings.

Contract: decode(encode(m)) == m; encode(decode(b)) == b for every accepted b; any other b raises
`DecodeError` and nothing else. The first elements are version, kind and session tag. Lists are byte
strings of fixed-size records, so there is no nesting to abuse. The session's parameters bound every
size before anything is allocated.

Spec: §7, §8.
"""

from collections import namedtuple
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from typing import Final

import numpy as np

from deltafl.secagg import keys, links, ring, shamir
from deltafl.secagg.codec import (
    FieldReader,
    Records,
    Value,
    check_ascending,
    read_fields,
    record_size,
    write_fields,
)
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
from deltafl.secagg.openings import COMMITTED_SIZE, check_packed
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
_Values = tuple[object, ...]

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
"""Bytes of a device's key and credential. Spec: §7.4."""


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
    form = _BY_TYPE[type(message)]
    fields = [field for codec in form.codecs for field in codec.write(message, params)]
    return write_fields([VERSION, form.kind, params.tag, *fields])


def encode_roster(roster: Roster, advertised: Records, params: SessionParams) -> bytes:
    """The bytes of a `RosterMessage`, from advertisements that are already encoded.

    Args:
        roster: Ids of all devices, ascending; uint32.
        advertised: The `advertisement` of each of the recipient's neighbours.
        params: The session's parameters.
    """
    ids = roster.astype(_POSITION).tobytes()
    return write_fields([VERSION, Kind.ROSTER, params.tag, ids, advertised.encode()])


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
    form = _BY_KIND.get(kind)
    if form is None:
        raise DecodeError(f"unknown message kind {kind}")
    values: list[object] = []
    for codec in form.codecs:
        values += codec.read(fields, params, values)
    fields.finish()
    message: Message = form.message(*values)
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
    message = SessionOpen(*_read_params(fields))
    fields.finish()
    if encode(message, message.params) != data:
        raise DecodeError("the encoding is not canonical, or its tag not that of the parameters")
    return message


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


def advertisement(message: AdvertiseKeys) -> bytes:
    """A device's key and credential as one string. Spec: §8.7."""
    return message.key + message.credential.identity + message.credential.signature


def _read_advertisement(data: bytes) -> AdvertiseKeys:
    key, credential = data[: keys.KEY_SIZE], data[keys.KEY_SIZE :]
    identity, signature = credential[:IDENTITY_SIZE], credential[IDENTITY_SIZE:]
    return AdvertiseKeys(PublicKey(key), Credential(IdentityKey(identity), signature))


def _cut(data: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(data[start : start + size] for start in range(0, len(data), size))


def _write_params(message: SessionOpen, _: object) -> _Fields:
    own = message.params
    slots = write_fields([part for slot in own.slots for part in _slot_to_fields(slot)])
    sizes = own.num_invited, own.degree, own.threshold, own.min_cohort
    return slots, *sizes, own.graph_seed, own.context, own.min_roster


def _slot_to_fields(slot: SlotSpec) -> _Fields:
    kind = (int(slot.whole), slot.assurance)
    return (slot.label.encode(), slot.length, slot.ring_bits, *kind)


def _read_params(fields: FieldReader) -> tuple[SessionParams]:
    packed = fields.records(1, most=MAX_OPEN_BYTES)
    num_invited, degree = fields.integer(0, 2**32 - 1), fields.integer(0, 2**32 - 1)
    threshold, min_cohort = fields.integer(0, 2**32 - 1), fields.integer(0, 2**32 - 1)
    graph_seed, context = fields.binary(DIGEST_SIZE), fields.binary(DIGEST_SIZE)
    min_roster = fields.integer(0, 2**32 - 1)
    slots = read_fields(packed, most=_SLOT_FIELDS * MAX_SLOTS)
    if len(slots) % _SLOT_FIELDS:
        raise DecodeError("not a list of slots: five fields each")
    reader, specs = FieldReader(slots), []
    try:
        for _ in range(len(slots) // _SLOT_FIELDS):
            label = reader.records(1, most=MAX_LABEL_BYTES)
            length, bits = reader.integer(1, MAX_LENGTH), reader.integer(1, ring.MAX_BITS)
            whole, assurance = bool(reader.integer(0, 1)), reader.integer(0, 1 + MAX_PROOF_BYTES)
            kind = (whole, assurance > 0, max(assurance - 1, 0))
            specs.append(SlotSpec(label.decode(), length, bits, *kind))
        sizes = num_invited, degree, threshold, min_cohort
        own = SessionParams(tuple(specs), *sizes, graph_seed, context, min_roster)
    except (UsageError, UnicodeDecodeError) as error:
        raise DecodeError(f"impossible parameters: {error}") from None
    return (own,)


def _read_params_again(fields: FieldReader, params: SessionParams, _: object) -> _Values:
    (own,) = _read_params(fields)
    if own.tag != params.tag:
        raise DecodeError("an opening under the tag of other parameters")
    return (own,)


def _read_slot(fields: FieldReader, params: SessionParams, _: object) -> _Values:
    return (fields.integer(0, len(params.slots) - 1),)


def _write_members(members: Members) -> _Fields:
    return (len(members), np.packbits(members, bitorder="little").tobytes())


def _read_members(fields: FieldReader, params: SessionParams, _: object) -> _Values:
    """A set of devices: one bit per roster position, with the last byte padded with zeros.

    Spec: §1.3.
    """
    count = fields.integer(1, params.num_invited)
    bits = np.frombuffer(fields.binary(ring.packed_size(count, 1)), dtype=np.uint8)
    if count % 8 and bits[-1] >> (count % 8):
        raise DecodeError("padding bits of a set of devices are not zero")
    members = np.unpackbits(bits, count=count, bitorder="little").astype(np.bool_)
    members.flags.writeable = False  # a simulation shows one decoded set to many devices
    return (members,)


def _read_vector(fields: FieldReader, params: SessionParams, before: Sequence[int]) -> _Values:
    """A packed vector of a slot, whose unused bits are zero."""
    spec = params.slots[before[0]]
    packed = fields.binary(spec.packed_size)
    check_packed(spec, packed)
    return (packed,)


def _read_sum(fields: FieldReader, params: SessionParams, before: Sequence[int]) -> _Values:
    if not params.slots[before[0]].verified:
        raise DecodeError(f"slot {before[0]} is not verified: its sum is not shown to devices")
    return _read_vector(fields, params, before)


def _read_committed(fields: FieldReader, params: SessionParams, before: Sequence[int]) -> _Values:
    spec = params.slots[before[0]]
    both = fields.binary(COMMITTED_SIZE + spec.proof_size if spec.verified else 0)
    return both[:COMMITTED_SIZE], both[COMMITTED_SIZE:]


def _read_keys(fields: FieldReader, *_: object) -> _Values:
    own = _read_advertisement(fields.binary(ADVERTISEMENT_SIZE))
    return own.key, own.credential


def _write_advertised(message: RosterMessage, _: object) -> _Fields:
    strings = {position: advertisement(own) for position, own in message.keys.items()}
    return (Records.of(strings, ADVERTISEMENT_SIZE).encode(),)


def _read_advertised(fields: FieldReader, params: SessionParams, _: object) -> _Values:
    every = _read_records(fields, ADVERTISEMENT_SIZE, params.num_invited)
    return ({position: _read_advertisement(data) for position, data in every.items()},)


def _read_records(fields: FieldReader, size: int, most: int) -> Records:
    """Byte strings of `size` bytes by position; the positions ascend."""
    return Records.decode(fields.records(record_size(size), most=most), size)


def _read_commitments(fields: FieldReader, params: SessionParams, _: object) -> _Values:
    return (_cut(fields.binary(DIGEST_SIZE * SHARES_PER_SLOT * len(params.columns)), DIGEST_SIZE),)


def _read_roster(fields: FieldReader, params: SessionParams, _: object) -> _Values:
    data = fields.records(_POSITION.itemsize, most=params.num_invited)
    roster = np.frombuffer(data, dtype=_POSITION).astype(np.uint32)
    check_ascending("the roster's ids", roster)
    if not len(roster):
        raise DecodeError("the roster is empty")
    return (roster,)


def _write_shares(message: UnmaskShares, _: object) -> _Fields:
    records = np.zeros(len(message.positions), dtype=_SHARE)
    records["position"] = message.positions
    records["kind"] = message.kinds
    records["share"] = message.shares
    return (records.tobytes(),)


def _read_shares(fields: FieldReader, params: SessionParams, _: object) -> _Values:
    data = fields.records(_SHARE.itemsize, most=params.num_invited)
    records = np.frombuffer(data, dtype=_SHARE)
    positions = records["position"].astype(np.uint32)
    kinds, shares = records["kind"].copy(), records["share"].astype(np.uint32)
    check_ascending("the positions of the shares", positions)
    if (kinds > max(ShareKind)).any() or (shares >= shamir.PRIME).any():
        raise DecodeError("a share of unknown kind, or with a limb outside the field")
    return positions, kinds, shares


# How one attribute of a message travels, or a few: `write` gives the fields, from the message and
# the parameters; `read` gives the attributes, from the fields that are left, the parameters and the
# attributes before these, and refuses what `write` does not write.
_Codec = namedtuple("_Codec", ("write", "read"))
_Form = namedtuple("_Form", ("message", "kind", "codecs"))

_SLOT: Final = _Codec(lambda m, _: (m.slot,), _read_slot)
_MEMBERS: Final = _Codec(lambda m, _: _write_members(m.members), _read_members)
_SURVIVORS: Final = _Codec(lambda m, _: _write_members(m.survivors), _read_members)
_VECTOR: Final = _Codec(lambda m, _: (m.packed,), _read_vector)
_SUM: Final = _Codec(lambda m, _: (m.packed,), _read_sum)
_BOXES: Final = _Codec(
    lambda m, p: (Records.of(m.boxes, box_size(p)).encode(),),
    lambda fields, p, _: (_read_records(fields, box_size(p), p.num_invited),),
)
_SIGNATURES: Final = _Codec(
    lambda m, _: (Records.of(m.signatures, SIGNATURE_SIZE).encode(),),
    lambda fields, p, _: (_read_records(fields, SIGNATURE_SIZE, p.num_invited),),
)
_SIGNATURE: Final = _Codec(
    lambda m, _: (m.signature,), lambda fields, *_: (fields.binary(SIGNATURE_SIZE),)
)
_EVERY_COMMITTED: Final = _Codec(
    lambda m, _: (Records.of(m.committed, COMMITTED_SIZE).encode(),),
    lambda fields, p, _: (_read_records(fields, COMMITTED_SIZE, p.num_invited),),
)
_COMMITTED: Final = _Codec(lambda m, _: (bytes(m.committed) + bytes(m.proof),), _read_committed)
_COMMITMENTS: Final = _Codec(lambda m, _: (b"".join(m.commitments),), _read_commitments)
_ROSTER: Final = _Codec(lambda m, _: (m.roster.astype(_POSITION).tobytes(),), _read_roster)
_LINKS: Final = _Codec(
    lambda m, p: (Records.of(m.links, receipt_size(p)).encode(),),
    lambda fields, p, _: (_read_records(fields, receipt_size(p), p.num_invited),),
)
_TAGS: Final = _Codec(
    lambda m, _: (Records.of(m.tags, links.TAG_SIZE).encode(),),
    lambda fields, p, _: (_read_records(fields, links.TAG_SIZE, p.num_invited),),
)

# Each message, with its attributes in their order, which is that of its fields.
_FORMS: Final = (
    _Form(SessionOpen, Kind.OPEN, [_Codec(_write_params, _read_params_again)]),
    _Form(RosterMessage, Kind.ROSTER, [_ROSTER, _Codec(_write_advertised, _read_advertised)]),
    _Form(ShareDelivery, Kind.DELIVERY, [_MEMBERS, _BOXES]),
    _Form(OpenSlot, Kind.SLOT, [_SLOT, _MEMBERS, _TAGS]),
    _Form(ConsistencyCheck, Kind.CHECK, [_SLOT, _SURVIVORS]),
    _Form(UnmaskRequest, Kind.REQUEST, [_SLOT, _SURVIVORS, _SIGNATURES]),
    _Form(SumOpening, Kind.OPENING, [_SLOT, _SUM, _EVERY_COMMITTED]),
    _Form(AdvertiseKeys, Kind.ADVERTISE, [_Codec(lambda m, _: (advertisement(m),), _read_keys)]),
    _Form(ShareKeys, Kind.SHARE_KEYS, [_COMMITMENTS, _BOXES]),
    _Form(ShareReceipt, Kind.RECEIPT, [_LINKS]),
    _Form(MaskedInput, Kind.MASKED, [_SLOT, _VECTOR, _COMMITTED]),
    _Form(ConsistencySignature, Kind.SIGNATURE, [_SLOT, _SIGNATURE]),
    _Form(UnmaskShares, Kind.SHARES, [_SLOT, _Codec(_write_shares, _read_shares)]),
)
_BY_TYPE: Final = {form.message: form for form in _FORMS}
_BY_KIND: Final = {int(form.kind): form for form in _FORMS}
