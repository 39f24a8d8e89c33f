"""Vectors of the messages: fields and bytes, and bytes that no reader may accept."""

import struct
from functools import cache

import msgpack
import numpy as np
from recorded_session import params_from_json, params_to_json
from session_vectors import played, small_case

from deltafl.secagg import labels, wire
from deltafl.secagg.labels import Label
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    Credential,
    MaskedInput,
    OpenSlot,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareReceipt,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)

SESSIONS = ("complete",)
FURTHER = {
    "verified": ("session open", "masked input", "sum opening"),
    "verified, whole": ("open slot",),
}
"""Sessions of which only these kinds of messages are new."""
_DEVICE = 10
_ASKED = {
    "advertise": "session open",
    "share": "roster",
    "receipt": "share delivery",
    "mask": "open slot",
    "confirm": "consistency check",
    "unmask": "unmask request",
    "opening": "sum opening",
}
_ANSWERS = {
    "advertise": "advertise keys",
    "share": "share keys",
    "receipt": "share receipt",
    "mask": "masked input",
    "confirm": "consistency signature",
    "unmask": "unmask shares",
}


def messages():
    """Real messages of the small sessions, and a few that those do not need."""
    cases = []
    for session in SESSIONS:
        for kind, (description, data) in _real(session).items():
            cases.append(_case(session, kind, kind, description, data))
        for name, (kind, message) in _special(session).items():
            params = session_params(session)
            data = wire.encode(message, params)
            cases.append(_case(session, name, kind, "Made up: fields at their limits.", data))
    for session, kinds in FURTHER.items():
        real = _real(session)
        cases += [_case(session, kind, kind, *real[kind]) for kind in kinds]
    return cases


def session_params(session):
    """The parameters of a small session."""
    return params_from_json(small_case(session)["params"])


def _case(session, name, kind, description, data):
    params = session_params(session)
    return {
        "name": f"{session}: {name}",
        "description": description,
        "session": session,
        "kind": kind,
        "fields": fields_to_json(wire.decode(data, params)),
        "message": data.hex(),
    }


@cache
def _real(session):
    """One message of each kind, to or from one device."""
    found = {}
    for one in reversed(played(session)[0]):
        stage = one["stage"]
        found[_ASKED[stage]] = (f"To device {_DEVICE}.", one["to"][_DEVICE])
        if _DEVICE in one["from"]:
            found[_ANSWERS[stage]] = (f"From device {_DEVICE}.", one["from"][_DEVICE])
    return dict(reversed(found.items()))


def _special(session):
    some = np.array([True, True, False, True, False])
    rows = np.array([[2**31 - 2] * 9, range(9)], dtype=np.uint32)
    made = {
        "receipt of nothing": ("share receipt", ShareReceipt({})),
        "slot that some have left": ("open slot", OpenSlot(1, some)),
        "a set of one device": ("open slot", OpenSlot(0, np.ones(1, dtype=np.bool_))),
        "shares of both kinds": (
            "unmask shares",
            UnmaskShares(1, np.array([1, 2**32 - 1], np.uint32), np.array([1, 0], np.uint8), rows),
        ),
        "delivery without boxes": ("share delivery", ShareDelivery(some, {})),
        "no shares": (
            "unmask shares",
            UnmaskShares(0, *(np.zeros(0, np.uint32),) * 2, np.zeros((0, 9), np.uint32)),
        ),
    }
    made["request without signatures"] = ("unmask request", UnmaskRequest(1, some, {}))
    return made


# Fields as JSON.


