"""What can go wrong in a run, and whose fault it is.

    Exception
      ├─ UserError              what was asked for cannot be done; nothing was changed
      │    ├─ ConfigError       a setting: the message names key, value and what would be right
      │    ├─ RunDirectoryError the place: it exists, is in use, damaged, or another run's
      │    └─ ChainError        a transcript or truth file is damaged; says at which frame
      └─ RunError               the run failed on the way; what it finished is kept

Every message is one sentence for the person at the terminal; the command line prints it and nothing
else.
"""

from enum import StrEnum
from pathlib import Path


class UserError(Exception):
    """What was asked for cannot be done; the message names the value and the remedy."""


class ConfigError(UserError):
    """A setting is unknown, of the wrong type or out of range, or contradicts another."""


class RunDirectoryError(UserError):
    """A run directory cannot be used for this run; it is left as it was."""


def damaged(path: Path, problem: object) -> RunDirectoryError:
    """The error for a file of a run directory that is not what the run wrote."""
    return RunDirectoryError(
        f"{path} is damaged ({problem}): restore it, or start again in another --out"
    )


class RunError(Exception):
    """The run cannot go on; every round that it finished is in its directory."""


class Damage(StrEnum):
    """What is wrong with a chained file."""

    EMPTY = "empty"
    """It has no bytes."""
    FOREIGN = "foreign"
    """It is of another format."""
    VERSION = "version"
    """It is of another version of the format."""
    CUT = "cut"
    """It ends inside a frame, or before what is known of it."""
    EDITED = "edited"
    """A frame is not the one that was written."""
    MISSING = "missing"
    """Frames were taken out."""
    REORDERED = "reordered"
    """Frames were moved or repeated."""
    MALFORMED = "malformed"
    """The chain is whole, but what was written is no record of the format."""

    @property
    def is_unreadable(self) -> bool:
        """Whether nothing can be said about what the file holds."""
        return self in (Damage.EMPTY, Damage.FOREIGN, Damage.VERSION)


class ChainError(UserError):
    """A chained file is not what its writer wrote.

    Attributes:
        frame: number of the first frame that cannot be trusted.
        damage: what is wrong.
        problem: the same in words.
        offset: where that frame begins in the file, in bytes; 0 where it is not known.
    """

    def __init__(self, path: Path, frame: int, damage: Damage, problem: str) -> None:
        where = "" if damage.is_unreadable else f" at frame {frame}"
        super().__init__(f"{path} cannot be read{where}: {problem}")
        self.frame = frame
        self.damage = damage
        self.problem = problem
        self.offset = 0
