"""Files of a person's own: libraries read them, and each only up to a size.

The size of a file bounds what a library makes of it only roughly. Files that others may have made
to do harm, such as those of a run, have readers that believe nothing (`deltafl.fl.read`).
"""

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Final

from deltafl.fl.errors import DataError
from deltafl.fl.read.regular import open_regular

MAX_BYTES: Final = 1 << 34
"""The largest file, where a kind of files has no smaller bound."""

RAISED: Final = (
    ArithmeticError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""What libraries raise over a damaged file."""


@contextmanager
def bounded(
    path: Path, kind: str, max_bytes: int = MAX_BYTES, mend: str = "fetch the file again"
) -> Iterator[BufferedReader]:
    """Open a file for a library; what that raises over the file's content is a `DataError`.

    Args:
        path: the file.
        kind: what it should be, for messages.
        max_bytes: the largest file that can be meant.
        mend: what to do about a damaged one, for messages.

    Raises:
        DataError: it is missing, no regular file, too large or damaged; it says which.
    """
    try:
        with open_regular(path) as file:
            if (size := os.fstat(file.fileno()).st_size) > max_bytes:
                raise DataError(
                    f"{path}: {size:,} bytes are more than the {max_bytes:,} that such a file can "
                    "have: check the path"
                )
            yield file
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file: check the path") from error
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory: take a part of it") from error
    except RAISED as error:
        why = f"{getattr(error, 'strerror', None) or error}"
        raise DataError(f"{path}: not a readable {kind} ({why:.200}): {mend}") from error
