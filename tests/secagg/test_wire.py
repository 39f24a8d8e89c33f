import struct
import tracemalloc
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import make_params

from deltafl.secagg import DecodeError, SessionParams, SlotSpec, UsageError, ring, shamir, wire
from deltafl.secagg.labels import VERSION
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    Credential,
    MaskedInput,
    Message,
    OpenSlot,
    RosterMessage,
    ServerMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareReceipt,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.openings import COMMITTED_SIZE
from deltafl.secagg.pedersen import ORDER

PARAMS = make_params(6, slots=((5, 13), (3, 40)))
VERIFIED = make_params(6, slots=((5, 19, True, True), (3, 40)))
"""Its first slot is whole and verified, so it has shares for the second only."""
NUM_SLOTS = len(PARAMS.slots)
MIB = 1 << 20

digests = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
slots = st.integers(0, NUM_SLOTS - 1)
positions = st.sets(st.integers(0, 2**32 - 1), max_size=PARAMS.num_invited).map(sorted)
members = st.lists(st.booleans(), min_size=1, max_size=PARAMS.num_invited).map(np.array)
keys = st.binary(min_size=1216, max_size=1216)
credentials = st.builds(Credential, digests, signatures)
advertisements = st.builds(AdvertiseKeys, keys, credentials)


def mapped(values):
    return st.dictionaries(st.integers(0, 2**32 - 1), values, max_size=PARAMS.num_invited)


def boxes_of(params):
    size = wire.box_size(params)
    return mapped(st.binary(min_size=size, max_size=size))


box_size = wire.box_size(PARAMS)
boxes = boxes_of(PARAMS)


@st.composite
def rosters(draw):
    ids = draw(positions.filter(len))
    return RosterMessage(np.array(ids, dtype=np.uint32), draw(mapped(advertisements)))


def receipts_of(params):
    size = wire.receipt_size(params)
    return st.builds(ShareReceipt, mapped(st.binary(min_size=size, max_size=size)))


def packed(params, slot):
    """Masked vectors or sums, with the blinding where there is one."""
    spec = params.slots[slot]
    bits, size = spec.length * spec.ring_bits, ring.packed_size(spec.length, spec.ring_bits)
    vectors = st.integers(0, 2**bits - 1).map(lambda number: number.to_bytes(size, "little"))
    blindings = st.integers(0, ORDER - 1).map(lambda number: number.to_bytes(32, "little"))
    return st.builds(bytes.__add__, vectors, blindings if spec.verified else st.just(b""))


def committed(params, slot):
    size = COMMITTED_SIZE if params.slots[slot].verified else 0
    return st.binary(min_size=size, max_size=size)


@st.composite
def masked_inputs(draw, params=PARAMS):
    slot = draw(slots)
    return MaskedInput(slot, draw(packed(params, slot)), draw(committed(params, slot)))


@st.composite
def unmask_shares(draw):
    named = draw(positions)
    limbs = st.lists(st.integers(0, shamir.PRIME - 1), min_size=9, max_size=9)
    shares = draw(st.lists(limbs, min_size=len(named), max_size=len(named)))
    kinds = draw(st.lists(st.integers(0, 1), min_size=len(named), max_size=len(named)))
    return UnmaskShares(
        draw(slots),
        np.array(named, dtype=np.uint32),
        np.array(kinds, dtype=np.uint8),
        np.array(shares, dtype=np.uint32).reshape(-1, shamir.NUM_LIMBS),
    )


@st.composite
def session_params(draw):
    specs = draw(
        st.lists(
            st.builds(
                SlotSpec,
                st.text(max_size=16),
                st.integers(1, 1 << 28),
                st.integers(1, 64),
                st.booleans(),
            ),
            min_size=1,
            max_size=4,
        )
    )
    num_invited = draw(st.integers(2, 2**31))
    degree = 2 * draw(st.integers(1, 2**30))
    if degree >= num_invited - 1:
        specs = [replace(s, verified=draw(st.booleans())) for s in specs]
    num_holders = num_invited if degree >= num_invited - 1 else degree
    threshold = draw(st.integers(2, num_holders))
    return SessionParams(
        tuple(specs),
        num_invited,
        degree,
        threshold,
        draw(st.integers(threshold, num_invited)),
        draw(digests),
        draw(digests),
        draw(st.integers(2, num_invited)),
    )


tags = st.binary(min_size=16, max_size=16)

messages = {
    "open": st.just(SessionOpen(PARAMS)),
    "roster": rosters(),
    "delivery": st.builds(ShareDelivery, members, boxes),
    "slot": st.builds(OpenSlot, slots, members, mapped(tags)),
    "check": st.builds(ConsistencyCheck, slots, members),
    "request": st.builds(UnmaskRequest, slots, members, mapped(signatures)),
    "advertise": advertisements,
    "share keys": st.builds(ShareKeys, st.tuples(*[digests] * 2 * NUM_SLOTS), boxes),
    "receipt": receipts_of(PARAMS),
    "masked": masked_inputs(),
    "signature": st.builds(ConsistencySignature, slots, signatures),
    "shares": unmask_shares(),
}
"""What a session can say, by name."""

