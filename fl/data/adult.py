"""UCI Adult: people with a doctorate and people without, two devices; income over 50,000 a year?

Source: Becker, Kohavi 1996, UCI Machine Learning Repository (doi 10.24432/C5XW20). The two domains
are those of Mohri, Sivek, Suresh 2019, "Agnostic Federated Learning" (arXiv 1902.00146), Section 6;
413 and 32,148 samples train, 181 and 16,100 test, as the files divide them.
"""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.delimited import number, read_rows, wrong_category
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, SplitBy
from deltafl.fl.data.json_file import read_json_file
from deltafl.fl.data.registry import BY_SAMPLES, UCI, Download, Format, Published
from deltafl.fl.errors import DataError
from deltafl.fl.read.regular import open_regular

DOMAINS: Final = ("non-phd", "phd")

_COLUMNS: Final[dict[str, tuple[str, ...] | None]] = {
    "age": None,
    "workclass": (
        "Private",
        "Self-emp-not-inc",
        "Self-emp-inc",
        "Federal-gov",
        "Local-gov",
        "State-gov",
        "Without-pay",
        "Never-worked",
    ),
    "fnlwgt": None,
    "education": (
        "Bachelors",
        "Some-college",
        "11th",
        "HS-grad",
        "Prof-school",
        "Assoc-acdm",
        "Assoc-voc",
        "9th",
        "7th-8th",
        "12th",
        "Masters",
        "1st-4th",
        "10th",
        "Doctorate",
        "5th-6th",
        "Preschool",
    ),
    "education-num": None,
    "marital-status": (
        "Married-civ-spouse",
        "Divorced",
        "Never-married",
        "Separated",
        "Widowed",
        "Married-spouse-absent",
        "Married-AF-spouse",
    ),
    "occupation": (
        "Tech-support",
        "Craft-repair",
        "Other-service",
        "Sales",
        "Exec-managerial",
        "Prof-specialty",
        "Handlers-cleaners",
        "Machine-op-inspct",
        "Adm-clerical",
        "Farming-fishing",
        "Transport-moving",
        "Priv-house-serv",
        "Protective-serv",
        "Armed-Forces",
    ),
    "relationship": (
        "Wife",
        "Own-child",
        "Husband",
        "Not-in-family",
        "Other-relative",
        "Unmarried",
    ),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "capital-gain": None,
    "capital-loss": None,
    "hours-per-week": None,
    "native-country": (
        "United-States",
        "Cambodia",
        "England",
        "Puerto-Rico",
        "Canada",
        "Germany",
        "Outlying-US(Guam-USVI-etc)",
        "India",
        "Japan",
        "Greece",
        "South",
        "China",
        "Cuba",
        "Iran",
        "Honduras",
        "Philippines",
        "Italy",
        "Poland",
        "Jamaica",
        "Vietnam",
        "Mexico",
        "Portugal",
        "Ireland",
        "France",
        "Dominican-Republic",
        "Laos",
        "Ecuador",
        "Taiwan",
        "Haiti",
        "Columbia",
        "Hungary",
        "Guatemala",
        "Nicaragua",
        "Scotland",
        "Thailand",
        "Yugoslavia",
        "El-Salvador",
        "Trinadad&Tobago",
        "Peru",
        "Hong",
        "Holand-Netherlands",
    ),
}
"""The columns in the order of the files, and their categories as `adult.names` lists them."""

NUM_FEATURES: Final = sum(1 if known is None else len(known) for known in _COLUMNS.values())
"""105: six numbers, and one-hot blocks for the others; a missing value is a block of zeros."""

_STARTS: Final = tuple(accumulate((len(known or "1") for known in _COLUMNS.values()), initial=0))
_LAYOUT: Final = tuple(
    (column, start, None if known is None else {text: place for place, text in enumerate(known)})
    for (column, known), start in zip(_COLUMNS.items(), _STARTS[:-1], strict=True)
)
"""Per column: its name, where its features begin, and where among them each category stands."""

_MISSING: Final = "?"
_MAX_BYTES: Final = 1 << 25
_INCOMES: Final = ("<=50K", ">50K")
_TEST_HEADER: Final = b"|1x3 Cross validator"  # the first line of adult.test

