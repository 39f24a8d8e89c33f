"""Vectors of who is who: signatures that verifiers disagree about, and lists of keys."""

from functools import cache

import plain_ed25519 as ed
from recorded_session import fixed

from deltafl.secagg import TrustedKeys, UsageError
from deltafl.secagg.identity import identity, verify

SEED = fixed("identity that signs oddly")
STATEMENT = b"a statement"


def signatures():
    cases = []
    for description, public, statement, signature in _odd_signatures():
        cases.append(
            {
                "description": description,
                "public": public.hex(),
                "statement": statement.hex(),
                "signature": signature.hex(),
                "valid": verify(public, statement, signature),
            }
        )
    return cases


def _odd_signatures():
    own = identity(SEED)
    public, honest = own.public, own.sign(STATEMENT)
    number = int.from_bytes(honest[32:], "little")
    yield "An honest signature.", public, STATEMENT, honest
    yield "Another statement.", public, STATEMENT + b".", honest
    yield "Another key.", identity(fixed("somebody else")).public, STATEMENT, honest
    yield "S plus the group order.", public, STATEMENT, honest[:32] + _bytes(number + ed.ORDER)
    yield "A byte too short.", public, STATEMENT, honest[:-1]
    yield "A byte too long.", public, STATEMENT, honest + b"\x00"
    yield "No signature.", public, STATEMENT, b""
    yield "A key that is a byte too short.", public[:-1], STATEMENT, honest
    scalar, eighth = ed.secret_scalar(SEED), _point_of_order_8()
    for multiple in range(8):
        # [S]B = R + [h]A holds where h kills A: for the neutral point always.
        small = ed.encode(ed.times(multiple, eighth))
        yield (
            f"A key of small order: {multiple} times a point of order 8.",
            small,
            *_signed(lambda nonce, s, small=small: (small, nonce, s), 0, killing=True),
        )
    high = 1 << 255
    for description, key in (
        ("A key of small order whose y is not below the field's prime.", ed.FIELD + 1),
        ("The neutral point with the sign of x set.", 1 | high),
        ("A key that is no point.", 2),
    ):
        data = _bytes(key)
        yield description, data, *_signed(lambda nonce, s, d=data: (d, nonce, s), 0, killing=True)
    # R of small order, S = h·a: the equation holds.
    nonce = ed.encode(ed.NEUTRAL)
    s = ed.challenge(nonce, public, STATEMENT) * scalar % ed.ORDER
    yield "R is the neutral point.", public, STATEMENT, nonce + _bytes(s)
    mixed = ed.encode(ed.add(ed.decode(public), eighth))
    for killing, description in (
        (True, "A key of mixed order, and h a multiple of 8: valid."),
        (False, "A key of mixed order: valid only with the cofactor."),
    ):
        yield (
            description,
            mixed,
            *_signed(lambda nonce, s: (mixed, nonce, s), scalar, killing=killing),
        )


def _signed(place, scalar, *, killing):
    """A statement and a signature by a scalar, with h a multiple of 8, or not."""
    for number in range(1000):
        statement = STATEMENT + b" %d" % number
        r, nonce = _nonce(number)
        public, _, _ = place(nonce, 0)
        h = ed.challenge(nonce, public, statement)
        if (h % 8 == 0) == killing:
            return statement, nonce + _bytes((r + h * scalar) % ed.ORDER)
    raise AssertionError("no such challenge")


@cache
def _nonce(number):
    r = int.from_bytes(fixed(f"nonce {number}"), "little") % ed.ORDER
    return r, ed.encode(ed.times(r, ed.BASE))


def _point_of_order_8():
    for y in range(2, 100):
        point = ed.decode(_bytes(y))
        if point is not None:
            torsion = ed.times(ed.ORDER, point)
            if ed.times(4, torsion) != ed.NEUTRAL:
                return torsion
    raise AssertionError("no point of order 8")


def _bytes(number):
    return number.to_bytes(32, "little")


def directories():
    one, other = (identity(fixed(f"listed {name}")).public.hex() for name in ("A", "B"))
    texts = {
        "Two devices.": f"3 {one}\n10 {other}\n",
        "Nobody.": "",
        "Any order, blanks, comments, upper case.": (
            f"# phones\n\n  10 \t{other.upper()} # the new one\r\n3 {one}"
        ),
        "The largest id, and the smallest.": f"4294967295 {one}\n0 {other}\n",
        "An id too large.": f"4294967296 {one}\n",
        "A negative id.": f"-1 {one}\n",
        "A leading zero.": f"03 {one}\n",
        "An id twice.": f"3 {one}\n3 {other}\n",
        "A line twice.": f"3 {one}\n3 {one}\n",
        "A key twice.": f"3 {one}\n10 {one}\n",
        "A key twice, once in upper case.": f"3 {one}\n10 {one.upper()}\n",
        "A key too short.": f"3 {one[:-1]}\n",
        "A key too long.": f"3 {one}0\n",
        "A key that is not hexadecimal.": f"3 {'g' * 64}\n",
        "No key.": "3\n",
        "No blank between id and key.": f"3{one}\n",
        "A third word.": f"3 {one} x\n",
        "An id in other digits.": f"٣ {one}\n",
    }
    return [_directory(description, text) for description, text in texts.items()]


def _directory(description, text):
    case = {"description": description, "text": text, "keys": None}
    try:
        directory = TrustedKeys.parse(text)
    except UsageError:
        return case
    keys = {str(client): key.hex() for client, key in directory.keys.items()}
    return case | {
        "keys": keys,
        "canonical": directory.dump(),
        "fingerprint": directory.fingerprint(),
    }
