"""Whether msgpack data can be unpacked without more memory than they bring.

The unpacker makes room for as many elements as an array announces, up to the number of bytes that
there are, and for each of the arrays in each other. So a message of a megabyte could take eight
gigabytes, by a thousand arrays in each other that announce a million elements each.
"""

from typing import Final

MAX_NESTING: Final = 32

_LONE: Final = (
    {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
    | {0xCC + power: 1 << power for power in range(4)}
    | {0xD0 + power: 1 << power for power in range(4)}
)
"""Bytes after the first one, of what has a fixed size."""

_STRINGS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes of the length of a string."""

_ARRAYS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Bytes of the length of an array or a map, and how many elements each of it has."""


def is_shallow(data: bytes) -> bool:
    """Whether these are msgpack data, of `MAX_NESTING` levels at most, without extension types.

    >>> is_shallow(bytes.fromhex("92 01 91 02")), is_shallow(bytes.fromhex("91") * 40 + b"1")
    (True, False)
    """
    at, missing = 0, [1]  # elements that each open array still lacks
    while missing:
        if not missing[-1]:
            missing.pop()
            continue
        if at >= len(data):
            return False
        missing[-1] -= 1
        first, at = data[at], at + 1
        size, elements = _of(first, data[at : at + 4])
        if size is None:
            return False
        at += size
        if elements:
            if len(missing) > MAX_NESTING or elements > len(data) - at:
                return False
            missing.append(elements)
    return at == len(data)


def _of(first: int, following: bytes) -> tuple[int | None, int]:
    """Bytes that belong to a value's first one, and elements that follow; None where it is none."""
    if first < 0x80 or first >= 0xE0:
        return 0, 0
    if first < 0xA0:
        return 0, (first & 0x0F) * (2 if first < 0x90 else 1)
    if first < 0xC0:
        return first & 0x1F, 0
    if first in _STRINGS:
        size = _STRINGS[first]
        return size + int.from_bytes(following[:size], "big"), 0
    if first in _ARRAYS:
        size, each = _ARRAYS[first]
        return size, each * int.from_bytes(following[:size], "big")
    return _LONE.get(first), 0
