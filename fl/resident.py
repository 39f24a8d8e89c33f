"""Devices' samples as tensors on the learner's device; on an accelerator they stay there."""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from deltafl.fl.data.federated import DeviceData

_BUDGET: Final = 4 << 30


class ResidentData:
    """Tensors of devices' samples.

    On a CPU they are the device's own arrays if those can be used directly, and nothing is kept. On
    an accelerator the data of the first devices, up to a budget, are copied once.

    Args:
        device: where to compute.
        budget: bytes that may be kept.
    """

    def __init__(self, device: torch.device, budget: int = _BUDGET) -> None:
        self.device = device
        self._left = 0 if device.type == "cpu" else budget
        # by identity, which is what devices are equal by: their samples never change
        self._kept: dict[DeviceData, tuple[torch.Tensor, torch.Tensor]] = {}

    def tensors(self, data: DeviceData) -> tuple[torch.Tensor, torch.Tensor]:
        """Give inputs as a model takes them, and labels, which are only to be read."""
        if data in self._kept:
            return self._kept[data]
        found = _tensor(data.inputs()).to(self.device), _tensor(data.y).to(self.device)
        size = sum(tensor.numel() * tensor.element_size() for tensor in found)
        if size <= self._left:
            self._left -= size
            self._kept[data] = found
        return found


def _tensor(array: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> torch.Tensor:
    # without a copy, which torch would warn of for an array that may not be written to
    return torch.from_numpy(array) if array.flags.writeable else torch.tensor(array)
