"""JSON as its standard has it (RFC 8259), within bounds; what Python adds is refused."""

import json
import re
from collections.abc import Sequence
from typing import Final, NoReturn

MAX_NESTING: Final = 32
"""How deep arrays and objects may lie in each other."""

MAX_INTEGER: Final = 20
"""Characters of an integer: those of 64 bits and a sign."""

_SKELETON: Final = b'"[]{}'
_REST: Final = bytes(set(range(256)) - set(_SKELETON))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_HALF: Final = re.compile(r"[\ud800-\udfff]")


def parse_json(data: bytes, *, halves: bool = False) -> object:
    """Parse JSON in UTF-8, without a byte order mark.

    Memory and time are proportional to the data: about thirty bytes for one.

    Args:
        data: the text.
        halves: whether a text may hold half of a surrogate pair, which no encoding can write. Old
            data sets do, where a text was cut inside a character.

    Returns:
        None, booleans, integers, floats (numbers beyond a double's range become infinite), texts,
        lists, and dictionaries with texts as keys.

    Raises:
        ValueError: this is not JSON; or NaN and infinities, a name that an object has twice,
            integers of more than `MAX_INTEGER` characters, or more than `MAX_NESTING` levels.
    """
    if nesting(data) > MAX_NESTING:
        raise ValueError(f"it has more than {MAX_NESTING} levels of arrays and objects")
    text = data.decode("utf-8")
    document: object = json.loads(
        text, object_pairs_hook=_object, parse_int=_integer, parse_constant=_constant
    )
    if not halves and "\\u" in text:
        _check_halves(document)
    return document


def nesting(data: bytes) -> int:
    """The number of levels of arrays and objects in JSON text, without parsing it.

    Levels beyond `MAX_NESTING` are not counted, but for the first.

    Raises:
        ValueError: a bracket has no other.

    >>> nesting(b'{"a[[[": [[1], "]"]}')
    3
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(data.translate(_ONE_KIND, _REST).split(b'"')[::2])
    depth = 0
    while outside and depth <= MAX_NESTING:
        shorter = outside.replace(b"[]", b"")  # the innermost level of each array
        if len(shorter) == len(outside):
            raise ValueError("its brackets do not match")
        outside, depth = shorter, depth + 1
    return depth


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen = set[str]()
        double = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the name {double!a:.40} twice")
    return table


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER:
        raise ValueError(f"an integer has {len(text)} characters, more than {MAX_INTEGER}")
    return int(text)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _check_halves(value: object) -> None:
    """Refuse texts that no encoding can write; the nesting is bounded already."""
    if isinstance(value, str) and _HALF.search(value):
        raise ValueError(f"the text {value!a:.40} holds half of a surrogate pair")
    if isinstance(value, dict):
        for name, item in value.items():
            _check_halves(name)
            _check_halves(item)
    elif isinstance(value, list):
        for item in value:
            _check_halves(item)
