"""Images in folders: a folder for each user, and in it one for each class.

    photos/ann/cat/1.png    photos/ann/dog/2.jpg    photos/bob/cat/7.png

All have one size and either are grey or in colour.
"""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from deltafl.fl.data.checks import checked_device
from deltafl.fl.data.federated import DeviceData, FederatedDataset, Split, check_classes, federate
from deltafl.fl.data.files import RAISED, bounded
from deltafl.fl.data.registry import Format
from deltafl.fl.errors import DataError

MAX_IMAGE_BYTES: Final = 1 << 24
"""The largest file of an image."""

MAX_PIXELS: Final = 1 << 20
"""The largest image that is decoded: a small file can hold a huge one."""

_GREY: Final = ("1", "L", "LA")
_DEEP: Final = ("I", "F")  # and "I;16" with its kin: converting these would cut them off at 255

_TOO_LARGE: Final = (
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,  # where warnings are errors
)

_FORMATS: Final = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
_LEFT_BY_SYSTEMS: Final = frozenset({"thumbs.db", "desktop.ini"})


def read_image(data: bytes, formats: tuple[str, ...]) -> Image.Image:
    """Decode an image, the way up that its camera says.

    Args:
        data: the file.
        formats: that it may have, such as "PNG".

    Returns:
        In mode "L" if it is grey, else "RGB"; transparency is left out.

    Raises:
        ValueError: it is none that can be decoded, has more than `MAX_PIXELS` pixels or more than
            8 bits for each, or moves.
    """
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(
                    f"an image of {image.width} × {image.height} pixels, more than {MAX_PIXELS:,}"
                )
            if image.mode.startswith(_DEEP):
                raise ValueError("an image of more than 8 bits for each pixel")
            if (frames := getattr(image, "n_frames", 1)) > 1 and image.format != "JPEG":
                raise ValueError(f"an image of {frames} frames, and one is wanted")
            upright = ImageOps.exif_transpose(image)
            if upright.mode == "P":  # its colours may have degrees of transparency
                upright = upright.convert("RGBA")
            return upright.convert("L" if upright.mode in _GREY else "RGB")
    except _TOO_LARGE as error:
        raise ValueError(f"an image of more than {MAX_PIXELS:,} pixels") from error
    except ValueError:
        raise
    except (MemoryError, *RAISED) as error:
        raise ValueError(f"no readable image ({', '.join(formats)})") from error


def pixels(image: Image.Image) -> npt.NDArray[np.uint8]:
    """The pixels of an image, uint8 [channels, height, width], as torch's convolutions take them.

    A grey image has one channel, one in colour three.
    """
    array = np.array(image, np.uint8)
    return array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)


def read_image_folder(
    folder: Path, size: tuple[int, int] | None = None, *, alone: bool = False
) -> tuple[list[DeviceData], tuple[str, ...]]:
    """Read all images.

    Args:
        folder: of the users' folders. Hidden files and folders are passed over.
        size: height and width to which every image is brought; None leaves them as they are.
        alone: whether the folder may be that of one user, with a folder for each class.

    Returns:
        Each user's images, uint8 [n, channels, height, width] as of `pixels`, and
        the names of the classes, in alphabetical order, whose places are the labels.

    Raises:
        DataError: there is no such folder, nothing in it, or something else than images.
        ValueError: the size is none, or has more than `MAX_PIXELS` pixels.
    """
    if size is not None:
        _check_size(size)
    homes = list(_folders(folder))
    if alone and not any(one.is_dir() for home in homes for one in home.iterdir()):
        homes = [folder]
    users = {user.name: {kind.name: _files(kind) for kind in _folders(user)} for user in homes}
    classes = tuple(sorted({kind for kinds in users.values() for kind in kinds}))
    if len(classes) < (1 if alone else 2):
        raise DataError(
            f"{folder}: {len(classes)} classes: it must hold images in folders USER/CLASS/"
        )
    check_classes(str(folder), classes)
    devices = []
    first: tuple[Path, tuple[int, ...]] | None = None
    for user, kinds in sorted(users.items()):
        images, labels = [], []
        for kind, files in sorted(kinds.items()):
            for file in files:
                image = _image(file, size)
                first = first or (file, image.shape)
                if image.shape != first[1]:
                    raise DataError(
                        f"{file}: an image of shape {image.shape}, and {first[0]} has {first[1]}: "
                        "bring them to one size, as from_folder(…, size=(height, width)) does, "
                        "and all to grey or to colour"
                    )
                images.append(image)
                labels.append(classes.index(kind))
        if images:
            devices.append(checked_device(str(folder), user, np.stack(images), np.array(labels)))
    if not devices:
        raise DataError(f"{folder}: no images: they must end in {', '.join(_SUFFIXES)}")
    return devices, classes


def _folders(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: not a folder that can be read ({error.strerror})") from error
    for one in entries:
        if one.suffix.lower() in _SUFFIXES and one.is_file() and not one.name.startswith("."):
            raise DataError(
                f"{one}: an image that is in no folder of a class: it must be in USER/CLASS/"
            )
    return (one for one in entries if one.is_dir() and not one.name.startswith("."))


def _check_size(size: tuple[int, int]) -> None:
    is_pair = isinstance(size, tuple | list) and len(size) == 2
    if not is_pair or not all(isinstance(side, int) and side > 0 for side in size):
        raise ValueError(f"size={size!r}: must be height and width, two whole numbers above 0")
    if size[0] * size[1] > MAX_PIXELS:
        raise ValueError(f"size={size!r}: more than {MAX_PIXELS:,} pixels")


def _files(folder: Path) -> list[Path]:
    files = [
        one
        for one in sorted(folder.iterdir())
        if not one.name.startswith(".") and one.name.lower() not in _LEFT_BY_SYSTEMS
    ]
    for file in files:
        if file.suffix.lower() not in _SUFFIXES or not file.is_file():
            raise DataError(f"{file}: no image that is read ({', '.join(_SUFFIXES)}): remove it")
    return files


def _image(file: Path, size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    with bounded(file, "image", MAX_IMAGE_BYTES, "write it anew, or remove it") as opened:
        image = read_image(opened.read(), _FORMATS)
    if size is not None:
        image = image.resize((size[1], size[0]))
    return pixels(image)


def load_image_folder(folder: Path, split: Split) -> FederatedDataset:
    """Read all images, and split the users; see `read_image_folder`."""
    devices, classes = read_image_folder(folder, alone=split.alone)
    return replace(federate(folder.name, devices, split), classes=classes)


FORMAT: Final = Format(
    "images",
    "a folder of images: users, in them classes, in them files such as PNG or JPEG",
    load_image_folder,
    needs="a folder with a folder for each user, in it one for each class",
)
