"""Every data set that can be loaded, by name: how, from where, under which licence.

The names are in `deltafl.fl.registry`; each loader's file says the rest, in a `Format`.
`Format.split` is what the data set's paper did, so a person need not look it up.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from inspect import signature
from pathlib import Path
from typing import Final

from deltafl.fl import registry
from deltafl.fl.data.federated import FederatedDataset, Split, SplitBy
from deltafl.fl.errors import DataError
from deltafl.fl.nearest import meant
from deltafl.protocol.registry import Registry

OPTIONS: Final = (
    *("vectors", "features", "lower_case", "alphabet", "legacy_duplicates"),
    *("num_devices", "rotated_fraction", "heterogeneity", "alpha", "beta"),
    *("user_column", "input_column", "label_column", "feature_columns"),
    *("missing", "separator", "decimal", "unit"),
)
"""The settings of data that only some formats use; each is an argument of their loaders."""

_AUTO: Final = "auto"
"""The format that follows from the kind of source."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a paper says about the data: a row of its table.

    Attributes:
        source: which table.
        num_classes: labels.
        train_devices: devices that train.
        test_devices: devices that test; None where all devices do both.
        median: of the samples per train device; None where the paper does not say.
        smallest: likewise.
        largest: likewise.
        num_samples: of all devices; None where the paper does not say.
    """

    source: str
    num_classes: int
    train_devices: int
    test_devices: int | None = None
    median: float | None = None
    smallest: int | None = None
    largest: int | None = None
    num_samples: int | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """A file of the source, at the address that the source gives.

    Attributes:
        url: the address.
        max_bytes: more than this is not the file.
        members: for a zip archive, the names (without folders) of the files to take out of it;
            empty keeps the file as it is.
        md5: of the file, where it is published (MD5 finds damage, not malice); "" if it is not.
    """

    url: str
    max_bytes: int
    members: tuple[str, ...] = ()
    md5: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """A data set, or a kind of files.

    Attributes:
        name: of the format in settings and on the command line.
        title: what it is, in a line.
        load: reads it, from a path, where one is needed, and by a split; the `OPTIONS` that it
            uses are arguments.
        split: the rule and the sides that its source uses.
        needs: what the source is: "" for none, else in words.
        origin: who made it and where it is.
        licence: of the data.
        published: what the paper says of it.
        stands_for: what it replaces, for a stand-in; else "".
        downloads: the files to fetch.
        note: what a person must know before using it; else "".
    """

    name: str
    title: str
    load: Callable[..., FederatedDataset]
    split: Split = field(default_factory=Split)
    needs: str = ""
    origin: str = "of your own"
    licence: str = "of your own"
    published: Published | None = None
    stands_for: str = ""
    downloads: tuple[Download, ...] = ()
    note: str = ""

    @property
    def options(self) -> frozenset[str]:
        """Those of `OPTIONS` that it uses."""
        return frozenset(signature(self.load).parameters) & {*OPTIONS}

    def read(self, source: str, split: Split, options: Mapping[str, object]) -> FederatedDataset:
        """Read the data.

        Raises:
            ValueError: the format does not use an option, or one is out of range.
            DataError: the source cannot be used.
        """
        for name in options:
            if name not in self.options:
                raise ValueError(f"the format {self.name!r} does not use {name}: leave it out")
        places = (Path(source),) if self.needs else ()
        return self.load(*places, split, **options)


TABLE_1: Final = "arXiv 2002.11223, Table 1"
TABLE_A2: Final = "arXiv 2405.20821, Table A2"
BY_SAMPLES: Final = Split(train_fraction=Fraction(4, 5), by=SplitBy.SAMPLES, num_classes=2)
UCI: Final = "https://archive.ics.uci.edu/ml/machine-learning-databases"
EMNIST_ROW: Final = Published(TABLE_1, 62, 865, 865, 179, 101, 447)
SENT140_ROW: Final = Published(TABLE_1, 2, 438, 439, 69, 51, 549)


FORMATS: Final = Registry[Format](registry.FORMATS)
"""All formats by name."""

GLOVE: Final = Download(
    "https://nlp.stanford.edu/data/glove.6B.zip", 1 << 30, ("glove.6B.50d.txt",)
)
"""The word vectors of the papers (Pennington et al. 2014), Public Domain Dedication and License."""


_BY_SUFFIX: Final = {".npz": "npz", ".csv": "csv", ".parquet": "parquet"}
_IN_FOLDERS: Final = {
    **dict.fromkeys(_BY_SUFFIX, "folder"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"), "images"),
}


def format_of(source: str, name: str = _AUTO) -> Format:
    """Find the format by its name, or by the kind of source: such a name, a file, or a folder.

    Raises:
        ValueError: there is no such format.
        DataError: the source is none of these.
    """
    if name != _AUTO:
        if name not in FORMATS:
            raise ValueError(f"format={name!r} is unknown: choose one of {', '.join(FORMATS)}")
        return FORMATS[name]
    known = FORMATS.get(source)
    if known is not None and not known.needs:
        return known
    path = Path(source)
    if (suffix := path.suffix.lower()) in _BY_SUFFIX:
        return FORMATS[_BY_SUFFIX[suffix]]
    if path.is_dir():
        return FORMATS[_folder_of(path)]
    if known is not None and known.downloads:
        raise DataError(
            f"{source}: no such folder: fetch the data with `deltafl data fetch {source}`, and "
            "name the folder with --data"
        )
    if path.exists():
        raise DataError(
            f"{source}: {path.suffix or 'such'} files are not read; write a .csv file with a row "
            "for each sample, or the arrays x, y and user with numpy.savez; if it is of another "
            "format, name that, as in --set data.format=hub (`deltafl data list`)"
        )
    made = [name for name, kind in FORMATS.items() if not kind.needs]
    mend = (
        meant(source, made) or f": check the path, or name data that need none: {', '.join(made)}"
    )
    raise DataError(f"{source}: there is no such file{mend}")


def _folder_of(folder: Path) -> str:
    """The format of a folder, by the first file in it that says so; LEAF's if none does."""
    for _, _, names in os.walk(folder):
        if any(name.endswith((".json", ".json.gz")) for name in names):
            return "leaf"
        suffixes = [Path(name).suffix.lower() for name in names if not name.startswith(".")]
        if found := next((one for one in suffixes if one in _IN_FOLDERS), ""):
            return _IN_FOLDERS[found]
    return "leaf"
