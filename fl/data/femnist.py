"""FEMNIST: which of 62 characters did this person write?

A device is a writer of NIST Special Database 19. Its archive by_write says who wrote an image and
by_class what it shows; the two are joined by the images' MD5. Classes: digits 0–9, upper case
10–35, lower case 36–61. Images are scaled from 128×128 to 28×28 and stay bytes, paper white = 255,
ink = 0, as in arXiv 2002.11223 and LEAF (Caldas et al. 2018); they are not inverted.

LEAF's script stores the first image of every writer but the first twice, and the papers' counts
include that; `legacy_duplicates` does the same, by default nothing is stored twice. Its JSON, which
has these duplicates, is read too.
"""

import hashlib
import os
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from deltafl.fl.data.federated import (
    DeviceData,
    FederatedDataset,
    Split,
    choose_users,
    draw_rows,
    federate,
)
from deltafl.fl.data.files import bounded
from deltafl.fl.data.image_folder import read_image
from deltafl.fl.data.leaf import LeafUser, numeric_device, read_leaf
from deltafl.fl.data.registry import EMNIST_ROW, Download, Format
from deltafl.fl.errors import DataError

NUM_CLASSES: Final = 62
SIDE: Final = 28
"""Pixels of a side."""

_NIST_SIDE: Final = 128
# an image of the database has about 1,000 bytes
_IMAGE: Final = ("image of NIST's", 1 << 20, "unpack the archive again")
_CLASSES: Final[Mapping[str, int]] = {
    f"{ord(character):x}": label
    for label, character in enumerate(
        string.digits + string.ascii_uppercase + string.ascii_lowercase
    )
}
"""The folders of by_class are named by the character's code in hex: 30 is the digit 0."""


def load_femnist(path: Path, split: Split, *, legacy_duplicates: bool = False) -> FederatedDataset:
    """Read the writers: x uint8 [n, 28, 28], y int64 [n].

    Only images of writers who stay are decoded. The whole database has 814,255 images of 3,597
    writers in 1.6 million files, and takes 640 MB here: `deltafl data convert` writes a part of it
    as one .npz file.

    Args:
        path: a folder with by_class/ and by_write/ (or raw_data/ with both), or LEAF's JSON (a
            file, or a folder).
        split: the rule for small devices, and who trains. The papers keep writers with more
            than 100 images.
        legacy_duplicates: store the first image of every writer but the first twice. Not for
            LEAF's JSON, which has them.

    Raises:
        DataError: the source is neither, or damaged (the file is named); too few writers remain.
    """
    split = replace(split, num_classes=split.num_classes or NUM_CLASSES)
    nist = next((root for root in (path, path / "raw_data") if _is_nist(root)), None)
    if nist is not None:
        return _load_nist(nist, split, legacy_duplicates)
    if legacy_duplicates:
        raise DataError(f"{path}: LEAF's JSON has the duplicates: leave legacy_duplicates out")
    writers, test_ids = read_leaf(path, _leaf_writer)
    return federate("femnist", writers, split, test_ids=test_ids)


def _is_nist(root: Path) -> bool:
    return (root / "by_class").is_dir() and (root / "by_write").is_dir()


def _load_nist(root: Path, split: Split, legacy_duplicates: bool) -> FederatedDataset:
    classes = {_md5(file): label for label, file in _class_images(root)}
    images: dict[str, list[tuple[Path, int]]] = {}
    unmatched = 0
    for writer, file in _writer_images(root):
        label = classes.get(_md5(file))
        if label is None:
            unmatched += 1
        else:
            images.setdefault(writer, []).append((file, label))
    if legacy_duplicates:
        for writer in sorted(images)[1:]:
            images[writer].insert(0, images[writer][0])
    counts = {writer: len(found) for writer, found in images.items()}
    devices = []
    for writer in choose_users(str(root), counts, split):
        rows = draw_rows(writer, counts[writer], split.max_samples, split.seed)
        devices.append(_device(writer, [images[writer][row] for row in rows.tolist()]))
    dataset = federate("femnist", devices, split, counts=counts)
    if unmatched:
        return replace(dataset, rule=f"{dataset.rule}; {unmatched} images without a class left out")
    return dataset


def _class_images(root: Path) -> Iterator[tuple[int, Path]]:
    """Give label and file of each image, the class that is to win last.

    An image that is filed under two classes gets the first of them.
    """
    for folder in reversed(_folders(root / "by_class")):
        label = _CLASSES.get(folder.name)
        if label is None:
            raise DataError(f"{folder}: it is no character's code: unpack by_class.zip again")
        for part in _folders(folder):
            # the images of train_* are those of hsf_*, a second time
            if "hsf" in part.name and "mit" not in part.name:
                for file in _images(part):
                    yield label, file


def _writer_images(root: Path) -> Iterator[tuple[str, Path]]:
    for kind in sorted((root / "by_write").glob("*/*/*/")):
        for file in _images(kind):
            yield kind.parent.name, file


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir())


def _images(folder: Path) -> list[Path]:
    return [folder / name for name in sorted(os.listdir(folder)) if name.endswith(".png")]


def _md5(file: Path) -> bytes:
    with bounded(file, *_IMAGE) as opened:
        return hashlib.md5(opened.read(), usedforsecurity=False).digest()


def _device(writer: str, images: Sequence[tuple[Path, int]]) -> DeviceData:
    x = np.stack([_pixels(file) for file, _ in images])
    return DeviceData(writer, x, np.array([label for _, label in images], np.int64))


def _pixels(file: Path) -> npt.NDArray[np.uint8]:
    with bounded(file, *_IMAGE) as opened:
        image = read_image(opened.read(), ("PNG",))
        if image.size != (_NIST_SIDE, _NIST_SIDE):
            wide, high = image.size
            raise ValueError(f"{wide}×{high} pixels instead of {_NIST_SIDE}×{_NIST_SIDE}")
    # not thumbnail(), which since Pillow 7 shrinks in two steps and gives other pixels
    small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(small, np.uint8)


def _leaf_writer(user: LeafUser) -> DeviceData:
    """Turn LEAF's 784 numbers k / 255 back into bytes, a quarter of the memory."""
    device = numeric_device(user)
    if device.x.shape[1:] not in ((SIDE * SIDE,), (SIDE, SIDE)):
        raise user.wrong(f"inputs have the shape {device.x.shape[1:]}: this is no FEMNIST")
    scaled = device.inputs() * np.float32(255)
    pixels = np.rint(scaled)
    if pixels.min() < 0 or pixels.max() > 255 or np.abs(scaled - pixels).max() > 0.01:
        raise user.wrong("inputs are no pixels k / 255: load the folder as plain LEAF data")
    x = pixels.astype(np.uint8).reshape(-1, SIDE, SIDE)
    return DeviceData(user.id, x, device.y)


FORMAT: Final = Format(
    "femnist",
    "62 characters by 3,597 writers, 28×28",
    load_femnist,
    Split(more_than=100, num_classes=62),
    needs="a folder with NIST's by_class/ and by_write/, or LEAF's JSON",
    origin="Grother 1995, NIST Special Database 19; devices as in Caldas et al. 2018 (LEAF)",
    licence="public domain (a work of the US government)",
    published=EMNIST_ROW,
    downloads=(
        Download("https://s3.amazonaws.com/nist-srd/SD19/by_class.zip", 1 << 31),
        Download("https://s3.amazonaws.com/nist-srd/SD19/by_write.zip", 1 << 31),
    ),
    note="The paper drew half of the train and of the test devices by a seed; this does not.",
)
