"""Evaluate one model on many devices in one pass.

Devices of a federation are small: with one call per device, call overhead dominates. Here batches
are filled across device boundaries. A large device spans several batches, many small ones share
one, and the results of the samples are added up by device. Only one device and one batch are in
memory at a time, so there may be any number of devices that are generated on demand
(`deltafl.fl.data.lazy`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deltafl.fl.criterion import CLASSIFIES, Criterion, DeviceMetric, tensor_of
from deltafl.fl.data.federated import DeviceData

_Batch: TypeAlias = tuple[npt.NDArray[np.generic], npt.NDArray[np.generic], npt.NDArray[np.int64]]
"""Inputs [n, *input_shape], targets [n, ...], and the number of each sample's device [n]."""

_NUMBERS: Final = 256 * 28 * 28
_TOKEN_NUMBERS: Final = 20
_MOST_ROWS: Final = 2_048
"""A batch holds this many numbers of inputs, and this many inputs at most. A token stands for a
vector and counts for several. On one thread, 256 images are best for the linear model and the
ConvNet, which with 512 can take 1.6 times as long for each; 500 texts of 20 tokens for the GRUs,
which 2,000 slow down; 2,000 short rows for logistic regression; a dozen waveforms for M5."""


@dataclass(frozen=True, slots=True)
class DeviceMetrics:
    """The performance of a model on one device.

    Attributes:
        id: the device.
        num_samples: n_k.
        loss: mean over its samples; of the papers' models, the cross-entropy in nats.
        error: share of misclassified samples, in [0, 1]; or the mean of another measure
            (`deltafl.fl.criterion`).
    """

    id: str
    num_samples: int = field(repr=False)
    loss: float = field(repr=False)
    error: float = field(repr=False)


def measure(
    module: nn.Module,
    devices: Sequence[DeviceData],
    device: torch.device,
    criterion: Criterion = CLASSIFIES,
    *,
    with_metric: bool = True,
) -> list[DeviceMetrics]:
    """Evaluate a model on each device, in the order of `devices`.

    A sample's loss is computed in float64 from outputs in float32, and added up in float64. In a
    batch of another size the outputs may differ in their last bit, and so may a device's loss with
    the devices before it. The same devices in the same order give the same bits on a CPU with a
    fixed number of threads. If all samples of a device have one loss, that is its loss to the bit:
    devices on which a new model is equally bad are tied, whatever their numbers of samples.

    Args:
        module: on `device`; left in evaluation mode.
        devices: iterated once; their inputs have the same shape and type.
        device: where to compute; sums are computed on the CPU.
        criterion: what is measured.
        with_metric: whether a `DeviceMetric` is wanted, and not the loss alone.

    Raises:
        ValueError: a device has no samples, the devices' inputs are not alike, the module does not
            take them, or a loss or a metric cannot be used.
    """
    module.eval()
    metric = criterion.measures
    whole = _Whole(metric) if isinstance(metric, DeviceMetric) and with_metric else None
    names: list[tuple[str, int]] = []
    origins = np.zeros(len(devices))  # the loss of a device's first sample
    excess = np.zeros(len(devices))  # the sum of all of them, beyond that
    wrong = np.zeros(len(devices))
    last = -1
    with torch.inference_mode():
        for x, y, owners in _batches(devices, names):
            labels = torch.from_numpy(y).to(device)
            outputs = module(torch.from_numpy(x).to(device))
            loss, missed = (one.cpu().numpy() for one in criterion.measure(outputs, labels))
            begins = np.flatnonzero(np.diff(owners, prepend=last))
            origins[owners[begins]] = loss[begins]
            first, last = owners[0], owners[-1]
            with np.errstate(invalid="ignore"):  # of infinite losses, which are told as NaN
                beyond = loss - origins[owners]
            excess[first : last + 1] += np.bincount(owners - first, beyond)
            wrong[first : last + 1] += np.bincount(owners - first, missed)
            if whole is not None:
                whole.add(tensor_of(outputs), labels, owners)
    counts = np.array([count for _, count in names], dtype=np.int64)
    losses, errors = (origins + excess / counts).tolist(), (wrong / counts).tolist()
    if whole is not None:
        errors = whole.finish()
    return [
        DeviceMetrics(name, count, loss, error)
        for (name, count), loss, error in zip(names, losses, errors, strict=True)
    ]


class _Whole:
    """Gathers what a module gives for a device, and measures all of it when the next one begins."""

    def __init__(self, metric: DeviceMetric) -> None:
        self._metric = metric
        self._owner = -1
        self._parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._found: list[float] = []

    def add(
        self, outputs: torch.Tensor, targets: torch.Tensor, owners: npt.NDArray[np.int64]
    ) -> None:
        """Take a batch, whose memory may be used again."""
        who, sizes = np.unique(owners, return_counts=True)
        pairs = zip(
            *(torch.split(one.cpu(), sizes.tolist()) for one in (outputs, targets)), strict=True
        )
        for owner, (part, wanted) in zip(who, pairs, strict=True):
            if owner != self._owner:
                self._measure()
            self._owner = owner
            self._parts.append((part, wanted.clone()))

    def finish(self) -> list[float]:
        """What was measured, device by device."""
        self._measure()
        return self._found

    def _measure(self) -> None:
        if self._parts:
            outputs, targets = map(torch.cat, zip(*self._parts, strict=True))
            self._found.append(self._metric(outputs, targets))
        self._parts.clear()


def _batches(devices: Sequence[DeviceData], names: list[tuple[str, int]]) -> Iterator[_Batch]:
    """Fill one buffer after the other's reading; `names` takes down id and size of each device."""
    batch: _Batch | None = None
    filled = 0
    for number, data in enumerate(devices):
        if not data.num_samples:
            raise ValueError(f"device {data.id!r} has no samples to measure: leave it out")
        names.append((data.id, data.num_samples))
        x, y, owners = batch = batch or _buffers(data)
        done = 0
        while done < data.num_samples:
            stop = min(data.num_samples, done + len(y) - filled)
            # tokens are up to eight times as large as a model takes them as they lie in memory
            whole = stop - done == data.num_samples
            part = data if whole else DeviceData(data.id, data.x[done:stop], data.y[done:stop])
            rows = slice(filled, filled + stop - done)
            x[rows] = _alike(part.inputs(), x)
            y[rows] = part.y
            owners[rows] = number
            done, filled = stop, rows.stop
            if filled == len(y):
                yield batch
                filled = 0
    if batch and filled:
        x, y, owners = batch
        yield x[:filled], y[:filled], owners[:filled]


def _buffers(data: DeviceData) -> _Batch:
    sample = data.x.shape[1:]
    numbers = math.prod(sample) * (_TOKEN_NUMBERS if data.is_tokens else 1)
    rows = max(1, min(_MOST_ROWS, _NUMBERS // max(1, numbers)))
    x = np.empty((rows, *sample), np.int64 if data.is_tokens else np.float32)
    targets = np.empty((rows, *data.y.shape[1:]), data.y.dtype)
    return x, targets, np.empty(rows, np.int64)


def _alike(
    inputs: npt.NDArray[np.generic], buffer: npt.NDArray[np.generic]
) -> npt.NDArray[np.generic]:
    """The inputs, if the buffer can hold them as they are; NumPy would repeat or round them."""
    if inputs.dtype != buffer.dtype or inputs.shape[1:] != buffer.shape[1:]:
        raise ValueError(
            f"inputs of {inputs.dtype} {inputs.shape[1:]} among inputs of {buffer.dtype} "
            f"{buffer.shape[1:]}: measure devices together whose inputs have one shape and type"
        )
    return inputs
