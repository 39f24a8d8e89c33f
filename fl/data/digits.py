"""A small federated data set that comes with scikit-learn: real digits, some held sideways.

1,797 handwritten digits of 8×8 pixels (UCI Optical Recognition of Handwritten Digits) are assigned
to devices of different sizes. A minority of the devices holds the paper sideways: their images are
turned by 90°. A model that serves the average device neglects them, so the error has a tail.
"""

from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate, split_ids
from deltafl.fl.data.registry import MINORITY_SHARE, Format

NUM_DEVICES: Final = 60


def load_digits(
    split: Split,
    *,
    num_devices: int = NUM_DEVICES,
    minority_share: Fraction = MINORITY_SHARE,
) -> FederatedDataset:
    """Assign the digits to devices, all by the split's seed.

    Ids are "upright-…" and "sideways-…". Each group is split on its own, so both sides have the
    same share of the minority.

    Args:
        split: the rule for small devices, and who trains; its seed also assigns the digits.
        num_devices: at least 8 and at most 300.
        minority_share: the share of the devices that are sideways, in (0, 1/2]; both groups have
            at least 2 devices.

    Raises:
        ValueError: an argument is out of range.
        DataError: the rule of `split` leaves too few devices.
    """
    if not 8 <= num_devices <= 300:
        raise ValueError(f"num_devices={num_devices} is not in [8, 300]")
    if not 0 < minority_share <= Fraction(1, 2):
        raise ValueError(f"minority_share={minority_share} is not in (0, 1/2]")
    # loaded here, for it takes longer to load than all else that other data need
    from sklearn.datasets import load_digits as sklearn_digits

    digits = sklearn_digits()
    x = (digits.images / 16).astype(np.float32)
    y = digits.target.astype(np.int64)
    generator = np.random.default_rng(split.seed)
    order = generator.permutation(len(y))
    sizes = generator.uniform(0.5, 1.5, num_devices)
    ends = np.rint(np.cumsum(sizes) / sizes.sum() * len(y)).astype(int)[:-1]
    num_sideways = max(2, int(num_devices * minority_share))
    devices = []
    for number, rows in enumerate(np.split(order, ends)):
        if number < num_sideways:
            turned = np.rot90(x[rows], axes=(1, 2)).copy()
            devices.append(DeviceData(f"sideways-{number:03}", turned, y[rows]))
        else:
            devices.append(DeviceData(f"upright-{number:03}", x[rows], y[rows]))
    ids = [device.id for device in devices if device.num_samples > split.more_than]
    test_ids = frozenset[str]()
    for group in ("sideways", "upright"):
        _, side = split_ids([i for i in ids if i.startswith(group)], split)
        test_ids |= side
    return federate("digits", devices, split, test_ids=test_ids)


FORMAT: Final = Format(
    "digits",
    "1,797 handwritten digits of 8×8, a fifth of the devices holds them sideways",
    lambda _, split, options: load_digits(
        split,
        num_devices=options.num_devices or NUM_DEVICES,
        minority_share=options.minority_share,
    ),
    options=frozenset({"num_devices", "minority_share"}),
    origin="Alpaydin, Kaynak 1998, UCI Optical Recognition of Handwritten Digits; comes with "
    "scikit-learn",
    licence="CC BY 4.0",
)
