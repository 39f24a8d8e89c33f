"""Files and folders that a run changes in place: its own, and never what a link leads to.

A run directory may come from elsewhere. A link in it could lead to any file of the user, a pipe
would wait for ever, and a device has no end.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from deltafl.sim.errors import damaged

_CHANGE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def check_file(path: Path) -> None:
    """Check that a file is a regular one, or not there.

    Raises:
        RunDirectoryError: it is a link, or anything else.
    """
    if (mode := _mode(path)) is not None and not stat.S_ISREG(mode):
        raise damaged(path, f"it is {_kind(mode)}, not a regular file")


def check_folder(path: Path) -> None:
    """Check that a folder is one, or not there.

    Raises:
        RunDirectoryError: it is a link, or anything else.
    """
    if (mode := _mode(path)) is not None and not stat.S_ISDIR(mode):
        raise damaged(path, f"it is {_kind(mode)}, not a folder")


def open_own(path: Path) -> BinaryIO:
    """Open a regular file to change it; what it holds is kept. Created where it is missing.

    Raises:
        RunDirectoryError: it is a link, or no regular file.
        OSError: it cannot be opened.
    """
    check_file(path)
    return open(path, "r+b", opener=lambda name, _: os.open(name, _CHANGE, 0o666))


def _mode(path: Path) -> int | None:
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a link"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a file" if stat.S_ISREG(mode) else "a pipe, a socket or a device"
