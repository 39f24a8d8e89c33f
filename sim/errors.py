"""What can go wrong in a run, and whose fault it is.

    Exception
      ├─ UserError              what was asked for cannot be done; nothing was changed
      │    ├─ ConfigError       a setting: the message names key, value and what would be right
      │    ├─ RunDirectoryError the place: it exists, is in use, damaged, or another run's
      │    └─ TranscriptError   a transcript is damaged; says at which frame
      └─ RunError               the run failed on the way; what it finished is kept

Every message is one sentence for the person at the terminal; the command line prints it and nothing
else.
"""

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


class TranscriptError(UserError):
    """A transcript is not what its writer wrote.

    Attributes:
        frame: sequence number of the first frame that cannot be trusted.
    """

    def __init__(self, frame: int, problem: str) -> None:
        super().__init__(f"transcript damaged at frame {frame}: {problem}")
        self.frame = frame
