"""Medical question pairs: do two questions mean the same? Eleven doctors, eleven devices.

Source: McCreery et al. 2020, "Effective Transfer Learning for Identifying Similar Questions"
(arXiv 2008.13546), mqp.csv with 3,048 pairs; a device per doctor as in Hahn et al. 2024 (AAggFF,
arXiv 2405.20821), Appendix C.

AAggFF fine-tunes DistilBERT on the text. Here a pair is what the mean word vectors u and v of its
questions give, [u, v, |u − v|, u·v] (Conneau et al. 2017, arXiv 1705.02364, Section 3.1): a
stand-in for that model, for small ones. Results on it are not to be compared with AAggFF's.
"""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.csv_file import check_values, read_frame
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, federate
from deltafl.fl.data.glove import WordVectors, load_glove
from deltafl.fl.data.registry import BY_SAMPLES, TABLE_A2, Download, Format, Published

_MAX_BYTES: Final = 1 << 24
_QUESTIONS: Final = ("first", "second")
_COLUMNS: Final = ("doctor", *_QUESTIONS, "label")


def load_mqp(path: Path, split: Split, *, vectors: Path | None = None) -> FederatedDataset:
    """Read the pairs of every doctor.

    Args:
        path: mqp.csv, or the folder that holds it.
        split: usually a split by samples, for there are eleven devices only.
        vectors: word vectors, as `deltafl.fl.data.glove.load_glove` takes them. Words are looked up
            in lower case; an unknown one is not counted.

    Returns:
        float32 [n, 4 · dimension], and the label 1 for pairs that mean the same.

    Raises:
        DataError: a file is missing or damaged, or too few devices remain.
    """
    source = path / "mqp.csv" if path.is_dir() else path
    words = load_glove(vectors)
    rows = read_frame(source, dict.fromkeys(_COLUMNS, str), _MAX_BYTES)
    for column, form, right in (
        ("doctor", "[0-9]{1,9}", "a number"),  # there are eleven
        ("label", "[01]", "0 or 1"),
    ):
        check_values(source, rows[column], rows[column].str.fullmatch(form), right)
    u, v = (np.stack([_mean(words, text) for text in rows[name]]) for name in _QUESTIONS)
    x = np.concatenate([u, v, np.abs(u - v), u * v], axis=1)
    y, doctors = rows["label"].to_numpy(np.int64), rows["doctor"].to_numpy(np.int64)
    devices = [
        DeviceData(f"doctor-{doctor:02}", x[doctors == doctor], y[doctors == doctor])
        for doctor in np.unique(doctors)
    ]
    return federate("mqp (mean word vectors)", devices, split)


def _mean(words: WordVectors, text: str) -> npt.NDArray[np.float32]:
    rows = [row for row in words.indices(text.lower()) if row != words.unknown]
    mean: npt.NDArray[np.float32] = words.table[rows or [words.unknown]].mean(axis=0)
    return mean


FORMAT: Final = Format(
    "mqp",
    "whether two medical questions mean the same, by doctor",
    load_mqp,
    BY_SAMPLES,
    needs="mqp.csv or its folder",
    origin="McCreery et al. 2020, Curai; devices as in AAggFF",
    licence="see the repository curai/medical-question-pair-dataset",
    published=Published(TABLE_A2, 2, 11, num_samples=3_048),
    downloads=(
        Download(
            "https://raw.githubusercontent.com/curai/medical-question-pair-dataset/master/mqp.csv",
            1 << 24,
            md5="06c0121fe60cefa3cdf4d49a637dcaa6",
        ),
    ),
    note="Mean word vectors stand in for DistilBERT. They are needed (data.vectors): "
    "`deltafl data fetch glove`.",
)