verified_messages = messages | {
    "open": st.just(SessionOpen(VERIFIED)),
    "delivery": st.builds(ShareDelivery, members, boxes_of(VERIFIED)),
    "opening": st.builds(
        SumOpening, st.just(0), packed(VERIFIED, 0), mapped(committed(VERIFIED, 0))
    ),
    "share keys": st.builds(ShareKeys, st.tuples(*[digests] * 2), boxes_of(VERIFIED)),
    "receipt": receipts_of(VERIFIED),
    "masked": masked_inputs(VERIFIED),
}
DIFFER_IF_VERIFIED = ("open", "delivery", "opening", "share keys", "receipt", "masked")

KINDS = [
    *(pytest.param(PARAMS, strategy, id=name) for name, strategy in messages.items()),
    *(
        pytest.param(VERIFIED, verified_messages[name], id=f"verified {name}")
        for name in DIFFER_IF_VERIFIED
    ),
]
"""The parameters of a session and one kind of its messages each."""

any_message = st.one_of(
    *(st.tuples(st.just(PARAMS), strategy) for strategy in messages.values()),
    *(st.tuples(st.just(VERIFIED), strategy) for strategy in verified_messages.values()),
)
"""Parameters of a session and one of its messages."""


def decodes(data, params=PARAMS):
    """Decode; whatever is accepted must be canonical, and nothing but DecodeError is raised."""
    accepted = False
    try:
        message = wire.decode(data, params)
    except DecodeError:
        pass
    else:
        assert wire.encode(message, params) == data
        accepted = True
    try:
        opening = wire.decode_open(data)
    except DecodeError:
        return accepted
    assert wire.encode(opening, opening.params) == data
    return True


def same(left, right):
    """Whether two messages have the same type and fields, arrays included."""
    if type(left) is not type(right):
        return False
    for name in type(left).__dataclass_fields__:
        one, other = getattr(left, name), getattr(right, name)
        if isinstance(one, np.ndarray):
            if one.dtype != other.dtype or not np.array_equal(one, other):
                return False
        elif one != other:
            return False
    return True


def test_every_message_has_a_strategy():
    assert len(verified_messages) == len(Message.__args__)
    assert verified_messages.keys() - {"opening"} == messages.keys()


@pytest.mark.parametrize(("params", "strategy"), KINDS)
def test_round_trip(params, strategy):
    @settings(max_examples=30)
    @given(message=strategy)
    def check(message):
        data = wire.encode(message, params)
        decoded = wire.decode(data, params)
        assert same(decoded, message)
        assert wire.encode(decoded, params) == data
        assert wire.tag_of(data) == params.tag

    check()


KIND_BYTES = {
    "open": 0x01,
    "roster": 0x02,
    "delivery": 0x03,
    "slot": 0x04,
    "check": 0x05,
    "request": 0x06,
    "opening": 0x07,
    "advertise": 0x11,
    "share keys": 0x12,
    "receipt": 0x13,
    "masked": 0x14,
    "signature": 0x15,
    "shares": 0x16,
}


@pytest.mark.parametrize(("name", "kind"), KIND_BYTES.items())
def test_kind_of_a_message(name, kind):
    @settings(max_examples=1)
    @given(message=verified_messages[name])
    def check(message):
        assert wire.encode(message, VERIFIED)[2] == kind
        assert isinstance(message, ServerMessage) == (kind < 0x10)

    check()


@pytest.mark.slow
@settings(max_examples=50)
@given(params=session_params())
def test_round_trip_of_the_opening_message(params):
    data = wire.encode(SessionOpen(params), params)
    opening = wire.decode_open(data)
    assert opening.params == params
    assert opening.params.tag == params.tag == wire.tag_of(data)


def sizes(length):
    """All shorter ones of a short message; of a long one those at its ends, and some between."""
    if length < 2000:
        return range(length)
    return [*range(60), *range(60, length - 60, 97), *range(length - 60, length)]


@pytest.mark.parametrize(("params", "strategy"), KINDS)
def test_truncations_and_extensions_are_refused(params, strategy):
    @settings(max_examples=5)
    @given(message=strategy)
    def check(message):
        data = wire.encode(message, params)
        assert decodes(data, params)
        for size in sizes(len(data)):
            assert not decodes(data[:size], params)
        for more in (b"\0", b"\xc0", data):
            assert not decodes(data + more, params)

    check()


@settings(max_examples=150)
@given(said=any_message, data=st.data())
def test_edited_bytes_are_refused_or_canonical(said, data):
    params, message = said
    encoded = bytearray(wire.encode(message, params))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    decodes(bytes(encoded), params)


@settings(max_examples=200)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    assert not decodes(data)


values = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, 1, 2, 6]),
    st.binary(max_size=80),
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.integers(0, 3), st.integers(0, 3), max_size=2),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    params=st.sampled_from([PARAMS, VERIFIED]),
    kind=st.sampled_from([*KIND_BYTES.values(), 0x08, 0x10, 0x17]),
    fields=st.lists(values, max_size=8),
)
def test_plausible_messages_are_refused_or_canonical(params, kind, fields):
    decodes(msgpack.packb([VERSION, kind, params.tag, *fields]), params)


