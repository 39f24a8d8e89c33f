"""Files that are either complete or not there, whatever happens while they are written.

Nothing is written through a link: a folder may come from elsewhere.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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
