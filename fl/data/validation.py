"""Validation devices: held out of those that train, to choose by, so that the test stays unseen.

What trains and what tests is settled before. Devices are ranked by SHA-256 of (seed, id), as
`deltafl.fl.data.federated` ranks them. Where the samples of each device are divided, so are its
training samples once more.
"""

from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction

import numpy as np

from deltafl.fl.data.federated import (
    FederatedDataset,
    Split,
    rank_of,
    text_under,
)
from deltafl.fl.data.lazy import divided_samples, ids_of, sizes_of, some_devices
from deltafl.fl.errors import DataError


def hold_out(dataset: FederatedDataset, share: Fraction, split: Split) -> FederatedDataset:
    """Hold a share of the training devices out, or of each one's training samples.

    Args:
        dataset: without validation devices.
        share: of the training side, in [0, 1), rounded down, but at least one; 0 changes nothing.
        split: how train and test were divided; its seed decides here, too.

    Raises:
        DataError: the data came with validation devices, or too little is left to train on.
    """
    if not share:
        return dataset
    if len(dataset.validation):
        raise DataError(
            f"{dataset.name}: its files say which devices are for validation: leave the share out"
        )
    train, ids, name = dataset.train, ids_of(dataset.train), dataset.name
    if dataset.test and dataset.test[0].id in ids:
        if text_under(train[0].x) is not None:
            told = "windows of a text overlap, so validation samples would be seen in training"
            raise DataError(f"{name}: {told}: divide devices (data.split = 'devices')")
        if int(sizes_of(train).min()) < 2:
            raise DataError(
                f"{name}: a device has one training sample, and validation needs one more: divide "
                "devices (data.split = 'devices'), or leave the share for validation out"
            )
        everybody = some_devices(train, np.arange(len(train)))
        kept, held = divided_samples(everybody, replace(split, train_fraction=1 - share))
        return replace(dataset, train=kept, validation=held)
    if len(train) < 2:
        raise DataError(
            f"{name}: {len(train)} training device, and validation needs one more: give more "
            "devices, or leave the share for validation out"
        )
    ranked = sorted(
        range(len(ids)), key=lambda number: rank_of("validation", split.seed, ids[number])
    )
    count = min(max(1, int(len(ids) * share)), len(ids) - 1)
    held_out, left = sorted(ranked[:count]), sorted(ranked[count:])
    return replace(
        dataset,
        train=some_devices(train, np.array(left)),
        validation=some_devices(train, np.array(held_out)),
    )


def name_validation(dataset: FederatedDataset, ids: Collection[str]) -> FederatedDataset:
    """Hold out the training devices of these names.

    Raises:
        DataError: nobody is left to train.
    """
    train = tuple(device for device in dataset.train if device.id not in ids)
    if not train:
        raise DataError(f"{dataset.name}: all devices are for validation: leave some to train")
    held = tuple(device for device in dataset.train if device.id in ids)
    return replace(dataset, train=train, validation=held)
