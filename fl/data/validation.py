"""Validation devices: held out of those that train, to choose by, so that the test stays unseen.

What trains and what tests is settled before. Devices are ranked by SHA-256 of (seed, id), as
`deltafl.fl.data.federated` ranks them. Where the samples of each device are divided, so are its
training samples once more.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from deltafl.fl.data.federated import (
    FederatedDataset,
    Split,
    rank_of,
    split_samples,
    text_under,
)
from deltafl.fl.data.lazy import LazyDevices, divided_samples, some_devices
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
    train = dataset.train
    ids = train.ids if isinstance(train, LazyDevices) else [device.id for device in train]
    if dataset.test and dataset.test[0].id in ids:
        return _of_samples(dataset, replace(split, train_fraction=1 - share))
    return _of_devices(dataset, ids, share, split.seed)


def _of_devices(
    dataset: FederatedDataset, ids: Sequence[str], share: Fraction, seed: int
) -> FederatedDataset:
    train = dataset.train
    if len(train) < 2:
        raise DataError(
            f"{dataset.name}: {len(train)} training device, and validation needs one more: give "
            "more devices, or leave the share for validation out"
        )
    ranked = sorted(range(len(ids)), key=lambda number: rank_of("validation", seed, ids[number]))
    count = min(max(1, int(len(ids) * share)), len(ids) - 1)
    held, left = sorted(ranked[:count]), sorted(ranked[count:])
    if isinstance(train, LazyDevices):
        return replace(
            dataset,
            train=some_devices(train, np.array(left)),
            validation=some_devices(train, np.array(held)),
        )
    return replace(
        dataset,
        train=tuple(train[number] for number in left),
        validation=tuple(train[number] for number in held),
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


def _of_samples(dataset: FederatedDataset, split: Split) -> FederatedDataset:
    train = dataset.train
    if text_under(train[0].x) is not None:
        raise DataError(
            f"{dataset.name}: windows of a text overlap, so validation samples would be seen in "
            "training: divide devices (data.split = 'devices')"
        )
    if isinstance(train, LazyDevices):
        if int(train.sizes.min()) < 2:
            raise DataError(
                f"{dataset.name}: a device has one training sample, and validation needs one more: "
                "divide devices (data.split = 'devices'), or leave the share for validation out"
            )
        everybody = np.arange(len(train))
        kept, held = (divided_samples(train, everybody, split, side) for side in (0, 1))
        return replace(dataset, train=kept, validation=held)
    sides = [split_samples(device, split) for device in train]
    return replace(
        dataset, train=tuple(one for one, _ in sides), validation=tuple(one for _, one in sides)
    )
