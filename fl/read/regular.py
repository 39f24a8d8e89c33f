"""Regular files, up to a size: nothing else is opened for reading.

A pipe would wait for a writer, and a device such as /dev/zero has no end.
"""

import errno
import io
import os
import stat
from pathlib import Path
from typing import Final

_PIECE: Final = 1 << 20


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; symbolic links are followed.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe, a socket or a device; with the path
            and the reason.
    """
    try:
        # without O_NONBLOCK, opening a pipe waits for its writer
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, "this cannot be a path", ascii(path)) from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(handle, "rb")


def read_up_to(file: io.BufferedIOBase, most: int) -> bytes:
    """The bytes of a file up to a number, in pieces: `file.read(most)` makes room for `most`."""
    pieces, left = [], most
    while left and (piece := file.read(min(left, _PIECE))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def read_regular(path: Path, most: int) -> bytes:
    """All bytes of a regular file of at most `most` bytes.

    Raises:
        OSError: as `open_regular`; or the file is larger.
    """
    with open_regular(path) as file:
        data = read_up_to(file, most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data
