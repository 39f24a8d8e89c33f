"""Files that are either complete or not there, whatever happens while they are written."""

import os
from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Write or replace a file in one step, and bring it to the disk.

    A crash leaves the old file, or none, and at most a left-over whose name starts with a dot.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # or a power cut could forget the rename
    finally:
        os.close(folder)
