"""JSON of a data set, plain (.json) or packed (.json.gz)."""

import gzip
import zlib
from pathlib import Path

from deltafl.fl.errors import DataError
from deltafl.fl.read.regular import open_regular, read_up_to
from deltafl.fl.read.strict_json import parse_json
from deltafl.fl.read.zipped import allowance


def read_json_file(path: Path, most: int) -> object:
    """Read one file.

    Args:
        path: the file; it is unpacked if its name ends in .gz.
        most: bytes that it may have, unpacked.

    Raises:
        DataError: it cannot be read, is too large, or is not JSON in UTF-8.
    """
    try:
        data = _read(path, most)
        if len(data) > most:
            raise DataError(f"{path}: more than {most:,} bytes of JSON: divide it among files")
        # texts may be cut inside a character: names of users are checked where they are read
        return parse_json(data, halves=True)
    except DataError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(
            f"{path}: broken or cut short ({error}): fetch or write the file again"
        ) from error
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory: divide it among files") from error


def _read(path: Path, most: int) -> bytes:
    """The first bytes of the file, one more than it may have at most."""
    with open_regular(path) as file:
        if path.suffix != ".gz":
            return read_up_to(file, most + 1)
        limit = min(most, allowance(path.stat().st_size))
        with gzip.open(file) as packed:
            data = read_up_to(packed, limit + 1)
    if limit < len(data) <= most:
        raise ValueError(f"it unpacks to more than {limit:,} bytes")
    return data
