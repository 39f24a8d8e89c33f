"""Files that are either complete or not there, whatever happens while they are written."""

import os
from collections.abc import Iterable
from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Write or replace a file in one step, and bring it to the disk.

    A crash leaves the old file, or none, and at most a left-over whose name starts with a dot.
    """
    write_pieces(path, (data,))


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """The same for a file that is too large to be held in memory."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)  # or a power cut could forget the rename


def sync_folder(path: Path) -> None:
    """Bring to the disk which files a folder has, and under which names."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