def parts(message, params=PARAMS):
    return msgpack.unpackb(wire.encode(message, params))


OPEN_SLOT = OpenSlot(1, np.ones(6, dtype=np.bool_))


def test_non_minimal_integers_and_lengths_are_refused():
    data = wire.encode(OPEN_SLOT, PARAMS)
    tag = PARAMS.tag
    front, head, slot = b"\x04\x04\xc4\x10" + tag, b"\x97\x04\x04\xc4\x10" + tag, b"\x01"
    end = b"\xc4\x00"  # no tags
    rest = b"\x06\xc4\x01\x3f" + end
    assert data == head + slot + rest
    assert decodes(data)
    for wrong in (
        b"\xdc\x00\x07" + front + slot + rest,
        b"\xdd\x00\x00\x00\x07" + front + slot + rest,
        b"\x97\xcc" + front + slot + rest,
        b"\x97\x04\x04\xc5\x00\x10" + tag + slot + rest,
        b"\x97\x04\x04\xc6\x00\x00\x00\x10" + tag + slot + rest,
        head + b"\xcc\x01" + rest,
        head + b"\xcd\x00\x01" + rest,
        head + b"\xcf" + bytes(7) + b"\x01" + rest,
        head + b"\xd0\x01" + rest,
        head + b"\xcb" + struct.pack(">d", 1.0) + rest,
        head + b"\xc3" + rest,  # True for slot 1
        head + slot + b"\x06\xc5\x00\x01\x3f" + end,
        head + slot + b"\x06\xa1\x3f" + end,  # a text for the bytes
        head + slot + b"\x06\xd4\x01\x3f" + end,  # an extension for the bytes
        head + slot + b"\x06\xc4\x01\x7f" + end,  # padding bits
        head + slot + b"\x06\xc4\x01\x3f" + b"\xc5\x00\x00",
    ):
        assert not decodes(wrong), wrong.hex()


@pytest.mark.parametrize(
    ("size", "header"),
    [
        (0xFF, b"\xc4\xff"),
        (0x100, b"\xc5\x01\x00"),
        (0xFFFF, b"\xc5\xff\xff"),
        (0x10000, b"\xc6\x00\x01\x00\x00"),
    ],
)
def test_every_string_has_the_shortest_header_that_fits(size, header):
    params = make_params(6, slots=((size, 8),))
    data = wire.encode(MaskedInput(0, bytes(size)), params)
    end = b"\xc4\x00"  # no commitment
    front = data[: -len(header) - size - len(end)]
    headers = [
        *([b"\xc4" + struct.pack(">B", size)] if size < 1 << 8 else []),
        *([b"\xc5" + struct.pack(">H", size)] if size < 1 << 16 else []),
        b"\xc6" + struct.pack(">I", size),
    ]
    assert front.endswith(b"\x00")  # the slot
    for other in headers:
        assert decodes(front + other + bytes(size) + end, params) == (other == header)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, VERSION + 1, f"{VERSION + 1} is not an integer in"),
        (0, 1, "1 is not an integer in"),
        (0, -1, "-1 is not an integer in"),
        (1, 0x07, "slot 1 is not verified"),
        (1, 0x08, "unknown message kind 8"),
        (1, 0x80, "128 is not an integer in"),
        (2, bytes(16), "another session"),
        (2, bytes(15), "a string of 15 bytes is not a string of 16 bytes"),
        (3, NUM_SLOTS, r"2 is not an integer in \[0, 1\]"),
        (3, -1, "-1 is not an integer in"),
        (3, [1], "neither an integer nor a byte string"),
        (3, None, "neither an integer nor a byte string"),
        (4, 0, r"0 is not an integer in \[1, 6\]"),
        (4, 7, r"7 is not an integer in \[1, 6\]"),
        (5, b"\x3f\x00", "a string of 2 bytes is not a string of 1 bytes"),
    ],
)
def test_fields_out_of_range_are_refused(index, value, message):
    fields = parts(OPEN_SLOT)
    fields[index] = value
    with pytest.raises(DecodeError, match=message):
        wire.decode(msgpack.packb(fields), PARAMS)


@pytest.mark.parametrize(("params", "strategy"), KINDS)
def test_too_few_and_too_many_fields_are_refused(params, strategy):
    @settings(max_examples=2)
    @given(message=strategy)
    def check(message):
        fields = parts(message, params)
        assert decodes(msgpack.packb(fields), params)
        for wrong in (*(fields[:i] for i in range(len(fields))), [*fields, 0], [*fields, b""]):
            assert not decodes(msgpack.packb(wrong), params)

    check()


def records(*pairs):
    return b"".join(struct.pack("<I", position) + data for position, data in pairs)


