"""TOML within bounds: what its parser would choke on is refused before it is parsed."""

import math
import re
import tomllib
from typing import Final

MAX_BYTES: Final = 1 << 18
"""The largest file of settings; those that the program writes have 3,000 bytes."""

_MAX_NESTING: Final = 8
_MAX_KEYS: Final = 8  # in a.b.c; each takes the parser as long as all before it together
_MAX_NUMBER: Final = 64
_LONG_NUMBER: Final = re.compile(rf"(?<![\w.+-])[+-]?[0-9][\w.+-]{{{_MAX_NUMBER},}}", re.ASCII)
_QUOTED: Final = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*(?:"""|\Z)|'  # an unclosed text reaches to the end
    r"'''(?:[^']|'(?!''))*(?:'''|\Z)|"
    r'"(?:[^"\\\n]|\\.)*"?|'
    r"'[^'\n]*'?|"
    r"#[^\n]*",
    re.DOTALL,
)


def parse_toml(text: str) -> dict[str, object]:
    """Parse TOML text.

    Raises:
        ValueError: it is not TOML; or it is longer than `MAX_BYTES`, nested more than 8 deep, or
            has a number of more than 64 characters; in one sentence.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"it has {len(text):,} characters, more than {MAX_BYTES:,}")
    # texts and comments may hold anything, and cost the parser nothing; to it they are words here
    bare = _QUOTED.sub("_", text)
    if _depth(bare) > _MAX_NESTING or _most_keys(bare) > _MAX_KEYS:
        raise ValueError(f"it has more than {_MAX_NESTING} levels of arrays and tables")
    if long := _LONG_NUMBER.search(bare):
        raise ValueError(
            f"the number {long[0][:20]}… has {len(long[0])} characters, more than {_MAX_NUMBER}"
        )
    return tomllib.loads(text, parse_float=parse_float)


def parse_float(text: str) -> float:
    """Read a float; one that is written as a number is not taken for infinity, or for zero.

    Raises:
        ValueError: it is beyond the range of a double.
    """
    value = float(text)
    mantissa = text.lower().partition("e")[0]
    if (math.isinf(value) and "inf" not in text) or (not value and re.search("[1-9]", mantissa)):
        raise ValueError(f"the number {text[:20]} is beyond the range of a double")
    return value


def _depth(bare: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[][{}]", bare):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _most_keys(bare: str) -> int:
    return 1 + max(part.count(".") for part in re.split(r"[\n=,\[\]{}]", bare))
