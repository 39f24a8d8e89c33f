"""MNIST by writer: which of ten digits did this person write?

The images and labels are MNIST's (LeCun, Cortes, Burges). MNIST says nothing of its writers; QMNIST
(Yadav and Bottou, "Cold Case: The Lost MNIST Digits", NeurIPS 2019, arXiv 1905.10498) found them in
NIST's records. Its label files have a row of eight integers per image, of which column 0 is the
digit and column 2 the writer. Its training rows are in the order of MNIST's training images, and
its first test rows in that of MNIST's test images. A device is a writer: 70,000 images of 836
writers, 583 of whom have more than 50.

Pixels are as MNIST has them, ink 255 on 0.
"""

import gzip
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.checks import checked_device, rows_by_user
from deltafl.fl.data.federated import FederatedDataset, Split, federate
from deltafl.fl.data.files import bounded
from deltafl.fl.data.registry import Download, Format
from deltafl.fl.errors import DataError
from deltafl.fl.read.regular import read_up_to

SIDE: Final = 28
"""Pixels of a side."""

_MAX_ROWS: Final = 1 << 18  # QMNIST's test labels have 60,000
_COLUMNS: Final = 8  # of a row of QMNIST's labels
_DIGIT, _WRITER = 0, 2
_MAX_WRITER: Final = 1 << 20
_UINT8: Final = np.dtype(np.uint8)
_INT32: Final = np.dtype(">i4")
_MEND: Final = "fetch the files with `deltafl data fetch qmnist`"
_CODES: Final = {_UINT8: 0x08, _INT32: 0x0C}  # of the IDX format

_MNIST: Final = "https://ossci-datasets.s3.amazonaws.com/mnist"
_QMNIST: Final = "https://raw.githubusercontent.com/facebookresearch/qmnist/master"

_FILES: Final = {
    f"{_MNIST}/train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    f"{_MNIST}/train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    f"{_MNIST}/t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    f"{_MNIST}/t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    f"{_QMNIST}/qmnist-train-labels-idx2-int": "0058f8dd561b90ffdd0f734c6a30e5e4",
    f"{_QMNIST}/qmnist-test-labels-idx2-int": "5b5b05890a5e13444e108efe57b788aa",
}
"""The files, each packed (.gz), and their MD5."""

_Number = TypeVar("_Number", np.uint8, np.int32)


def load_qmnist(folder: Path, split: Split) -> FederatedDataset:
    """Read the six files and give each writer their images: x uint8 [n, 28, 28], y int64 [n].

    A writer's id is w and NIST's number: "w391".

    Args:
        folder: holds MNIST's {train,t10k}-images-idx3-ubyte.gz and {train,t10k}-labels-idx1-
            ubyte.gz, and QMNIST's qmnist-{train,test}-labels-idx2-int.gz.
        split: the rule for small devices, and who trains.

    Raises:
        DataError: a file is missing or damaged, the files do not belong together, or too few
            writers remain.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder: {_MEND}")
    parts = [_part(folder, "train", "train"), _part(folder, "t10k", "test")]
    x, y, writer = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if not len(y):
        raise DataError(f"{folder}: its files have no images: {_MEND}")
    numbers, index = np.unique(writer, return_inverse=True)
    devices = [
        checked_device(str(folder), name, x[rows], y[rows])
        for name, rows in rows_by_user([f"w{number}" for number in numbers], index)
    ]
    return federate("qmnist", devices, split)


def _part(
    folder: Path, mnist: str, qmnist: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Images, digits and writers of MNIST's training or test images."""
    images = _read(folder / f"{mnist}-images-idx3-ubyte.gz", _UINT8, (SIDE, SIDE))
    labels = _read(folder / f"{mnist}-labels-idx1-ubyte.gz", _UINT8, ())
    place = folder / f"qmnist-{qmnist}-labels-idx2-int.gz"
    rows = _read(place, _INT32, (_COLUMNS,))
    if len(labels) != len(images) or len(rows) < len(images):
        found = f"{len(images):,} {mnist} images, {len(labels):,} labels and {len(rows):,} rows"
        raise DataError(f"{folder}: {found} of QMNIST's: {_MEND}")
    rows = rows[: len(images)]
    differing = np.flatnonzero(rows[:, _DIGIT] != labels)
    if differing.size:
        row = differing[0]
        said = f"row {row:,} says {rows[row, _DIGIT]} and MNIST's label is {labels[row]}"
        raise DataError(f"{place}: {said}: {_MEND}")
    writers = rows[:, _WRITER]
    wrong = np.flatnonzero((writers < 0) | (writers >= _MAX_WRITER))
    if wrong.size:
        said = f"row {wrong[0]:,} has the writer {writers[wrong[0]]}, no number of NIST's"
        raise DataError(f"{place}: {said}: {_MEND}")
    return images, labels, writers


def _read(path: Path, dtype: "np.dtype[_Number]", shape: tuple[int, ...]) -> npt.NDArray[_Number]:
    """Read a packed IDX file: an array [n, *shape].

    A file is two zero bytes, the code of the type, the number of dimensions, each dimension in four
    bytes, and the numbers, all big-endian. Only the number of rows is the file's to say.
    """
    head = bytes((0, 0, _CODES[dtype], 1 + len(shape)))
    sizes = b"".join(size.to_bytes(4, "big") for size in shape)
    row_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    most = len(head) + 4 + len(sizes) + _MAX_ROWS * row_bytes
    with bounded(path, "packed IDX file", mend=_MEND) as file:
        data = read_up_to(gzip.GzipFile(fileobj=file), most + 1)
    rows = int.from_bytes(data[4:8], "big")
    start = 8 + len(sizes)
    if data[:4] != head or data[8:start] != sizes or len(data) - start != rows * row_bytes:
        raise DataError(f"{path}: not the expected IDX file of {dtype} [n, {shape}]: {_MEND}")
    return np.frombuffer(data, dtype, offset=start).reshape(rows, *shape)


FORMAT: Final = Format(
    "qmnist",
    "MNIST's ten digits by 836 writers, 28×28",
    load_qmnist,
    Split(more_than=50, num_classes=10),
    needs="the folder of MNIST's four files and of QMNIST's two files of labels",
    origin="LeCun, Cortes, Burges, MNIST; writers from QMNIST (Yadav and Bottou 2019)",
    licence="MNIST: CC BY-SA 3.0; QMNIST: BSD",
    downloads=tuple(Download(f"{url}.gz", 1 << 24, md5=md5) for url, md5 in _FILES.items()),
    note="Writers with more than 50 images are kept. The MD5 sums are those of torchvision.",
)
