"""The digits that come with scikit-learn, by the people who wrote them.

Everybody who wrote for UCI's Optical Recognition of Handwritten Digits filled in the same form,
some 130 digits in a fixed order, and the 1,797 images of the test set, which are those of
scikit-learn, are still in that order. So their labels repeat, and tell where a form begins:
there are 14 of them. The source names no writers. It says that 13 people wrote these images, so two
of the forms may be of one person.

A device holds a quarter of a form, some 32 images: the sheets of one sitting. Forms are split, not
devices, so nobody whose form trains is tested, but for the person who may have filled in two.
"""

from typing import Final

import numpy as np

from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate, split_ids
from deltafl.fl.data.registry import Format
from deltafl.fl.errors import DataError

_STARTS: Final = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
"""Index of each form's first image."""

_NUM_IMAGES: Final = 1797
_PARTS: Final = 4
"""Devices of a form."""


def load_digits_by_writer(split: Split) -> FederatedDataset:
    """Give each quarter of a form to a device of its own.

    Ids are "form-00-part-0" and so on.

    Args:
        split: the rule for small devices, and which forms train.

    Raises:
        DataError: scikit-learn's images are not the 1,797 that are known, or the rule leaves too
            few devices.
    """
    # loaded here, for it takes longer to load than all else that other data need
    from sklearn.datasets import load_digits

    digits = load_digits()
    if len(digits.target) != _NUM_IMAGES:
        raise DataError(
            f"digits-by-writer: scikit-learn has {len(digits.target)} digits in place of "
            f"{_NUM_IMAGES}: their writers are not known"
        )
    x = (digits.images / 16).astype(np.float32)
    y = digits.target.astype(np.int64)
    devices = []
    for form, rows in enumerate(np.split(np.arange(_NUM_IMAGES), _STARTS[1:])):
        for part, own in enumerate(np.array_split(rows, _PARTS)):
            devices.append(DeviceData(f"{_form(form)}-part-{part}", x[own], y[own]))
    _, tested = split_ids([_form(form) for form in range(len(_STARTS))], split)
    test_ids = {device.id for device in devices if device.id.rpartition("-part-")[0] in tested}
    return federate("digits-by-writer", devices, split, test_ids=test_ids)


def _form(number: int) -> str:
    return f"form-{number:02}"


FORMAT: Final = Format(
    "digits-by-writer",
    "the same digits by the forms on which 13 or 14 people wrote them, a quarter to a device",
    lambda _, split, __: load_digits_by_writer(split),
    origin="Alpaydin, Kaynak 1998, UCI Optical Recognition of Handwritten Digits; comes with "
    "scikit-learn",
    licence="CC BY 4.0",
)
