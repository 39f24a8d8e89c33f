"""Tables of things by name, each at a `"module:attribute"` that is imported when first used.

Such a table costs nothing to import, so settings and help pages can read the names from it. To add
something, write its file and add one line to the table; docs/extending.md shows how.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


def load(where: str) -> object:
    """Import the object at `"module:attribute"`.

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
        return name in self._places  # without importing anything

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(frozen=True, slots=True)
class Entry(Generic[T_co]):
    """One line of a table: a factory, and the values that it takes.

    Attributes:
        where: `"module:attribute"` of a class or a function.
        arguments: the names of the values to pass to it, in the order of its arguments.
    """

    where: str
    arguments: tuple[str, ...] = ()

    def make(self, *arguments: object, **options: object) -> T_co:
        """Make the object from these arguments."""
        made: T_co = load(self.where)(*arguments, **options)  # type: ignore[operator]
        return made

    def build(self, values: Mapping[str, object]) -> T_co:
        """Make the object from the values named in `arguments`; others are ignored.

        >>> Entry("fractions:Fraction", ("above", "below")).build({"above": 1, "below": 3})
        Fraction(1, 3)
        """
        return self.make(*(values[name] for name in self.arguments))
