"""Exact numbers from text: decimals and fractions of bounded length.

`Fraction("1e99999999")` is thirteen characters long and computes for hours. So the text is
compared with a pattern before it becomes a number.
"""

import re
from fractions import Fraction
from typing import Final

MAX_DIGITS: Final = 64
"""Digits of a decimal's mantissa, and of a fraction's numerator and denominator."""

_MAX_EXPONENT: Final = 400  # that of a double is at most 324
_DECIMAL: Final = re.compile(
    r"[+-]?(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?(?:[eE](?P<exponent>[+-]?[0-9]{1,3}))?"
)
_RATIO: Final = re.compile(rf"[+-]?[0-9]{{1,{MAX_DIGITS}}}/[0-9]{{1,{MAX_DIGITS}}}")


def exact_number(text: str) -> Fraction:
    """Read a decimal such as -0.5 or 1e-3, or a fraction such as 1/3, exactly.

    ASCII digits only, without blanks and underscores; up to `MAX_DIGITS` of them in a part, and
    exponents from -400 to 400.

    Raises:
        ValueError: the text is no such number, or a denominator is zero; in one sentence.

    >>> exact_number("0.8"), exact_number("1/3"), exact_number("25e-2")
    (Fraction(4, 5), Fraction(1, 3), Fraction(1, 4))
    """
    if _RATIO.fullmatch(text):
        above, _, below = text.partition("/")
        if not int(below):
            raise ValueError(f"{shortened(text)} divides by zero")
        return Fraction(int(above), int(below))
    match = _DECIMAL.fullmatch(text)
    if match is None or not 1 <= len(match["whole"] + (match["part"] or "")) <= MAX_DIGITS:
        raise ValueError(
            f"{shortened(text)} is not a decimal or a fraction of up to {MAX_DIGITS} digits"
        )
    if abs(int(match["exponent"] or 0)) > _MAX_EXPONENT:
        raise ValueError(
            f"{shortened(text)} has an exponent that is not from {-_MAX_EXPONENT} to "
            f"{_MAX_EXPONENT}"
        )
    return Fraction(text)


def shortened(value: object, most: int = 40) -> str:
    """A value for a message, however long or deep it is: at most `most` characters of it.

    >>> shortened("x" * 50)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits, or deeper, than Python writes
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= most else f"{text[:most]}…"