def test_records_out_of_order_are_refused():
    box, key = bytes(box_size), bytes(wire.ADVERTISEMENT_SIZE)
    receipt = bytes(wire.receipt_size(PARAMS))
    ids = struct.pack("<3I", 1, 2, 3)
    share = bytes(37)
    shares = parts(UnmaskShares(0, *(np.zeros(0, np.uint32),) * 2, np.zeros((0, 9), np.uint32)))
    header = [VERSION, 0, PARAMS.tag]
    good_and_bad = {
        0x02: ([ids, records((1, key), (2, key))], [ids, records((2, key), (1, key))]),
        0x03: (
            [3, b"\x07", records((1, box), (2, box))],
            [3, b"\x07", records((2, box), (2, box))],
        ),
        0x12: ([bytes(128), records((0, box))], [bytes(128), records((0, box), (0, box))]),
        0x13: (
            [records((1, receipt), (2, receipt))],
            [records((2, receipt), (1, receipt))],
        ),
        0x16: ([0, records((1, share), (2, share))], [0, records((2, share), (1, share))]),
    }
    assert shares[1] == 0x16
    for kind, (good, bad) in good_and_bad.items():
        header[1] = kind
        assert decodes(msgpack.packb([*header, *good])), kind
        with pytest.raises(DecodeError, match="do not ascend"):
            wire.decode(msgpack.packb([*header, *bad]), PARAMS)


@pytest.mark.parametrize(("kind", "size"), [(0x04, 16), (0x06, 64)])
@pytest.mark.parametrize("second", [0, 1])
def test_tags_and_signatures_out_of_order_are_refused(kind, size, second):
    def request(*pairs):
        return msgpack.packb([VERSION, kind, PARAMS.tag, 0, 6, b"\x3f", records(*pairs)])

    one, other = bytes(size), b"\1" * size
    assert decodes(request((1, one), (2, other)), PARAMS)
    with pytest.raises(DecodeError, match="do not ascend"):
        wire.decode(request((1, one), (second, other)), PARAMS)


@pytest.mark.parametrize(
    ("kind", "field", "record", "before"),
    [
        pytest.param(0x02, 4, 4 + 1216 + 96, [struct.pack("<I", 1)], id="advertisements"),
        pytest.param(0x03, 5, 4 + box_size, [6, b"\x3f"], id="boxes"),
        pytest.param(0x06, 6, 4 + 64, [0, 6, b"\x3f"], id="signatures"),
        pytest.param(0x04, 6, 4 + 16, [0, 6, b"\x3f"], id="tags"),
        pytest.param(0x13, 3, 4 + 32 + 48 * NUM_SLOTS, [], id="receipts"),
        pytest.param(0x16, 4, 41, [0], id="shares"),
    ],
)
def test_lists_have_whole_records_and_no_more_of_them_than_devices(kind, field, record, before):
    def message(num_records, more=0):
        listed = b"".join(
            struct.pack("<I", i) + bytes(record - 4) for i in range(num_records)
        ) + bytes(more)
        return msgpack.packb([VERSION, kind, PARAMS.tag, *before, listed])

    assert decodes(message(0), PARAMS)
    assert decodes(message(6), PARAMS)
    for wrong in (message(7), message(6, 1), message(1, record - 1), message(0, 1)):
        with pytest.raises(DecodeError, match=f"not up to 6 records of {record} bytes"):
            wire.decode(wrong, PARAMS)


@pytest.mark.parametrize("size", [0, 1, 1311, 1313])
def test_an_advertisement_is_a_key_an_identity_and_a_signature(size):
    fields = [VERSION, 0x11, PARAMS.tag]
    assert decodes(msgpack.packb([*fields, bytes(1312)]))
    with pytest.raises(DecodeError, match=f"{size} bytes is not a string of 1312 bytes"):
        wire.decode(msgpack.packb([*fields, bytes(size)]), PARAMS)


def test_where_key_identity_and_signature_lie_in_an_advertisement():
    key = AdvertiseKeys(b"\1" * 1216, Credential(b"\4" * 32, b"\5" * 64))
    data = b"\1" * 1216 + b"\4" * 32 + b"\5" * 64
    assert wire.advertisement(key) == data
    assert len(data) == wire.ADVERTISEMENT_SIZE == 1312
    assert parts(key)[3:] == [data]
    roster = RosterMessage(np.array([7, 9], dtype=np.uint32), {1: key})
    assert parts(roster)[3:] == [struct.pack("<2I", 7, 9), struct.pack("<I", 1) + data]


@pytest.mark.parametrize("size", [0, 63, 65])
def test_a_signature_has_its_size(size):
    fields = [VERSION, 0x15, PARAMS.tag, 1]
    decoded = wire.decode(msgpack.packb([*fields, b"\1" * 64]), PARAMS)
    assert decoded == ConsistencySignature(1, b"\1" * 64)
    with pytest.raises(DecodeError, match=f"{size} bytes is not a string of 64 bytes"):
        wire.decode(msgpack.packb([*fields, bytes(size)]), PARAMS)


