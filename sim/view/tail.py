"""The last piece of a file that has been read, by which the file is known again.

A file that another run has written, or that was cut back and has grown again, has something else
there: lines of events have times in them, and records of a transcript secrets that are masked.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from deltafl.fl.read.regular import open_regular


@dataclass(frozen=True, slots=True)
class Tail:
    """A piece of a file.

    Attributes:
        begin: where it begins, in bytes.
        end: where it ends, and what is new begins.
        digest: SHA-256 of it; empty where it could not be read.
    """

    begin: int = 0
    end: int = 0
    digest: bytes = b""

    @classmethod
    def of(cls, path: Path, begin: int, end: int) -> Self:
        """A piece of a file as it is now."""
        try:
            with open_regular(path) as file:
                file.seek(begin)
                return cls(begin, end, sha256(file.read(end - begin)).digest())
        except (OSError, ValueError):
            return cls(begin, end)

    def is_in(self, path: Path) -> bool:
        """Whether the file still has it there; an empty piece is in every file."""
        return not self.end or Tail.of(path, self.begin, self.end) == self
