"""Numbers as a caller gives them, as an array; or a sentence that says what would be one."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from deltafl.secagg.errors import SecAggError


def real_numbers(
    where: str, value: object, error: type[SecAggError]
) -> npt.NDArray[np.float64] | npt.NDArray[np.int64]:
    """A vector of booleans, integers or floats; its shape and range are the caller's to check.

    Args:
        where: whose it is, for the message.
        value: what was given.
        error: what to raise.

    Raises:
        SecAggError: of type `error`: it is no such array.
    """
    if isinstance(value, np.ma.MaskedArray):  # what it hides would be summed
        raise error(f"{where}: a masked array: fill in what is hidden")
    try:
        array: npt.NDArray[np.float64] | npt.NDArray[np.int64] = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):  # lists of different lengths; some tensors
        raise error(f"{where}: {type(value).__name__} is no array{_mend(value)}") from None
    if array.dtype.kind not in "biuf":
        raise error(f"{where}: dtype {array.dtype} is not real numbers{_mend(value)}")
    return array


def _mend(value: object) -> str:
    if hasattr(value, "detach"):
        return ": give tensor.detach().float().cpu()"
    if isinstance(value, Mapping | list | tuple):
        return (
            ": join the parts into one vector, such as "
            "numpy.concatenate([numpy.ravel(part) for part in parts]); of tensors, the parts are "
            "part.detach().float().cpu()"
        )
    return ""
