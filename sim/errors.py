"""The errors of a run, and who can fix them.

    Exception
      ├─ UserError              the request cannot be carried out; nothing was changed
      │    ├─ ConfigError       a setting is wrong; the message names key, value and a valid value
      │    ├─ RunDirectoryError the directory exists, is in use, is damaged or is another run's
      │    └─ ChainError        a transcript or truth file is damaged; says at which frame
      └─ RunError               the run failed; its finished rounds are kept

Every message is one sentence for the user; the command line prints the message and nothing else.
"""

from enum import StrEnum
from pathlib import Path


class UserError(Exception):
    """The request cannot be carried out; the message names the value and the remedy."""


class ConfigError(UserError):
    """A setting is unknown, of the wrong type or out of range, or contradicts another."""


class RunDirectoryError(UserError):
    """A run directory cannot be used for this run; it is left as it was."""


def damaged(path: Path, problem: object) -> RunDirectoryError:
    """The error for a file of a run directory that does not have the content that the run wrote."""
    return RunDirectoryError(
        f"{path} is damaged ({problem}): restore it, or start a new run in another --out"
    )


class RunError(Exception):
    """The run cannot continue; all rounds that it finished are in its directory."""


class Damage(StrEnum):
    """What is wrong with a chained file."""

    EMPTY = "empty"
    """It has no bytes."""
    FOREIGN = "foreign"
    """It has another format."""
    VERSION = "version"
    """It has another version of the format."""
    CUT = "cut"
    """It ends inside a frame, or before the end recorded elsewhere."""
    EDITED = "edited"
    """A frame differs from the one that was written."""
    MISSING = "missing"
    """Frames were removed."""
    REORDERED = "reordered"
    """Frames were moved or repeated."""
    MALFORMED = "malformed"
    """The chain is intact, but a frame's content is not a record of the format."""

    @property
    def is_unreadable(self) -> bool:
        """Whether nothing is known about the file's contents."""
        return self in (Damage.EMPTY, Damage.FOREIGN, Damage.VERSION)


class ChainError(UserError):
    """A chained file differs from what its writer wrote.

    Attributes:
        frame: number of the first frame that cannot be trusted.
        damage: what is wrong.
        problem: the same in words.
    """

    def __init__(self, path: Path, frame: int, damage: Damage, problem: str) -> None:
        where = "" if damage.is_unreadable else f" at frame {frame}"
        super().__init__(f"{path} cannot be read{where}: {problem}")
        self.frame = frame
        self.damage = damage
        self.problem = problem
