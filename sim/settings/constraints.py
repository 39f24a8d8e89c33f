"""Constraints on a single setting, attached to its type: `Annotated[float, Interval("(0, 1]")]`."""

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Final, TypeAlias

from deltafl.fl.nearest import meant
from deltafl.fl.read.exact import exact_number


@dataclass(frozen=True, slots=True)
class Interval:
    """A number in an interval, in mathematical notation.

    >>> Interval("(0, 1]").holds(0), Interval("(0, 1]").holds(1), Interval("[1, inf)").holds(7)
    (False, True, True)

    Attributes:
        text: bracket, low, comma, high, bracket; a round bracket excludes its end, a square one
            includes it.
    """

    text: str

    def requirement(self) -> str:
        """State it as the end of "must …"."""
        low, high = self._ends()
        if high == float("inf"):
            return f"be {'at least' if self.text[0] == '[' else 'above'} {low:g}"
        return f"lie in {self.text}"

    def holds(self, value: object) -> bool:
        """Whether `value` is a number in the interval."""
        if not isinstance(value, int | float | Fraction):
            return False
        low, high = self._ends()
        above = value >= low if self.text[0] == "[" else value > low
        below = value <= high if self.text[-1] == "]" else value < high
        return above and below

    def _ends(self) -> tuple[float, float]:
        low, high = self.text[1:-1].split(",")
        return float(low), float(high)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words; a tuple may contain only these words, each at most once."""

    words: tuple[str, ...]

    def requirement(self) -> str:
        """State it as the end of "must …"."""
        return f"be one of {', '.join(self.words)}"

    def holds(self, value: object) -> bool:
        """Whether `value` is one of the words, or a tuple of different ones."""
        if isinstance(value, tuple):
            return set(value) <= set(self.words) and len(set(value)) == len(value)
        return value in self.words

    def meant(self, value: object) -> str:
        """Suggest the word that was probably meant, for the end of a sentence; "" if none is.

        >>> OneOf(("masked", "ideal")).meant("maskd")
        "; did you mean 'masked'?"
        """
        given = value if isinstance(value, tuple) else (value,)
        unknown = (word for word in given if isinstance(word, str) and word not in self.words)
        return next((meant(word, self.words) for word in unknown), "")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text of some form.

    Attributes:
        regex: that matches the whole text.
        form: what it is, for a sentence.
    """

    regex: str
    form: str

    def requirement(self) -> str:
        """State it as the end of "must …"."""
        return f"be {self.form}"

    def holds(self, value: object) -> bool:
        """Whether `value` is a text of this form."""
        return isinstance(value, str) and re.fullmatch(self.regex, value) is not None


@dataclass(frozen=True, slots=True)
class FallingLevels:
    """Conformity levels, as strings, in falling order.

    >>> FallingLevels().holds(("0.8", "1/3")), FallingLevels().holds(("0.1", "0.5"))
    (True, False)

    Attributes:
        most: the largest number of levels; the same as in `deltafl.protocol.levels`, which takes
            too long to import for a help page.
    """

    most: int = 16

    def requirement(self) -> str:
        """State it as the end of "must …"."""
        return (
            f"be up to {self.most} numbers in (0, 1], each below the one before, such as "
            '["0.8", "0.5", "0.1"]'
        )

    def holds(self, value: object) -> bool:
        """Whether `value` is a tuple of such strings."""
        if not isinstance(value, tuple) or len(value) > self.most:
            return False
        try:
            levels = [exact_number(text) for text in value]
        except ValueError:
            return False
        return all(0 < level <= 1 for level in levels) and all(
            after < before for before, after in pairwise(levels)
        )


Constraint: TypeAlias = Interval | OneOf | Pattern | FallingLevels
"""A condition on a value, in addition to its type: says whether it holds, and what it requires."""

AUTO: Final = "auto"
"""Leaves the choice of a mode to what a plan expects."""

FULL: Final = "full"
"""The mode of a record that keeps every message."""

SUMS: Final = "sums"
"""The mode of a record that keeps of messages what they were, and of the rest what was learnt."""


Count = Annotated[int, Interval("[1, inf)")]
CountOrZero = Annotated[int, Interval("[0, inf)")]
Positive = Annotated[float, Interval("(0, inf)")]