def fields_to_json(message):
    """A message's fields: byte strings in hex, sets of devices as zeros and ones."""
    match message:
        case SessionOpen():
            return {"params": params_to_json(message.params)}
        case AdvertiseKeys():
            return _keys_to_json(message)
        case RosterMessage():
            return {
                "roster": message.roster.tolist(),
                "keys": {str(p): _keys_to_json(keys) for p, keys in message.keys.items()},
            }
        case ShareKeys():
            return {
                "commitments": [c.hex() for c in message.commitments],
                "boxes": _hex(message.boxes),
            }
        case ShareDelivery():
            return {"members": _set(message.members), "boxes": _hex(message.boxes)}
        case ShareReceipt():
            return {"links": _hex(message.links)}
        case OpenSlot():
            return {
                "slot": message.slot,
                "members": _set(message.members),
                "tags": _hex(message.tags),
            }
        case MaskedInput():
            return {
                "slot": message.slot,
                "packed": message.packed.hex(),
                "committed": message.committed.hex(),
            }
        case ConsistencyCheck():
            return {"slot": message.slot, "survivors": _set(message.survivors)}
        case ConsistencySignature():
            return {"slot": message.slot, "signature": message.signature.hex()}
        case UnmaskRequest():
            return {
                "slot": message.slot,
                "survivors": _set(message.survivors),
                "signatures": _hex(message.signatures),
            }
        case SumOpening():
            return {
                "slot": message.slot,
                "packed": message.packed.hex(),
                "committed": _hex(message.committed),
            }
        case UnmaskShares():
            return {
                "slot": message.slot,
                "shares": [
                    {"position": position, "kind": kind, "limbs": limbs}
                    for position, kind, limbs in zip(
                        message.positions.tolist(),
                        message.kinds.tolist(),
                        message.shares.tolist(),
                        strict=True,
                    )
                ],
            }


def fields_from_json(kind, fields):
    """The message of a kind with these fields."""
    match kind:
        case "session open":
            return SessionOpen(params_from_json(fields["params"]))
        case "advertise keys":
            return _keys_from_json(fields)
        case "roster":
            keys = {int(p): _keys_from_json(own) for p, own in fields["keys"].items()}
            return RosterMessage(np.array(fields["roster"], dtype=np.uint32), keys)
        case "share keys":
            commitments = tuple(bytes.fromhex(c) for c in fields["commitments"])
            return ShareKeys(commitments, _unhex(fields["boxes"]))
        case "share delivery":
            return ShareDelivery(_members(fields["members"]), _unhex(fields["boxes"]))
        case "share receipt":
            return ShareReceipt(_unhex(fields["links"]))
        case "open slot":
            tags = _unhex(fields["tags"])
            return OpenSlot(fields["slot"], _members(fields["members"]), tags)
        case "masked input":
            packed, committed = (bytes.fromhex(fields[name]) for name in ("packed", "committed"))
            return MaskedInput(fields["slot"], packed, committed)
        case "sum opening":
            packed = bytes.fromhex(fields["packed"])
            return SumOpening(fields["slot"], packed, _unhex(fields["committed"]))
        case "consistency check":
            return ConsistencyCheck(fields["slot"], _members(fields["survivors"]))
        case "consistency signature":
            return ConsistencySignature(fields["slot"], bytes.fromhex(fields["signature"]))
        case "unmask request":
            signatures = _unhex(fields["signatures"])
            return UnmaskRequest(fields["slot"], _members(fields["survivors"]), signatures)
        case "unmask shares":
            rows = fields["shares"]
            return UnmaskShares(
                fields["slot"],
                np.array([row["position"] for row in rows], dtype=np.uint32),
                np.array([row["kind"] for row in rows], dtype=np.uint8),
                np.array([row["limbs"] for row in rows], dtype=np.uint32).reshape(len(rows), 9),
            )


def _keys_to_json(message):
    return {
        "key": message.key.hex(),
        "identity": message.credential.identity.hex(),
        "signature": message.credential.signature.hex(),
    }


def _keys_from_json(fields):
    key, *both = (bytes.fromhex(fields[name]) for name in ("key", "identity", "signature"))
    return AdvertiseKeys(key, Credential(*both))


def _hex(strings):
    return {str(position): data.hex() for position, data in strings.items()}


def _unhex(strings):
    return {int(position): bytes.fromhex(data) for position, data in strings.items()}


def _set(members):
    return [int(there) for there in members]


def _members(numbers):
    return np.array(numbers, dtype=np.bool_)


# What no reader may accept.


def malformed():
    """Each a valid message with one stretch of its bytes replaced."""
    cases = []
    for case in messages():
        valid = bytes.fromhex(case["message"])
        for flaw, wrong in _flaws(case, valid):
            at, removed, inserted = _edit(valid, wrong)
            cases.append(
                {
                    "description": flaw,
                    "of": case["name"],
                    "at": at,
                    "remove": removed,
                    "insert": inserted.hex(),
                }
            )
    for size, flaw in ((1 << 20, "A message of 1 MiB and more."), (1 << 23, "One of 8 MiB.")):
        cases.append(
            {
                "description": flaw,
                "of": "complete: masked input",
                "at": 23,
                "remove": 0,
                "insert": "00",
                "repeat": size,
            }
        )
    return cases


