"""Files and folders that a run writes: its own, and never what a link leads to.

A run directory may come from elsewhere. A link in it could lead to any file of the user, a pipe
would wait for ever, and a device has no end. What is replaced is either complete or not there,
whatever happens while it is written.
"""

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from deltafl.sim.errors import damaged

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHANGE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def check_file(path: Path) -> None:
    """Check that a file is a regular one, or not there.

    Raises:
        RunDirectoryError: it is a link, or anything else.
    """
    _check(path, stat.S_ISREG, "a regular file")


def check_folder(path: Path) -> None:
    """Check that a folder is one, or not there.

    Raises:
        RunDirectoryError: it is a link, or anything else.
    """
    _check(path, stat.S_ISDIR, "a folder")


def _check(path: Path, fits: Callable[[int], bool], wanted: str) -> None:
    with suppress(FileNotFoundError):
        if not fits(path.lstat().st_mode):
            raise damaged(path, f"it is not {wanted}, but a link or something else")


def open_own(path: Path) -> BinaryIO:
    """Open a regular file to change it; what it holds is kept. Created where it is missing.

    Raises:
        RunDirectoryError: it is a link, or no regular file.
        OSError: it cannot be opened.
    """
    check_file(path)
    return open(path, "r+b", opener=lambda name, _: os.open(name, _CHANGE, 0o666))


def write_file(path: Path, data: bytes) -> None:
    """Write or replace a file in one step, and bring it to the disk.

    A crash leaves the old file, or none, and at most a left-over whose name starts with a dot.
    """
    write_pieces(path, (data,))


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """The same for a file that is too large to be held in memory."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # a left-over, or a link to a file of somebody else
    with open(temporary, "wb", opener=lambda name, _: os.open(name, _NEW, 0o666)) as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)  # or a power cut could forget the rename


def make_folder(path: Path) -> None:
    """Create a folder, and those above it, where they are missing, and bring their names to disk.

    Raises:
        OSError: it cannot be created, or something else has its name.
    """
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring to the disk which files a folder has, and under which names."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
