"""What was probably meant by a name that nothing has: for the errors of all commands."""

from collections.abc import Iterable
from typing import Final

_LONGEST: Final = 100  # characters that are compared; no name is as long
_SHORTEST: Final = 4  # a longer word that is a part of a name is more than a likeness
_ALIKE: Final = 0.55  # share of the letters of both that must match


def alike(word: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that look like a word, best first.

    >>> alike("fedarvg", ["fedavg", "delta-fl"]), alike("xyz", ["fedavg", "delta-fl"])
    (['fedavg'], [])
    >>> alike("seeds", ["seed", "num_seeds"])
    ['num_seeds']
    """
    import difflib  # imported here because it is needed only after a mistake

    known = list(known)
    found = difflib.get_close_matches(word[:_LONGEST], known, n=most, cutoff=_ALIKE)
    within = [name for name in known if len(word) > _SHORTEST and word in name]
    return list(dict.fromkeys([*within, *found]))[:most]


def meant(word: str, known: Iterable[str]) -> str:
    """Suggest the known name that was probably meant, for the end of a sentence; "" if none is.

    >>> meant("fedarvg", ["fedavg", "delta-fl"])
    "; did you mean 'fedavg'?"
    """
    return "".join(f"; did you mean {str(name)!r}?" for name in alike(word, known))


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the known name that was probably meant, or list all known names.

    >>> nearest("fedarvg", ["fedavg", "delta-fl"])
    "did you mean 'fedavg'?"
    >>> nearest("xyz", ["fedavg", "delta-fl"])
    'known are fedavg, delta-fl'
    """
    known = list(known)
    return meant(word, known).removeprefix("; ") or f"known are {', '.join(known)}"