@pytest.mark.parametrize("kind", [0x05, 0x06])
def test_a_list_of_survivors_is_canonical(kind):
    def message(slot, count, bits):
        rest = [b""] if kind == 0x06 else []
        return msgpack.packb([VERSION, kind, PARAMS.tag, slot, count, bits, *rest])

    assert decodes(message(1, 6, b"\x2a"), PARAMS)
    for wrong in (
        message(2, 6, b"\x3f"),  # no such slot
        message(1, 0, b""),
        message(1, 7, b"\x3f"),  # more than were invited
        message(1, 6, b"\x40"),  # padding bits
        message(1, 6, b"\x3f\x00"),
        message(1, 6, b""),
    ):
        assert not decodes(wrong, PARAMS), wrong.hex()


@pytest.mark.parametrize("kind", [ShareDelivery, OpenSlot, ConsistencyCheck, UnmaskRequest])
def test_a_set_of_devices_that_was_read_cannot_be_changed(kind):
    # In a simulation, many devices are shown one object.
    slot = () if kind is ShareDelivery else (0,)
    rest = () if kind is ConsistencyCheck else ({},)
    data = wire.encode(kind(*slot, np.ones(6, dtype=np.bool_), *rest), PARAMS)
    read = wire.decode(data, PARAMS)
    told = read.survivors if kind in (ConsistencyCheck, UnmaskRequest) else read.members
    with pytest.raises(ValueError, match="read-only"):
        told[0] = False


PACKED = bytes(ring.packed_size(5, 19) + 32)
PROOF = bytes(COMMITTED_SIZE)


@pytest.mark.parametrize("second", [0, 1])
def test_commitments_out_of_order_are_refused(second):
    def opening(*pairs):
        return msgpack.packb([VERSION, 0x07, VERIFIED.tag, 0, PACKED, records(*pairs)])

    assert decodes(opening((1, PROOF), (2, PROOF)), VERIFIED)
    with pytest.raises(DecodeError, match="do not ascend"):
        wire.decode(opening((1, PROOF), (second, PROOF)), VERIFIED)


def test_an_opening_of_a_sum_is_canonical():
    def opening(slot=0, packed=PACKED, committed=None, more=()):
        committed = records((0, PROOF)) if committed is None else committed
        fields = [VERSION, 0x07, VERIFIED.tag, slot, packed, committed, *more]
        return msgpack.packb(fields)

    assert decodes(opening(), VERIFIED)
    with pytest.raises(DecodeError, match="padding bits"):
        wire.decode(opening(packed=PACKED[:11] + b"\x80" + PACKED[12:]), VERIFIED)
    for number in (ORDER, 2**256 - 1):
        with pytest.raises(DecodeError, match="not below the order"):
            wire.decode(opening(packed=PACKED[:-32] + number.to_bytes(32, "little")), VERIFIED)
    assert decodes(opening(packed=PACKED[:-32] + (ORDER - 1).to_bytes(32, "little")), VERIFIED)
    assert decodes(opening(committed=b""), VERIFIED)
    everybody = records(*((position, PROOF) for position in range(7)))
    assert decodes(opening(committed=everybody[: 6 * 100]), VERIFIED)
    for wrong in (
        opening(slot=1),  # not verified
        opening(slot=2),  # no such slot
        opening(packed=PACKED[:-1]),
        opening(packed=PACKED + b"\0"),
        opening(packed=PACKED[:-1] + b"\x80"),  # padding bits
        opening(packed=bytes(ring.packed_size(5, 19))),  # without the blinding
        opening(committed=everybody),  # more than were invited
        opening(committed=records((0, PROOF[:-1]))),
        opening(more=[0]),
    ):
        assert not decodes(wrong, VERIFIED), wrong.hex()
    with pytest.raises(DecodeError, match="slot 1 is not verified"):
        wire.decode(opening(slot=1), VERIFIED)


@pytest.mark.parametrize("size", [0, 1, 95, 97, 192])
def test_a_commitment_comes_with_its_signature_and_in_verified_slots_only(size):
    def masked(slot, packed, committed):
        fields = [VERSION, 0x14, VERIFIED.tag, slot, packed, committed]
        return wire.decode(msgpack.packb(fields), VERIFIED)

    plain = bytes(ring.packed_size(3, 40))
    assert masked(0, PACKED, PROOF) == MaskedInput(0, PACKED, PROOF)
    assert masked(1, plain, b"") == MaskedInput(1, plain)
    with pytest.raises(DecodeError, match="padding bits"):
        masked(0, PACKED[:11] + b"\x80" + PACKED[12:], PROOF)
    with pytest.raises(DecodeError, match=f"{size} bytes is not a string of 96 bytes"):
        masked(0, PACKED, bytes(size))
    if size:
        with pytest.raises(DecodeError, match=f"{size} bytes is not a string of 0 bytes"):
            masked(1, plain, bytes(size))


