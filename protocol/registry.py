"""What is known by a name, and where it is: `"module:attribute"`, imported when it is first used.

A table of such names costs nothing to import, so that settings and help pages read their words off
it. To add something is to write its file and one line of the table; docs/extending.md shows it.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


def load(where: str) -> object:
    """Import what lies at `"module:attribute"`.

    >>> load("fractions:Fraction")
    <class 'fractions.Fraction'>
    """
    module, _, attribute = where.partition(":")
    found: object = getattr(importlib.import_module(module), attribute)
    return found


class Registry(Mapping[str, T_co]):
    """A table of things by name, each imported when it is asked for.

    >>> numbers = Registry({"half": "fractions:Fraction"})
    >>> list(numbers), numbers["half"]
    (['half'], <class 'fractions.Fraction'>)

    Args:
        places: `"module:attribute"` by name.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)

    def __getitem__(self, name: str) -> T_co:
        found: T_co = load(self._places[name])  # type: ignore[assignment]  # the table says so
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places  # and import nothing

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(frozen=True, slots=True)
class Entry(Generic[T_co]):
    """One line of a table: what makes a thing, and which values it is made from.

    Attributes:
        where: `"module:attribute"` of a class or a function.
        arguments: the names of its arguments' values, in their order.
    """

    where: str
    arguments: tuple[str, ...] = ()

    def make(self, *arguments: object, **options: object) -> T_co:
        """Make it from these arguments."""
        made: T_co = load(self.where)(*arguments, **options)  # type: ignore[operator]
        return made

    def build(self, values: Mapping[str, object]) -> T_co:
        """Make it from the values that it names; others are left alone.

        >>> Entry("fractions:Fraction", ("above", "below")).build({"above": 1, "below": 3})
        Fraction(1, 3)
        """
        return self.make(*(values[name] for name in self.arguments))
