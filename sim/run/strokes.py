"""How the lines of several methods are told apart: by colour, by dashes and by markers.

The colours are those of Okabe and Ito, which people with any colour vision can tell apart. They are
not enough by themselves: printed in grey, some are alike. The numbers of colours and of dashes have
no common divisor, so the first `NUM_DISTINCT` lines differ in both together, and any eight lines in
a row differ in their dashes.
"""

from dataclasses import dataclass
from typing import Final

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""As hexadecimal RGB."""

DASHES: Final[tuple[tuple[float, ...], ...]] = (
    (),
    (4, 1.6),
    (1, 1.4),
    (6, 1.6, 1, 1.6),
    (9, 2.5),
    (4, 1.4, 1, 1.4, 1, 1.4),
    (2.4, 1.2),
    (10, 1.6, 3, 1.6),
)
"""Lengths of strokes and gaps in turn, in widths of the line; nothing for a solid line."""

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
"""By matplotlib's letters: disc, square, triangle up, diamond, triangle down, plus, cross, ..."""

NUM_DISTINCT: Final = len(COLOURS) * len(DASHES)
"""So many lines differ in colour and dashes together."""


@dataclass(frozen=True, slots=True)
class Stroke:
    """How one line looks.

    Attributes:
        number: of the line, from 0.
    """

    number: int

    @property
    def colour(self) -> str:
        """Hexadecimal RGB."""
        return COLOURS[self.number % len(COLOURS)]

    @property
    def dashes(self) -> tuple[float, ...]:
        """Strokes and gaps in turn, in widths of the line."""
        return DASHES[self.number % len(DASHES)]

    @property
    def style(self) -> str | tuple[float, tuple[float, ...]]:
        """The same for matplotlib."""
        return (0, self.dashes) if self.dashes else "-"

    @property
    def marker(self) -> str:
        """The letter of a marker."""
        return MARKERS[self.number % len(MARKERS)]
