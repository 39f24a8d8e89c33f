"""UCI Heart Disease: four hospitals, four devices; does the patient have the disease?

Source: Janosi, Steinbrunn, Pfisterer, Detrano 1988, UCI Machine Learning Repository
(doi 10.24432/C52P4X), files processed.*.data. Which columns and rows are used follows Fed-Heart-
Disease of FLamby (Ogier du Terrail et al. 2022, arXiv 2210.04620): ten columns, complete rows only,
303 / 261 / 46 / 130 of them; cp and restecg one-hot without their first category, 13 features.
"""

from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.data.csv_file import one_hot, read_frame
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate
from deltafl.fl.data.registry import BY_SAMPLES, UCI, Download, Format, Published
from deltafl.fl.errors import DataError

HOSPITALS: Final = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS: Final = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
)
NUM_FEATURES: Final = 13
"""The eight other columns in their order, then cp = 2, 3, 4, then restecg = 1, 2."""

_TYPES: Final = dict.fromkeys(COLUMNS, float) | {
    # mostly missing outside Cleveland
    **dict.fromkeys(("slope", "ca", "thal"), None),
    "num": float,
}
_MAX_BYTES: Final = 1 << 20
_CATEGORIES: Final = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}


def load_heart(folder: Path, split: Split) -> FederatedDataset:
    """Read the four hospitals' files; the label is 1 where the disease is present (num > 0).

    Args:
        folder: holds processed.cleveland.data, .hungarian.data, .switzerland.data and .va.data.
        split: usually a split by samples, for there are four devices only.

    Returns:
        Raw features, float32 [n, 13]: standardise them, on average chol is 200 and sex below 1.

    Raises:
        DataError: a file is missing or damaged, or too few devices remain.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder: it holds processed.<hospital>.data")
    devices = [_read(folder / f"processed.{hospital}.data", hospital) for hospital in HOSPITALS]
    return federate("heart", devices, split)


def _read(path: Path, hospital: str) -> DeviceData:
    rows = read_frame(path, _TYPES, _MAX_BYTES, nothing=("?",)).dropna(subset=list(COLUMNS))
    if rows.empty:
        raise DataError(f"{path}: no complete row: fetch the file again")
    if rows["num"].isna().any():
        raise DataError(f"{path}: a complete row has no num, the label: fetch the file again")
    others = rows[[column for column in COLUMNS if column not in _CATEGORIES]].to_numpy()
    encoded = [one_hot(path, rows[column], known)[:, 1:] for column, known in _CATEGORIES.items()]
    x = np.concatenate([others, *encoded], axis=1, dtype=np.float32)
    return DeviceData(hospital, x, (rows["num"] > 0).to_numpy(np.int64))


FORMAT: Final = Format(
    "heart",
    "heart disease in four hospitals",
    load_heart,
    BY_SAMPLES,
    needs="the folder of processed.{cleveland,hungarian,switzerland,va}.data",
    origin="Janosi, Steinbrunn, Pfisterer, Detrano 1988, UCI Heart Disease",
    licence="CC BY 4.0",
    published=Published("arXiv 2210.04620 (Fed-Heart-Disease)", 2, 4, num_samples=740),
    downloads=tuple(
        Download(f"{UCI}/heart-disease/processed.{hospital}.data", 1 << 20)
        for hospital in ("cleveland", "hungarian", "switzerland", "va")
    ),
    note="Raw features: standardise them (data.standardise = train or device).",
)