def test_only_tolerant_slots_have_commitments_shares_and_deposits():
    """A session of whole slots alone has nothing to share."""
    params = make_params(6, slots=((5, 13, True), (3, 40), (2, 8, True), (3, 9)))
    assert dict(params.columns) == {1: 0, 3: 1}
    assert wire.plaintext_size(params) == 32 + 2 * 2 * 36
    assert wire.box_size(params) == 1168 + 72 * 2
    assert wire.receipt_size(params) == 32 + 48 * 2
    alone = make_params(6, slots=((5, 13, True),))
    assert (wire.plaintext_size(alone), wire.box_size(alone)) == (32, 1168)
    assert wire.receipt_size(alone) == 32
    shares = msgpack.packb([VERSION, 0x12, alone.tag, b"", records((0, bytes(1168)))])
    assert wire.decode(shares, alone).commitments == ()
    for wrong in (
        [VERSION, 0x12, alone.tag, bytes(64), records((0, bytes(1168)))],
        [VERSION, 0x12, alone.tag, b"", records((0, bytes(1240)))],
    ):
        assert not decodes(msgpack.packb(wrong), alone)


def test_roster_ids_must_ascend():
    for ids in ((2, 1), (1, 1), ()):
        with pytest.raises(DecodeError, match="the roster"):
            wire.decode(
                msgpack.packb([VERSION, 0x02, PARAMS.tag, struct.pack(f"<{len(ids)}I", *ids), b""]),
                PARAMS,
            )


def test_a_roster_has_no_more_devices_than_were_invited():
    def roster(size):
        ids = struct.pack(f"<{size}I", *range(size))
        return msgpack.packb([VERSION, 0x02, PARAMS.tag, ids, b""])

    assert decodes(roster(6))
    with pytest.raises(DecodeError, match="not up to 6 records of 4 bytes"):
        wire.decode(roster(7), PARAMS)


def test_no_secret_has_two_shares():
    shares = records((1, bytes(37)), (1, b"\1" + bytes(36)))
    with pytest.raises(DecodeError, match="the positions of the shares do not ascend"):
        wire.decode(msgpack.packb([VERSION, 0x16, PARAMS.tag, 0, shares]), PARAMS)


@pytest.mark.parametrize(
    "share",
    [
        b"\x02" + bytes(36),  # of a kind that does not exist
        b"\x00" + struct.pack("<I", shamir.PRIME) + bytes(32),
        b"\x00" + bytes(32) + b"\xff\xff\xff\xff",
    ],
)
def test_impossible_shares_are_refused(share):
    data = msgpack.packb([VERSION, 0x16, PARAMS.tag, 0, records((0, share))])
    with pytest.raises(DecodeError, match="unknown kind, or with a limb outside the field"):
        wire.decode(data, PARAMS)


def opening_parts(**changes):
    slot_fields = changes.pop("slots", [b"a", 4, 16, 0, 0])
    fields = {
        "slots": slot_fields if isinstance(slot_fields, bytes) else msgpack.packb(slot_fields),
        "num_invited": 5,
        "degree": 4,
        "threshold": 3,
        "min_cohort": 3,
        "graph_seed": bytes(32),
        "context": bytes(32),
        "min_roster": 2,
    }
    return [*(fields | changes).values()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": []}, "0 slots"),
        ({"slots": [b"a", 4, 16, 0]}, "not a list of slots"),
        ({"slots": [b"a", 4, 16, 0, 0] * 4097}, "not exactly one msgpack array"),
        ({"slots": [b"a", 0, 16, 0, 0]}, r"0 is not an integer in \[1, 268435456\]"),
        ({"slots": [b"a", 4, 65, 0, 0]}, r"65 is not an integer in \[1, 64\]"),
        ({"slots": [b"a" * 65, 4, 16, 0, 0]}, "a string of 65 bytes is not up to 64"),
        ({"slots": [b"\xff", 4, 16, 0, 0]}, "impossible parameters"),
        ({"slots": [4, b"a", 16, 0, 0]}, "4 is not up to 64 records of 1 bytes"),
        ({"slots": [b"a", b"\x04", 16, 0, 0]}, "a string of 1 bytes is not an integer"),
        ({"slots": [b"a", 4, 16, 2, 0]}, r"2 is not an integer in \[0, 1\]"),
        ({"slots": [b"a", 4, 16, b"", 0]}, "a string of 0 bytes is not an integer"),
        ({"slots": [b"a", 4, 16, 0, 2]}, "proof_size=1 is not a multiple of 32"),
        ({"slots": [b"a", 4, 16, 0, 2**24 + 2]}, r"16777218 is not an integer in \[0, 16777217\]"),
        ({"slots": [b"a", 4, 16, 0, b""]}, "a string of 0 bytes is not an integer"),
        ({"slots": [b"a", 4, 16, 0, False]}, "neither an integer nor a byte string"),
        ({"slots": [b"a", 4, 16, 0, [[]]]}, "."),
        (
            {"slots": [b"a", 4, 19, 1, 1], "num_invited": 7},
            "a verified slot takes the complete graph",
        ),
        ({"slots": [b"a", 4, 18, 1, 1]}, "is less than 19"),
        ({"slots": b"\x95\xc4\x01a\x04\xcc\x10\x00\x00"}, "not canonical"),
        ({"threshold": 1}, "threshold=1"),
        ({"threshold": 6}, "threshold=6"),
        ({"num_invited": 0}, "impossible parameters"),
        ({"num_invited": 2**32}, "4294967296 is not an integer"),
        ({"degree": 3}, "degree=3 of a sparse graph must be even"),
        ({"min_cohort": 2}, "min_cohort=2"),
        ({"min_roster": 1}, "min_roster=1"),
        ({"min_roster": 9}, "min_roster=9"),
        ({"min_cohort": 6}, "min_cohort=6"),
        ({"graph_seed": bytes(31)}, "a string of 31 bytes"),
        ({}, "tag not that of the parameters"),
    ],
)
def test_impossible_parameters_are_refused(changes, message):
    data = msgpack.packb([VERSION, 0x01, bytes(16), *opening_parts(**changes)])
    with pytest.raises(DecodeError, match=message):
        wire.decode_open(data)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("verified", [False, True])
