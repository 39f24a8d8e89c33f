"""A small federated data set that comes with scikit-learn: real digits, some held sideways.

1,797 handwritten digits of 8×8 pixels (UCI Optical Recognition of Handwritten Digits) are assigned
to devices of different sizes. A minority of the devices holds the paper sideways: their images are
turned by 90°. A model that serves the average device neglects them, so the error has a tail.

`digits-by-writer` gives them to the people who wrote them.
Everybody who wrote for UCI's Optical Recognition of Handwritten Digits filled in the same form,
some 130 digits in a fixed order, and the 1,797 images of the test set, which are those of
scikit-learn, are still in that order. So their labels repeat, and tell where a form begins:
there are 14 of them. The source names no writers. It says that 13 people wrote these images, so two
of the forms may be of one person.

A device holds a quarter of a form, some 32 images: the sheets of one sitting. Forms are split, not
devices, so nobody whose form trains is tested, but for the person who may have filled in two.
"""

from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate, split_ids
from deltafl.fl.data.registry import Format
from deltafl.fl.errors import DataError

NUM_DEVICES: Final = 60

_STARTS: Final = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
"""Index of each form's first image."""

_NUM_IMAGES: Final = 1797
_PARTS: Final = 4
"""Devices of a form."""


def load_digits(
    split: Split,
    *,
    num_devices: int = NUM_DEVICES,
    rotated_fraction: Fraction = Fraction(1, 5),
) -> FederatedDataset:
    """Assign the digits to devices, all by the split's seed.

    Ids are "upright-…" and "sideways-…". Each group is split on its own, so both sides have the
    same share of the minority.

    Args:
        split: the rule for small devices, and who trains; its seed also assigns the digits.
        num_devices: at least 8 and at most 300.
        rotated_fraction: the share of the devices that are sideways, in (0, 1/2]; both groups have
            at least 2 devices.

    Raises:
        ValueError: an argument is out of range.
        DataError: the rule of `split` leaves too few devices.
    """
    if not 8 <= num_devices <= 300:
        raise ValueError(f"num_devices={num_devices} is not in [8, 300]")
    if not 0 < rotated_fraction <= Fraction(1, 2):
        raise ValueError(f"rotated_fraction={rotated_fraction} is not in (0, 1/2]")
    x, y = _images()
    generator = np.random.default_rng(split.seed)
    order = generator.permutation(len(y))
    sizes = generator.uniform(0.5, 1.5, num_devices)
    ends = np.rint(np.cumsum(sizes) / sizes.sum() * len(y)).astype(int)[:-1]
    num_sideways = max(2, int(num_devices * rotated_fraction))
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


def load_digits_by_writer(split: Split) -> FederatedDataset:
    """Give each quarter of a form to a device of its own.

    Ids are "form-00-part-0" and so on.

    Args:
        split: the rule for small devices, and which forms train.

    Raises:
        DataError: scikit-learn's images are not the 1,797 that are known, or the rule leaves too
            few devices.
    """
    x, y = _images()
    if len(y) != _NUM_IMAGES:
        told = f"scikit-learn has {len(y)} digits in place of {_NUM_IMAGES}"
        raise DataError(f"digits-by-writer: {told}: their writers are not known")
    devices = []
    for form, rows in enumerate(np.split(np.arange(_NUM_IMAGES), _STARTS[1:])):
        for part, own in enumerate(np.array_split(rows, _PARTS)):
            devices.append(DeviceData(f"{_form(form)}-part-{part}", x[own], y[own]))
    _, tested = split_ids([_form(form) for form in range(len(_STARTS))], split)
    test_ids = {device.id for device in devices if device.id.rpartition("-part-")[0] in tested}
    return federate("digits-by-writer", devices, split, test_ids=test_ids)


def _form(number: int) -> str:
    return f"form-{number:02}"


def _images() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    # loaded here, for it takes longer to load than all else that other data need
    from sklearn.datasets import load_digits as sklearn_digits

    digits = sklearn_digits()
    return (digits.images / 16).astype(np.float32), digits.target.astype(np.int64)


FORMAT: Final = Format(
    "digits",
    "1,797 handwritten digits of 8×8, a fifth of the devices holds them sideways",
    load_digits,
    origin="Alpaydin, Kaynak 1998, UCI Optical Recognition of Handwritten Digits; comes with "
    "scikit-learn",
    licence="CC BY 4.0",
)

BY_WRITER: Final = Format(
    "digits-by-writer",
    "the same digits by the forms on which 13 or 14 people wrote them, a quarter to a device",
    load_digits_by_writer,
    origin=FORMAT.origin,
    licence=FORMAT.licence,
)
