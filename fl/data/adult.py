"""UCI Adult: people with a doctorate and people without, two devices; income over 50,000 a year?

Source: Becker, Kohavi 1996, UCI Machine Learning Repository (doi 10.24432/C5XW20). The two domains
are those of Mohri, Sivek, Suresh 2019, "Agnostic Federated Learning" (arXiv 1902.00146), Section 6;
413 and 32,148 samples train, 181 and 16,100 test, as the files divide them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from deltafl.fl.data.checks import check_column
from deltafl.fl.data.csv_file import one_hot, read_frame
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, SplitBy
from deltafl.fl.data.files import bounded
from deltafl.fl.data.leaf import read_json_file
from deltafl.fl.data.registry import BY_SAMPLES, UCI, Download, Format, Published
from deltafl.fl.errors import DataError

DOMAINS: Final = ("non-phd", "phd")

_NAMES: Final = """
age: continuous
workclass: Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov,
  Without-pay, Never-worked
fnlwgt: continuous
education: Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th,
  7th-8th, 12th, Masters, 1st-4th, 10th, Doctorate, 5th-6th, Preschool
education-num: continuous
marital-status: Married-civ-spouse, Divorced, Never-married, Separated, Widowed,
  Married-spouse-absent, Married-AF-spouse
occupation: Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty,
  Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving,
  Priv-house-serv, Protective-serv, Armed-Forces
relationship: Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried
race: White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black
sex: Female, Male
capital-gain: continuous
capital-loss: continuous
hours-per-week: continuous
native-country: United-States, Cambodia, England, Puerto-Rico, Canada, Germany,
  Outlying-US(Guam-USVI-etc), India, Japan, Greece, South, China, Cuba, Iran, Honduras,
  Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, Portugal, Ireland, France,
  Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, Guatemala, Nicaragua,
  Scotland, Thailand, Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, Holand-Netherlands
"""
"""The columns in the order of the files, and their categories, as `adult.names` lists them."""

_COLUMNS: Final = {
    column: None if known == "continuous" else tuple(re.split(r",\s+", known))
    for column, known in re.findall(r"^(\S+): (.*(?:\n  .*)*)", _NAMES, re.MULTILINE)
}
"""By column its categories; None for numbers."""

NUM_FEATURES: Final = sum(1 if known is None else len(known) for known in _COLUMNS.values())
"""105: six numbers, and one-hot blocks for the others; a missing value is a block of zeros."""

_TYPES: Final = {column: float if known is None else str for column, known in _COLUMNS.items()}
_MISSING: Final = "?"
_MAX_BYTES: Final = 1 << 25
_INCOMES: Final = ("<=50K", ">50K")


def load_adult(folder: Path, split: Split) -> FederatedDataset:
    """Read both domains, split as the files are: adult.data trains, adult.test tests.

    Args:
        folder: holds adult.data and adult.test as UCI gives them, or one file *.json or *.json.gz
            in the LEAF format with the users phd, non-phd, phd_test and non-phd_test and the raw
            columns as inputs.
        split: a split by samples; its fraction and seed have nothing to decide here.

    Returns:
        Raw features, float32 [n, 105]: standardise them.

    Raises:
        DataError: a file is missing or damaged, or the split is by devices.
    """
    split.check_whole("adult")
    if split.by is not SplitBy.SAMPLES:
        raise DataError("adult: two devices cannot be divided: split by samples")
    packed = [path for path in folder.glob("*") if path.name.endswith((".json", ".json.gz"))]
    if len(packed) == 1:
        sides = _read_leaf(packed[0])
    else:
        sides = [_read_side(folder / name) for name in ("adult.data", "adult.test")]
    train, test = (tuple(side[domain] for domain in DOMAINS) for side in sides)
    smallest = min(device.num_samples for device in train)
    if smallest <= split.more_than:
        raise DataError(f"adult: a device has {smallest} samples: lower data.min_samples")
    shape, rule = (NUM_FEATURES,), "keep both domains, split as the files are"
    return FederatedDataset("adult", train, test, 2, shape, dropped=0, rule=rule)


def _read_side(path: Path) -> dict[str, DeviceData]:
    with bounded(path, "table") as file:
        has_title = file.read(1) == b"|"  # adult.test
    rows = read_frame(path, _TYPES | {"income": str}, _MAX_BYTES, skip_rows=int(has_title))
    income = rows["income"].str.removesuffix(".")
    y = one_hot(path, income, _INCOMES)[:, 1].astype(np.int64)
    x, is_phd = _features(path, rows), (rows["education"] == "Doctorate").to_numpy()
    devices = {}
    for domain, mine in zip(DOMAINS, (~is_phd, is_phd), strict=True):
        if not mine.any():
            raise DataError(f"{path}: no rows of {domain!r}: fetch the file again")
        devices[domain] = DeviceData(domain, x[mine], y[mine])
    return devices


def _features(path: Path, rows: pd.DataFrame) -> npt.NDArray[np.float32]:
    blocks = [
        rows[[column]].to_numpy(np.float32)
        if known is None
        else one_hot(path, rows[column], known, _MISSING)
        for column, known in _COLUMNS.items()
    ]
    return np.concatenate(blocks, axis=1, dtype=np.float32)


def _read_leaf(path: Path) -> list[dict[str, DeviceData]]:
    content: Any = read_json_file(path, _MAX_BYTES)
    try:
        return [
            {
                domain: _leaf_device(path, domain, content["user_data"][domain + side])
                for domain in DOMAINS
            }
            for side in ("", "_test")
        ]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not the Adult data ({error!r:.60}): it needs user_data with "
            "non-phd, phd, non-phd_test and phd_test, each with x and y"
        ) from error


def _leaf_device(path: Path, domain: str, samples: Mapping[str, Any]) -> DeviceData:
    y = np.array(samples["y"])
    try:
        rows = pd.DataFrame(samples["x"], columns=list(_COLUMNS)).astype(str)
        rows = rows.astype({column: kind for column, kind in _TYPES.items() if kind is float})
        if rows.empty or y.shape != (len(rows),) or not np.isin(y, (0, 1)).all():
            raise ValueError(f"{len(rows)} inputs and labels of shape {y.shape}")
    except ValueError as error:
        raise DataError(
            f"{path}: samples of {domain!r} are not {len(_COLUMNS)} columns and a label 0 or 1 "
            f"({error!s:.200}): write the file anew"
        ) from error
    for column, values in rows.select_dtypes(float).items():
        check_column(path, str(column), values.to_numpy())
    return DeviceData(domain, _features(path, rows), y.astype(np.int64))


FORMAT: Final = Format(
    "adult",
    "income of people with and without a doctorate",
    load_adult,
    BY_SAMPLES,
    needs="the folder of adult.data and adult.test",
    origin="Becker, Kohavi 1996, UCI Adult; domains as in Mohri, Sivek, Suresh 2019",
    licence="CC BY 4.0",
    published=Published("the files: 32,561 + 16,281 rows", 2, 2, num_samples=48_842),
    downloads=tuple(Download(f"{UCI}/adult/adult.{side}", 1 << 24) for side in ("data", "test")),
    note="Raw features: standardise them (data.standardise = train). SplitBy as the files are.",
)
