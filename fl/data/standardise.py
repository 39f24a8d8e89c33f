"""Scaling of features to mean 0 and standard deviation 1, learnt from train devices only.

The published code of arXiv 2002.11223 divides by the mean instead and uses the test devices' own
constants on them; here (x − mean) / max(std, floor) uses one set of constants for all.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from fl.data.federated import DeviceData, FederatedDataset

STD_FLOOR: Final = 1e-2
"""The smallest divisor. A feature that is (nearly) constant on train devices is not blown up."""


def standardise(dataset: FederatedDataset) -> FederatedDataset:
    """Scale every feature by its mean and standard deviation over all train samples.

    The result holds float32 inputs, also where the source held bytes. Tokens stay as they are.
    """
    if dataset.train[0].is_tokens:
        return dataset
    count = sum(device.num_samples for device in dataset.train)
    total = sum(device.inputs().sum(axis=0, dtype=np.float64) for device in dataset.train)
    mean = np.asarray(total) / count
    # a second pass and not E[x²] − E[x]², which cancels
    squares = sum(((device.inputs() - mean) ** 2).sum(axis=0) for device in dataset.train)
    std = np.maximum(np.sqrt(np.asarray(squares) / count), STD_FLOOR)

    def scaled(device: DeviceData) -> DeviceData:
        x = ((device.inputs() - mean) / std).astype(np.float32)
        return DeviceData(device.id, x, device.y)

    return replace(
        dataset,
        train=tuple(scaled(device) for device in dataset.train),
        test=tuple(scaled(device) for device in dataset.test),
    )