def apply_edit(valid, case):
    """The malformed message of a case, from the valid one that it names."""
    at, removed = case["at"], case["remove"]
    return (
        valid[:at] + bytes.fromhex(case["insert"]) * case.get("repeat", 1) + valid[at + removed :]
    )


def _edit(valid, wrong):
    """Where two strings differ: offset, bytes to remove, bytes to insert."""
    start = 0
    while start < min(len(valid), len(wrong)) and valid[start] == wrong[start]:
        start += 1
    end = 0
    most = min(len(valid), len(wrong)) - start
    while end < most and valid[-1 - end] == wrong[-1 - end]:
        end += 1
    return start, len(valid) - end - start, wrong[start : len(wrong) - end]


def _flaws(case, valid):
    """Malformed versions of a message, each with the reason."""
    fields = msgpack.unpackb(valid)
    num, body = len(fields), valid[1:]

    def changed(index, value):
        return msgpack.packb([*fields[:index], value, *fields[index + 1 :]])

    real = case["name"] == f"{case['session']}: {case['kind']}"
    if not real:
        yield from _own_flaws(case, fields, changed)
        return
    if case["session"] in FURTHER and case["kind"] != "sum opening":
        for index in range(3, num):
            yield from _field_flaws(index, fields[index], changed)
        yield from _own_flaws(case, fields, changed)
        return
    yield "Nothing.", b""
    yield "One byte less.", valid[:-1]
    yield "One byte more.", valid + b"\x00"
    yield "Twice the message.", valid + valid
    yield "A field too few.", msgpack.packb(fields[:-1])
    yield "A field too many, an integer.", msgpack.packb([*fields, 0])
    yield "A field too many, an empty string.", msgpack.packb([*fields, b""])
    yield "A header that promises a field more.", bytes([0x90 + num + 1]) + body
    yield "A header of 16 bits.", b"\xdc" + num.to_bytes(2, "big") + body
    yield "A header of 32 bits.", b"\xdd" + num.to_bytes(4, "big") + body
    yield "A header that promises 2^32 - 1 fields.", b"\xdd\xff\xff\xff\xff" + body
    yield "A map for the array.", bytes([0x80 + num // 2]) + body
    yield "The version in two bytes.", valid[:1] + b"\xcc\x04" + valid[2:]
    yield "The version before.", changed(0, 3)
    yield "The next version.", changed(0, 5)
    yield "Version true.", changed(0, True)
    yield "An unknown kind of the server.", changed(1, 0x08)
    yield "An unknown kind of a device.", changed(1, 0x17)
    yield "A kind of two bytes.", changed(1, 0x80)
    yield "A negative kind.", changed(1, -1)
    yield "Another session's tag.", changed(2, bytes(16))
    yield "A tag of 15 bytes.", changed(2, fields[2][:-1])
    yield "A tag whose size is written in 16 bits.", valid[:3] + b"\xc5\x00\x10" + valid[5:]
    yield "A tag that is a text.", valid[:3] + b"\xb0" + valid[5:]
    yield "An array inside the array.", changed(num - 1, [])
    yield "A map inside the array.", changed(num - 1, {})
    yield "A thousand arrays, one inside the other.", b"\x91" * 1000
    yield "Nil for a field.", changed(num - 1, None)
    yield "An extension for a field.", changed(num - 1, msgpack.ExtType(1, b"\x00"))
    yield (
        "A header of 2^32 - 1 bytes for the last field.",
        (msgpack.packb(fields)[: -len(msgpack.packb(fields[-1]))] + b"\xc6\xff\xff\xff\xff"),
    )
    pieces = [valid[:1], *(msgpack.packb(field) for field in fields)]
    assert b"".join(pieces) == valid
    for index in range(3, num):
        yield from _field_flaws(index, fields[index], changed)
        before, after = b"".join(pieces[: index + 1]), b"".join(pieces[index + 2 :])
        for flaw, piece in _long_forms(fields[index]):
            yield f"Field {index} {flaw}.", before + piece + after
    yield from _own_flaws(case, fields, changed)


def _field_flaws(index, value, changed):
    if isinstance(value, int):
        yield f"Field {index} negative.", changed(index, -1)
        yield f"Field {index} a floating-point number.", changed(index, float(value))
        yield f"Field {index} of 2^64 - 1.", changed(index, 2**64 - 1)
        yield f"Field {index} an empty string.", changed(index, b"")
    else:
        yield f"Field {index} with a byte more.", changed(index, value + b"\x00")
        yield f"Field {index} an integer.", changed(index, 0)
        yield f"Field {index} a text.", changed(index, "a" * len(value))
        if value:
            yield f"Field {index} with a byte less.", changed(index, value[:-1])


def _long_forms(value):
    """Encodings of a field that are longer than they need to be."""
    if isinstance(value, int):
        yield "in two bytes", b"\xcc" + value.to_bytes(1, "big")
        yield "in nine bytes", b"\xcf" + value.to_bytes(8, "big")
        if value == 0:
            yield "in two bytes, signed", b"\xd0\x00"
    else:
        if len(value) < 1 << 8:
            yield "with a size of 16 bits", b"\xc5" + len(value).to_bytes(2, "big") + value
        yield "with a size of 32 bits", b"\xc6" + len(value).to_bytes(4, "big") + value


_MEMBERS_AT = {"share delivery": 3, "open slot": 4, "consistency check": 4, "unmask request": 4}
_OF_SLOTS = ("masked input", "consistency signature", "unmask shares", "sum opening")
_RECORDS_AT = {
    "open slot": (6, 20),
    "sum opening": (5, 100),
    "roster": (4, 1316),
    "share keys": (4, 1316),
    "share delivery": (5, 1316),
    "share receipt": (3, 116),
    "unmask request": (6, 68),
    "unmask shares": (4, 41),
}


def _own_flaws(case, fields, changed):
    """What is wrong with one kind of message only."""
    kind, params = case["kind"], session_params(case["session"])
    if kind in _MEMBERS_AT:
        at = _MEMBERS_AT[kind]
        if fields[at] % 8:
            bits = bytes([fields[at + 1][0] | 0x80])
            yield "A padding bit of the set of devices is set.", changed(at + 1, bits)
        yield "A set over no devices.", changed(at, 0)
        yield "A set over more devices than were invited.", changed(at, params.num_invited + 1)
    if kind in _MEMBERS_AT or kind in _OF_SLOTS:
        at = 3
        if kind != "share delivery":
            yield "A slot that does not exist.", changed(at, len(params.slots))
    yield from _record_flaws(case, fields, changed)
    match kind:
        case "session open":
            if case["session"] in SESSIONS:
                yield from _open_flaws(fields, changed)
        case "roster":
            ids = fields[3]
            yield "No ids.", changed(3, b"")
            yield "Ids in descending order.", changed(3, ids[4:8] + ids[:4] + ids[8:])
            yield "An id twice.", changed(3, ids[:4] + ids[:4] + ids[8:])
            yield "More ids than were invited.", changed(3, ids + b"\xff" * 4)
        case "advertise keys":
            yield "No credential.", changed(3, fields[3][:-96])
        case "sum opening":
            yield "A sum of a slot that is not verified.", changed(3, 2)
        case "unmask shares":
            first = fields[4][:41]
            if first:
                limb = first[:5] + struct.pack("<I", 2**31 - 1) + first[9:]
                yield "A limb that is the prime.", changed(4, limb + fields[4][41:])
                limb = first[:-4] + b"\xff" * 4
                yield "A limb of 32 bits.", changed(4, limb + fields[4][41:])
                other = first[:4] + b"\x02" + first[5:]
                yield "A share of a third kind.", changed(4, other + fields[4][41:])


def _record_flaws(case, fields, changed):
    """What is wrong with a list of records."""
    kind = case["kind"]
    if kind in _RECORDS_AT:
        at, size = _RECORDS_AT[kind]
        some = [fields[at][i : i + size] for i in range(0, len(fields[at]), size)]
        assert all(len(one) == size for one in some), case["name"]
        if len(some) > 1:
            yield "Records in descending order.", changed(at, b"".join(reversed(some)))
            yield "One record twice.", changed(at, b"".join([some[0], *some]))
            yield "Two records swapped.", changed(at, b"".join([some[1], some[0], *some[2:]]))


def _open_flaws(fields, changed):
    valid = changed(3, fields[3])
    assert _retagged(valid) == valid
    for flaw, slots in (
        ("No slots.", []),
        ("A slot that does not say whether it is verified.", [b"a", 4, 16, 0]),
        ("A slot of six parts.", [b"a", 4, 16, 0, 0, 0]),
        ("Two slots, and one part too few.", [b"a", 4, 16, 0, 0, b"b", 4, 16, 0]),
        ("A slot of length zero.", [b"a", 0, 16, 0, 0]),
        ("A slot of length 2^28 + 1.", [b"a", 2**28 + 1, 16, 0, 0]),
        ("A ring of no bits.", [b"a", 4, 0, 0, 0]),
        ("A ring of 65 bits.", [b"a", 4, 65, 0, 0]),
        ("Neither whole nor not.", [b"a", 4, 16, 2, 0]),
        ("Whole true.", [b"a", 4, 16, True, 0]),
        ("Whole an empty string.", [b"a", 4, 16, b"", 0]),
        ("Neither verified nor not.", [b"a", 4, 40, 0, 2]),
        ("Verified true.", [b"a", 4, 40, 0, True]),
        ("A label of 65 bytes.", [b"a" * 65, 4, 16, 0, 0]),
        ("A label that is no UTF-8.", [b"\xff", 4, 16, 0, 0]),
        ("A label that is a text.", ["a", 4, 16, 0, 0]),
        ("A slot whose parts are swapped.", [4, b"a", 16, 0, 0]),
        ("An array inside the slots.", [[], 4, 16, 0, 0]),
    ):
        yield flaw, _retagged(changed(3, msgpack.packb(slots)))
    yield "Ring bits in two bytes.", changed(3, b"\x95\xc4\x01a\x04\xcc\x10\x00\x00")
    yield "Whole in two bytes.", changed(3, b"\x95\xc4\x01a\x04\x10\xcc\x01\x00")
    yield "Slots that are an integer.", changed(3, b"\x00")
    verified = msgpack.packb([b"a", 4, 19, 0, 1])
    narrow = msgpack.packb([b"a", 4, 18, 0, 1])
    yield "A verified slot of 18 bits over five devices.", _retagged(changed(3, narrow))
    sparse = msgpack.packb([*fields[:3], verified, fields[4], 2, 2, *fields[7:]])
    yield "A verified slot over a sparse graph.", _retagged(sparse)
    for flaw, index, value in (
        ("No devices.", 4, 0),
        ("More than 2^32 - 1 devices.", 4, 2**32),
        ("An odd degree of a sparse graph.", 5, 3),
        ("A threshold of one.", 6, 1),
        ("A threshold above the devices that hold shares.", 6, 6),
        ("A smallest cohort below the threshold.", 7, 2),
        ("A smallest cohort above the devices invited.", 7, 6),
        ("A smallest roster of one.", 10, 1),
        ("A smallest roster above the devices invited.", 10, 6),
    ):
        yield flaw, _retagged(changed(index, value))
    yield "Other parameters under the old tag.", changed(9, bytes(32))


def _retagged(opening):
    """An opening under the tag of what it says, as far as that has one: wrong for one reason."""
    fields = msgpack.unpackb(opening)
    slots, numbers = msgpack.unpackb(fields[3]), (*fields[4:8], *fields[10:])
    parts = [slots[i : i + 5] for i in range(0, len(slots), 5)]
    if not all(type(part) in (int, bytes) for part in slots):
        return opening
    canonical = labels.pack(
        labels.pack(*(labels.pack(*part) for part in parts)), *map(int, numbers), *fields[8:10]
    )
    tag = labels.digest(Label.PARAMETERS, canonical)[:16]
    retagged = msgpack.packb([*fields[:2], tag, *fields[3:]])
    assert len(retagged) == len(opening)
    return retagged


def read(data, kind, params):
    """Read a message as its recipient does.

    Raises:
        DecodeError: it is malformed.
    """
    return wire.decode_open(data) if kind == "session open" else wire.decode(data, params)
