"""How values are written for people: sizes, numbers, shares, and text that others wrote."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from deltafl.sim.visible import visible

if TYPE_CHECKING:  # loaded by pages alone
    import jinja2

NONE: Final = "—"
"""Stands for a missing value."""

_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def shown(value: object) -> object:
    """Text as it may be shown; markup and values that are not text stay as they are."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def number(value: int) -> str:
    """An integer in groups of three digits.

    >>> number(1234567)
    '1,234,567'
    """
    return f"{value:,}".replace("-", "−")


def count(value: int, noun: str, plural: str | None = None) -> str:
    """A number of things, with the noun in singular or plural.

    >>> count(1, "device"), count(2000, "device"), count(0, "search", "searches")
    ('1 device', '2,000 devices', '0 searches')
    """
    return f"{number(value)} {noun if value == 1 else plural or noun + 's'}"


def span(first: int, last: int) -> str:
    """An interval of integers.

    >>> span(7, 7), span(7, 9)
    ('7', '7–9')
    """
    return number(first) if first == last else f"{number(first)}–{number(last)}"


def size(value: int) -> str:
    """A number of bytes to three digits, in decimal units.

    >>> size(999), size(57_800), size(999_960)
    ('999 B', '57.8 kB', '1 MB')
    """
    if value < 1000:
        return f"{value} B"
    scaled = value / 1000
    for unit in ("kB", "MB", "GB"):
        if scaled < 999.5:
            return f"{scaled:.3g} {unit}"
        scaled /= 1000
    return f"{scaled:,.0f} TB"


def quantity(value: float | None) -> str:
    """A number to three digits; a dash for None and for NaN.

    >>> quantity(0.25), quantity(1.5e-5), quantity(-1e9), quantity(float("inf")), quantity(None)
    ('0.25', '1.5 × 10⁻⁵', '−10⁹', '∞', '—')
    """
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    sign = "−" if value < 0 else ""
    digits, _, exponent = f"{abs(value):.3g}".partition("e")
    if not exponent:
        return sign + digits
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return sign + (power if digits == "1" else f"{digits} × {power}")


def share(part: int, whole: int) -> str:
    """A part in percent; 0 of 0 is 0 %.

    >>> share(1, 3), share(1, 5000), share(0, 0)
    ('33.3 %', '< 0.1 %', '0 %')
    """
    found = part / whole if whole else 0.0
    return "< 0.1 %" if 0 < found < 0.001 else percent(found)


def percent(value: float | None) -> str:
    """A share in percent.

    >>> percent(0.125), percent(1.0), percent(None)
    ('12.5 %', '100 %', '—')
    """
    return quantity(None) if value is None else f"{100 * value:.1f}".removesuffix(".0") + " %"


def templates(
    packages: Sequence[str], *filters: Callable[..., object], **constants: object
) -> "jinja2.Environment":
    """The templates of some packages: they escape all that they print, and write values as here.

    Args:
        packages: whose files they are.
        filters: what else they know, by the functions' names.
        constants: by their names.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(one, "") for one in packages]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    known = (number, count, span, size, quantity, share, percent, *filters)
    environment.filters.update({one.__name__: one for one in known})
    environment.globals.update(NONE=NONE, **constants)
    return environment