def test_possible_parameters_are_accepted_under_their_own_tag(whole, verified):
    """Control of the impossible ones."""
    slots = (SlotSpec("a", 4, 19, whole, verified),)
    params = SessionParams(slots, 5, 4, 3, 3, *(bytes(32),) * 2)
    fields = opening_parts(slots=[b"a", 4, 19, int(whole), int(verified)])
    assert wire.decode_open(msgpack.packb([VERSION, 0x01, params.tag, *fields])) == SessionOpen(
        params
    )


@pytest.mark.parametrize("which", [3, 4])
def test_nobody_on_the_way_can_make_a_whole_slot_another(which):
    params = make_params(slots=((4, 16), (3, 40, True, True)))
    fields = parts(SessionOpen(params), params)
    slots = msgpack.unpackb(fields[3])
    assert slots[3::5] == slots[4::5] == [0, 1]
    slots[5 + which] = 0
    fields[3] = msgpack.packb(slots)
    with pytest.raises(DecodeError, match="tag not that of the parameters"):
        wire.decode_open(msgpack.packb(fields))


def test_an_opening_under_the_tag_of_another_session_is_refused():
    """However it is read: as the first message, or as any later one."""
    params = PARAMS
    weaker = replace(params, threshold=2)
    data = wire.encode(SessionOpen(weaker), params)
    with pytest.raises(DecodeError, match="tag not that of the parameters"):
        wire.decode_open(data)
    with pytest.raises(DecodeError, match="an opening under the tag of other parameters"):
        wire.decode(data, params)
    own = wire.encode(SessionOpen(params), params)
    assert wire.decode(own, params) == wire.decode_open(own) == SessionOpen(params)


def test_whether_a_slot_is_whole_is_part_of_its_canonical_form():
    plain, whole = SlotSpec("a", 4, 16), SlotSpec("a", 4, 16, whole=True)
    assert not plain.whole
    assert plain != whole
    verified = SlotSpec("a", 4, 16, verified=True)
    assert not plain.verified
    assert len({plain, whole, verified}) == 3
    assert len({plain.canonical, whole.canonical, verified.canonical}) == 3
    # Only one of their numbers differs, of 8 bytes after a length of 4.
    assert plain.canonical[:-20] == whole.canonical[:-20] == verified.canonical[:-20]
    assert whole.canonical[-12:] == plain.canonical[-12:]
    assert verified.canonical[:-8] == plain.canonical[:-8]


def test_a_message_that_opens_nothing_is_no_opening():
    with pytest.raises(DecodeError, match="message kind 4 does not open a session"):
        wire.decode_open(wire.encode(OPEN_SLOT, PARAMS))


def header(kind):
    return bytes([VERSION]) + bytes([kind]) + b"\xc4\x10" + PARAMS.tag


def request_with(signatures):
    return b"\x97" + header(6) + b"\x00\x06\xc4\x01\x3f" + msgpack.packb(signatures)


def nested_in_slots(inner):
    return msgpack.packb([VERSION, 0x01, PARAMS.tag, inner, *opening_parts()[1:]])


