"""Arrays out of a NumPy archive (.npz) that somebody else has written, or what is wrong with it."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.errors import DataError
from deltafl.fl.read.npz import MAX_ARRAY_BYTES, open_npz

_HOW: Final = "write it anew with np.savez, without object arrays"


def read_arrays(
    path: Path, required: Collection[str], optional: Collection[str] = ()
) -> Mapping[str, npt.NDArray[np.generic]]:
    """Read arrays by their names; others are left alone.

    Args:
        path: the archive.
        required: must be there.
        optional: are read if they are there.

    Raises:
        DataError: the file is missing, broken, or needs pickle; a required array is not there, or
            an array is too large.
    """
    if not path.exists():
        raise DataError(
            f"{path}: no such file: check the path; of a preset's data, `deltafl presets NAME` "
            "says where they come from"
        )
    try:
        with open_npz(path) as archive:
            missing = [name for name in required if name not in archive.entries]
            if missing:
                raise DataError(
                    f"{path}: no array {missing[0]!r} (found: "
                    f"{', '.join(archive.entries)[:200] or 'none'}): store {', '.join(required)}"
                )
            names = [name for name in (*required, *optional) if name in archive.entries]
            return {name: archive.read(name, MAX_ARRAY_BYTES) for name in names}
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory: take a part of it") from error
    except OSError as error:
        raise DataError(f"{path}: not readable ({error.strerror or error}): check it") from error
    except ValueError as error:
        raise DataError(f"{path}: not a readable .npz archive ({error}): {_HOW}") from error
