"""Changes to valid inputs, and how much memory it takes to read one."""

import tracemalloc

from hypothesis import strategies as st

LITTLE = 1 << 20

HEADERS = (b"\xc6\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xcf" * 9)
"""A byte string, an array and a map of 2^32 − 1, and a large integer."""

WORDS = (
    b"1e99999999",
    b"1e5000",
    b"-0.0",
    b"1_0",
    "٣".encode(),
    b"9" * 5000,
    b"0x" + b"f" * 5000,
    b"NaN",
    b"inf",
    b"true",
    b"null",
    b"[" * 2000,
    b"{" * 50,
    b'{"a":' * 2000,
    b"a." * 2000,
    b'"\\ud800"',
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\x00",
    b"\xff\xff\xff\x7f",
    b"\xff" * 8,
    b"(" * 300,
    b"'descr': '|O'",
    b"(9999999999, 9999999999)",
    b"(0, 999999999999999999)",
    b"()",
)
"""What parsers of text, of numbers, and of heads of arrays choke on."""

pieces = (
    st.binary(max_size=9)
    | st.sampled_from(HEADERS)
    | st.sampled_from([b"\n", b"#", b"0"])
    | st.sampled_from(WORDS)
)


@st.composite
def mutants(draw, inputs, start=0):
    """A valid input with bits flipped, pieces put in, cut out, or taken from another one."""
    data = bytearray(draw(st.sampled_from(inputs)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(start, max(start, len(data))))
        match draw(st.sampled_from(["flip", "put", "cut", "over", "end", "splice"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "put":
                data[at:at] = draw(pieces)
            case "cut":
                del data[at : at + draw(st.integers(1, 40))]
            case "over":
                new = draw(pieces)
                data[at : at + len(new)] = new
            case "end":
                del data[at:]
            case "splice":
                other = draw(st.sampled_from(inputs))
                data[at:] = other[draw(st.integers(start, max(start, len(other)))) :]
    return bytes(data)


def peak(read, data):
    """Bytes that reading allocates at once."""
    tracemalloc.start()
    try:
        read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