BOMBS = {
    "array32 of everything": b"\xdd\xff\xff\xff\xff",
    "array32 of everything, as a field": b"\x94" + header(4) + b"\xdd\xff\xff\xff\xff",
    "map32": b"\xdf\xff\xff\xff\xff",
    "bin32": b"\x94" + header(4) + b"\xc6\xff\xff\xff\xff",
    "str32": b"\x94" + header(4) + b"\xdb\xff\xff\xff\xff",
    "ext32": b"\x94" + header(4) + b"\xc9\xff\xff\xff\xff\x01",
    "deep arrays": b"\x91" * 100_000,
    "deep and wide arrays": b"\x9c" * 100_000,
    "deep maps": b"\x81\x01" * 100_000,
    "deep arrays in the slots": nested_in_slots(b"\xdc\x30\x00" * 1000),
    "array32 in the slots": nested_in_slots(b"\xdd\xff\xff\xff\xff"),
    "many empty arrays in the slots": nested_in_slots(b"\xdc\x30\x00" + b"\x90" * 12288),
    "wide slots": nested_in_slots(b"\xdc\x30\x00" + b"\x00" * 12288),
    "bin32 of commitments": b"\x96" + header(7) + b"\x00\xc4\x00\xc6\xff\xff\xff\xff",
    "bin32 of signatures": b"\x97" + header(6) + b"\x00\x06\xc4\x01\x3f\xc6\xff\xff\xff\xff",
    "a million signatures": request_with(bytes(68 << 14)),
    "a million receipts": b"\x94" + header(0x13) + msgpack.packb(bytes(1 << 20)),
    "a million survivors": b"\x96" + header(5) + b"\x00\xce\x00\x10\x00\x00" + b"\xc4\x01\x3f",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_little_memory(name):
    data = BOMBS[name]
    tracemalloc.start()
    try:
        assert not decodes(data, PARAMS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * MIB + 4 * len(data)


def test_overlong_messages_are_refused_unread():
    data = bytes(8 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="a message of this session has fewer"):
            wire.decode(data, PARAMS)
        with pytest.raises(DecodeError, match="an opening message has at most"):
            wire.decode_open(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


@settings(max_examples=20)
@given(said=any_message)
def test_messages_of_other_sessions_are_refused(said):
    params, message = said
    other = replace(params, context=b"\1" * 32)
    if not isinstance(message, SessionOpen):
        with pytest.raises(DecodeError, match="another session"):
            wire.decode(wire.encode(message, other), params)


def test_largest_messages_fit_their_own_bound():
    # Everything full: no honest message may be turned away for its size.
    params = make_params(40, threshold=3, slots=((1, 1),) * 60)
    key = AdvertiseKeys(bytes(1216), Credential(bytes(32), bytes(64)))
    full = dict.fromkeys(range(39), bytes(wire.box_size(params)))
    everybody = np.ones(40, dtype=np.bool_)
    signatures = dict.fromkeys(range(40), bytes(64))
    for message in (
        RosterMessage(np.arange(40, dtype=np.uint32), dict.fromkeys(range(39), key)),
        OpenSlot(0, everybody, dict.fromkeys(range(40), bytes(16))),
        ShareKeys((bytes(32),) * 120, full),
        ShareDelivery(everybody, full),
        ShareReceipt(dict.fromkeys(range(39), bytes(wire.receipt_size(params)))),
        UnmaskRequest(0, everybody, signatures),
    ):
        assert same(wire.decode(wire.encode(message, params), params), message)
    many = make_params(MIB >> 6, threshold=3, slots=((1, 40, True, True),))
    packed = bytes(many.slots[0].packed_size)
    opening = SumOpening(0, packed, dict.fromkeys(range(MIB >> 6), bytes(COMMITTED_SIZE)))
    assert len(wire.encode(opening, many)) > MIB + len(packed)
    assert same(wire.decode(wire.encode(opening, many), many), opening)
    long = make_params(5, slots=((3 * MIB, 32),))
    masked = MaskedInput(0, bytes(12 * MIB))
    assert same(wire.decode(wire.encode(masked, long), long), masked)


def test_tag_is_read_without_parsing():
    assert wire.tag_of(b"") is None
    assert wire.tag_of(b"\x93\x01\x01\xc4\x10" + bytes(15)) is None
    assert wire.tag_of(b"\x93\x01\x01\xc4\x10" + bytes(16)) == bytes(16)
    assert wire.tag_of(b"\x93\x01\x01\xc4\x11" + bytes(17)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": ()},
        {"slots": ((1, 8),) * 4097},
        {"threshold": 1, "min_cohort": 2},
        {"threshold": 6},
        {"degree": 2, "threshold": 3},
        {"degree": 3, "threshold": 3},
        {"min_cohort": 2},
        {"min_cohort": 6},
        {"graph_seed": bytes(31)},
        {"context": bytes(33)},
        {"slots": ((4, 18, True, True),)},
        {"slots": ((4, 40, True, True),), "num_invited": 6, "degree": 4},
    ],
)
def test_params_refuse_what_makes_no_session(changes):
    with pytest.raises(UsageError):
        make_params(**changes)


def test_every_parameter_changes_tag_and_session_id():
    variants = [
        make_params(),
        make_params(6),
        make_params(6, degree=4),
        make_params(threshold=4),
        make_params(min_cohort=4),
        make_params(slots=((4, 16), (3, 41))),
        make_params(slots=((4, 16), (4, 40))),
        make_params(slots=((4, 16),)),
        make_params(slots=((4, 16, True), (3, 40))),
        make_params(slots=((4, 16), (3, 40, True))),
        make_params(graph_seed=b"\1" * 32),
        make_params(context=b"\1" * 32),
        make_params(slots=((4, 16), (3, 40, False, True))),
        make_params(slots=((4, 16), (3, 40, True, True))),
        replace(make_params(), min_roster=3),
    ]
    assert len({p.tag for p in variants}) == len(variants)
    assert len({p.session_id(b"roster") for p in variants}) == len(variants)
    assert make_params().session_id(b"roster") != make_params().session_id(b"other")
