"""The most memory that a command has held, in MB of 10^6 bytes."""

import resource
import sys
from typing import Final

_MAXRSS_BYTES: Final = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
_MEGABYTE: Final = 1e6


def peak_memory_mb() -> float:
    """The most resident memory of this process so far, without its children's."""
    return _peak_mb(resource.RUSAGE_SELF)


def peak_memory_of_children_mb() -> float:
    """The most resident memory of the largest child process that was waited for; 0 without any.

    Pages that it shares with its parent are counted for both. Children that ran at the same time
    are not added up.
    """
    return _peak_mb(resource.RUSAGE_CHILDREN)


def _peak_mb(who: int) -> float:
    return round(resource.getrusage(who).ru_maxrss * _MAXRSS_BYTES / _MEGABYTE, 1)
