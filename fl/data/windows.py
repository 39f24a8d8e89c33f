"""Windows of a text, as views: n windows of L characters take the memory of n + L − 1."""

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from deltafl.fl.data.federated import DeviceData, Samples, Split
from deltafl.fl.errors import DataError


def windowed_device(device_id: str, text: npt.NDArray[np.int8], length: int) -> DeviceData:
    """Give every window of a text and the character that follows it.

    Args:
        device_id: who wrote it.
        text: the codes, shape [characters].
        length: L, positive.

    Returns:
        x [n, L] a view of the text, y int64 [n], with n = max(0, characters − L).
    """
    if len(text) <= length:
        return DeviceData(device_id, np.empty((0, length), text.dtype), np.empty(0, np.int64))
    return DeviceData(
        device_id, sliding_window_view(text[:-1], length), text[length:].astype(np.int64)
    )


def text_under(x: Samples) -> Samples | None:
    """Give the text, shape [n + L − 1], that x [n, L] is a view of; None if x is none.

    >>> device = windowed_device("a", np.arange(6, dtype=np.int8), 3)
    >>> text_under(device.x).tolist()
    [0, 1, 2, 3, 4]
    >>> text_under(device.x.copy()) is None
    True
    """
    if x.ndim != 2 or len(x) == 0 or x.strides != (x.itemsize, x.itemsize):
        return None
    text: Samples = as_strided(x, (sum(x.shape) - 1,), (x.itemsize,), writeable=False)  # type: ignore[assignment]
    return text


def split_text(device: DeviceData, split: Split) -> tuple[DeviceData, DeviceData]:
    """Cut one text in two: the first part trains, the second tests.

    Windows overlap, and a split at random would show a test window's characters to training. After
    the cut no character is in a window, or a label, of both sides; that costs L windows.

    Raises:
        DataError: the windows are no text in one piece, or fewer than L + 2.
    """
    count, length = device.x.shape
    text = text_under(device.x)
    if text is None:
        raise DataError(
            f"user {device.id!r}: its windows are no text in one piece and can not be split "
            "without a leak: split by devices, or give the text"
        )
    if count < length + 2:
        raise DataError(
            f"user {device.id!r} has {count} windows and a split by samples needs {length + 2}: "
            "leave the user out (min_samples)"
        )
    usable = count - length
    num_train = min(max(1, int(usable * split.train_fraction)), usable - 1)
    train = DeviceData(device.id, device.x[:num_train], device.y[:num_train])
    test = slice(num_train + length, None)
    return train, DeviceData(device.id, device.x[test], device.y[test])