_Rows = Iterator[tuple[int, list[str], str]]


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
    if split.by is not SplitBy.SAMPLES:
        raise DataError(
            "adult: two devices cannot be split into train and test devices: split by samples"
        )
    packed = sorted(path for path in folder.glob("*") if path.name.endswith((".json", ".json.gz")))
    if len(packed) == 1:
        users = _read_leaf(packed[0])
        sides = [
            {domain: users[f"{domain}{suffix}"] for domain in DOMAINS} for suffix in ("", "_test")
        ]
    else:
        sides = [_read_side(folder / name) for name in ("adult.data", "adult.test")]
    train, test = (tuple(side[domain] for domain in DOMAINS) for side in sides)
    smallest = min(device.num_samples for device in train)
    if smallest <= split.more_than:
        raise DataError(
            f"adult: a device has {smallest} samples and the rule is to keep those with more than "
            f"{split.more_than}: lower the number"
        )
    return FederatedDataset(
        name="adult",
        train=train,
        test=test,
        num_classes=2,
        input_shape=(NUM_FEATURES,),
        dropped=0,
        rule="keep both domains, split as the files are",
    )


def _read_side(path: Path) -> dict[str, DeviceData]:
    rows: dict[str, list[tuple[list[float], int]]] = {domain: [] for domain in DOMAINS}
    for line, fields, income in _uci_rows(path):
        domain = "phd" if fields[3] == "Doctorate" else "non-phd"
        rows[domain].append((_features(path, line, fields), _label(path, line, income)))
    for domain, samples in rows.items():
        if not samples:
            raise DataError(f"{path}: no rows of {domain!r}: fetch the file again")
    return {domain: _device(domain, samples) for domain, samples in rows.items()}


def _uci_rows(path: Path) -> _Rows:
    skip = 0
    if path.is_file():
        with open_regular(path) as file:
            skip = int(file.readline(100).strip() == _TEST_HEADER)
    for line, fields in read_rows(
        path, num_columns=len(_COLUMNS) + 1, max_bytes=_MAX_BYTES, skip=skip
    ):
        yield line, fields[:-1], fields[-1].removesuffix(".")


def _label(path: Path, line: int, income: str) -> int:
    if income not in _INCOMES:
        raise wrong_category(path, line, "income", income, _INCOMES)
    return _INCOMES.index(income)


def _features(path: Path, line: int, fields: list[str]) -> list[float]:
    features = [0.0] * NUM_FEATURES
    for (column, start, places), text in zip(_LAYOUT, fields, strict=True):
        if places is None:
            features[start] = number(path, line, column, text)
        elif text in places:
            features[start + places[text]] = 1.0
        elif text != _MISSING:
            raise wrong_category(path, line, column, text, tuple(places))
    return features


def _device(domain: str, samples: list[tuple[list[float], int]]) -> DeviceData:
    x: npt.NDArray[np.float32] = np.array([features for features, _ in samples], np.float32)
    return DeviceData(domain, x, np.array([label for _, label in samples], np.int64))


def _read_leaf(path: Path) -> dict[str, DeviceData]:
    content: Any = read_json_file(path, _MAX_BYTES)
    try:
        user_data = content["user_data"]
        users = [f"{domain}{suffix}" for domain in DOMAINS for suffix in ("", "_test")]
        raw = {user: (list(user_data[user]["x"]), list(user_data[user]["y"])) for user in users}
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not the Adult data ({error!r:.60}): it needs user_data with "
            "non-phd, phd, non-phd_test and phd_test, each with x and y"
        ) from error
    return {user: _leaf_device(path, user, x, y) for user, (x, y) in raw.items()}


def _leaf_device(path: Path, user: str, x: list[object], y: list[object]) -> DeviceData:
    samples = []
    if len(x) != len(y) or not x:
        raise DataError(f"{path}: user {user!r} has {len(x)} inputs and {len(y)} labels")
    for row, (fields, label) in enumerate(zip(x, y, strict=True), start=1):
        if not isinstance(fields, list) or len(fields) != len(_COLUMNS) or label not in (0, 1):
            raise DataError(
                f"{path}: sample {row} of user {user!r} is not {len(_COLUMNS)} columns and 0 or 1"
            )
        samples.append((_features(path, row, [str(field) for field in fields]), int(bool(label))))
    return _device(user.removesuffix("_test"), samples)


FORMAT: Final = Format(
    "adult",
    "income of people with and without a doctorate",
    lambda source, split, _: load_adult(Path(source), split),
    BY_SAMPLES,
    needs="the folder of adult.data and adult.test",
    origin="Becker, Kohavi 1996, UCI Adult; domains as in Mohri, Sivek, Suresh 2019",
    licence="CC BY 4.0",
    published=Published("the files: 32,561 + 16,281 rows", 2, 2, num_samples=48_842),
    downloads=tuple(Download(f"{UCI}/adult/adult.{side}", 1 << 24) for side in ("data", "test")),
    note="Raw features: standardise them (data.standardise = train). SplitBy as the files are.",
)
