"""Data of your own, by device: from arrays, a DataFrame, a table of devices, or files."""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.checks import checked_device
from deltafl.fl.data.csv_table import read_csv_table
from deltafl.fl.data.federated import FederatedDataset, Split, SplitBy, federate
from deltafl.fl.data.hub import Columns as HubColumns
from deltafl.fl.data.hub import batches_of
from deltafl.fl.data.hub import devices_of as hub_devices
from deltafl.fl.data.image_folder import read_image_folder
from deltafl.fl.data.parquet_table import read_parquet_table
from deltafl.fl.data.rows import Columns, Rows
from deltafl.fl.errors import DataError
from deltafl.fl.read.npz import MAX_ARRAY_BYTES
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.settings.config_io import build_config

if TYPE_CHECKING:
    import pandas as pd

Arrays = tuple[npt.ArrayLike, npt.ArrayLike]
"""The inputs of a device's samples, [n, ...], and their labels, [n]."""

_NUMBERS: Final = "biuf"


@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """Devices and their samples.

    Attributes:
        dataset: who trains, and who tests.
        classes: the texts that the labels were, by their numbers; empty if they were numbers.
    """

    dataset: FederatedDataset
    classes: tuple[str, ...] = ()

    @classmethod
    def from_devices(
        cls,
        devices: Mapping[Any, Arrays],
        *,
        test: float = 0.5,
        split: str = "devices",
        seed: int = 0,
        targets: str = "classes",
        name: str = "own data",
    ) -> Self:
        """Devices by their names.

        Args:
            devices: inputs and labels of each. Inputs are numbers, which become float32, or pixels
                (uint8). Labels are whole numbers from 0, or texts; or see `targets`.
            test: the share that is tested on, in (0, 1).
            split: what is divided into training and test: "devices", so that a tested device has
                never been seen, or "samples", those of every device.
            seed: of the division.
            targets: what labels are: "classes", or "numbers" that are to be predicted, one or more
                for each sample.
            name: what to call the data, in tables.

        Raises:
            DataError: something is wrong with the data; it says where, and what would be right.
            ValueError: an argument is out of its range.
        """
        if targets not in ("classes", "numbers"):
            raise ValueError(f"targets={targets!r}: must be 'classes' or 'numbers'")
        of_numbers = targets == "numbers"
        labels = {key: _array(name, key, "y", y) for key, (_, y) in devices.items()}
        if not of_numbers:
            _check_classes(name, labels)
        numbered, classes = (labels, ()) if of_numbers else _numbered(labels)
        made = [
            checked_device(
                name, str(key), _array(name, key, "x", x), numbered[key], numbers=of_numbers
            )
            for key, (x, _) in devices.items()
        ]
        by = _split_by(split)
        how = Split(
            train_fraction=1 - Fraction(str(test)),
            seed=seed,
            by=by,
            num_classes=len(classes) or None,
        )
        return cls(federate(name, made, how), classes)

    @classmethod
    def from_arrays(
        cls,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        user: npt.ArrayLike,
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """Samples of all devices, one after another.

        Args:
            x: inputs, [n, ...].
            y: labels, [n]; or numbers, [n, ...].
            user: whose each sample is, [n].
            options: those of `from_devices`.

        Raises:
            DataError: as `from_devices`.
        """
        inputs, labels, users = np.asarray(x), np.asarray(y), np.asarray(user)
        name = options.get("name", "own data")
        is_flat = labels.ndim == 1 or (labels.ndim and options.get("targets") == "numbers")
        if not (inputs.ndim and is_flat and users.ndim == 1):
            raise DataError(
                f"{name}: y of shape {labels.shape} and user of shape {users.shape}: give one "
                "label and one user for each sample"
            )
        if not len(inputs) == len(labels) == len(users):
            raise DataError(
                f"{name}: {len(inputs)} inputs, {len(labels)} labels and {len(users)} users: "
                "give one of each for every sample"
            )
        names, owner = np.unique(users, return_inverse=True)
        order = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=len(names)))[:-1]
        rows = dict(zip(names.tolist(), np.split(order, ends), strict=True)) if len(names) else {}
        return cls.from_devices({k: (inputs[r], labels[r]) for k, r in rows.items()}, **options)

    @classmethod
    def from_pandas(
        cls,
        table: "pd.DataFrame",
        *,
        user: str,
        label: str | Sequence[str],
        features: Iterable[str] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """A DataFrame with a row for each sample.

        Args:
            table: the DataFrame.
            user: the column that says whose a sample is.
            label: the column of labels; with `targets="numbers"`, there may be several.
            features: the columns of inputs, all of them numbers; by default all others.
            options: those of `from_devices`.

        Raises:
            DataError: a column is missing, or has something else than numbers; or as
                `from_devices`.
        """
        name = options.setdefault("name", "a DataFrame")
        wanted = [label] if isinstance(label, str) else list(label)
        others = [one for one in table.columns if one not in (user, *wanted)]
        chosen = others if features is None else list(features)
        for column in (user, *wanted, *chosen):
            if column not in table.columns:
                known = ", ".join(map(str, table.columns))
                raise DataError(f"{name} has no column {column!r}: its columns are {known}")
            if table[column].isna().any():
                row = table.index[table[column].isna()][0]
                raise DataError(f"{name}: column {column!r} has nothing in row {row!r}: fill it")
        for column in chosen:
            if table[column].dtype.kind not in _NUMBERS:
                raise DataError(
                    f"{name}: column {column!r} has {table[column].dtype}, not numbers: encode it, "
                    "or leave it out of `features`"
                )
        inputs = table[chosen].to_numpy(np.float32)
        labels = table[label if isinstance(label, str) else wanted].to_numpy()
        return cls.from_arrays(inputs, labels, table[user].to_numpy(), **options)

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        *,
        user: str,
        label: str | Sequence[str],
        features: Iterable[str] = (),
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """A CSV file with a row for each sample; its first row names the columns.

        Args:
            path: the file, of at most 1 GiB.
            user: the column that says whose a sample is.
            label: the column of labels; with `targets="numbers"`, there may be several.
            features: the columns of inputs, all of them numbers; by default all others.
            options: those of `from_devices`.

        Raises:
            DataError: the file cannot be read; it says in which line; or as `from_devices`.
        """
        rows = read_csv_table(Path(path), _columns(user, label, features))
        return cls._from_rows(Path(path), rows, options)

    @classmethod
    def from_parquet(
        cls,
        path: str | Path,
        *,
        user: str,
        label: str | Sequence[str],
        features: Iterable[str] = (),
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """A Parquet file with a row for each sample, and a column for each number.

        Args:
            path: the file.
            user: as of `from_csv`.
            label: likewise.
            features: likewise.
            options: those of `from_devices`.

        Raises:
            DataError: the file cannot be read; or as `from_devices`.
        """
        rows = read_parquet_table(Path(path), _columns(user, label, features))
        return cls._from_rows(Path(path), rows, options)

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        *,
        size: tuple[int, int] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """A folder of images: a folder for each user, in it one for each class.

        Args:
            path: the folder; the images are PNG or JPEG.
            size: height and width to which images are brought; by default all have one size.
            options: those of `from_devices`, but for `targets`.

        Raises:
            DataError: a file is no image, or has another size; or as `from_devices`.
        """
        devices, classes = read_image_folder(Path(path), size)
        options.setdefault("name", Path(path).name)
        made = cls.from_devices({one.id: (one.x, one.y) for one in devices}, **options)
        return replace(made, classes=classes)

    @classmethod
    def from_hub(
        cls,
        dataset: Any,  # noqa: ANN401
        *,
        user: str,
        label: str,
        inputs: str,
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """A data set of the Hugging Face package `datasets`, that you have loaded.

        Args:
            dataset: a `Dataset`, or a `DatasetDict`, whose splits are put together.
            user: the column that says whose a sample is.
            label: the column of labels, whole numbers from 0.
            inputs: the column of inputs: images, or lists of numbers of one length.
            options: those of `from_devices`, but for `targets`.

        Raises:
            DataError: a column is missing, or has something else; or as `from_devices`.
        """
        if not (isinstance(dataset, dict) or hasattr(dataset, "with_format")):
            raise DataError(
                f"dataset of type {type(dataset).__name__}: must be a Dataset of the package "
                "'datasets', such as load_dataset('flwrlabs/femnist')"
            )
        name = options.setdefault("name", "a data set")
        columns = HubColumns(user, inputs, label)
        devices = hub_devices(name, batches_of(dataset), columns, MAX_ARRAY_BYTES)
        return cls.from_devices({one.id: (one.x, one.y) for one in devices}, **options)

    @classmethod
    def _from_rows(cls, path: Path, rows: Rows, options: dict[str, Any]) -> Self:
        options.setdefault("name", path.stem)
        if rows.classes and options.get("targets") == "numbers":
            shown = ", ".join(f"{name:.40}" for name in rows.classes[:5])
            raise DataError(f"{path}: labels such as {shown} are no numbers (targets='numbers')")
        made = cls.from_devices({name: (x, y) for name, x, y in rows.by_user()}, **options)
        return replace(made, classes=rows.classes)

    @classmethod
    def from_function(
        cls,
        users: Iterable[Any],
        load: Callable[[Any], Arrays],
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """Devices whose samples a function reads.

        Args:
            users: the devices' names.
            load: inputs and labels of one.
            options: those of `from_devices`.

        Raises:
            DataError: as `from_devices`.
        """
        return cls.from_devices({one: load(one) for one in users}, **options)

    @classmethod
    def load(cls, source: str | Path, **settings: Any) -> Self:  # noqa: ANN401
        """Data that the command line reads too: a path, or a name such as "digits".

        Args:
            source: `deltafl data list` shows what can be read.
            settings: those of the section `data`, such as `num_devices=60`.

        Raises:
            DataError: the data cannot be read.
            ConfigError: settings contradict each other.
        """
        config = build_config([{"data": {**settings, "source": str(source)}}])
        return cls(build_dataset(config.data))

    def __repr__(self) -> str:
        return f"<Federation {self._said()}>"

    def _repr_html_(self) -> str:
        return f"<p><b>Federation</b> {html.escape(self._said())}</p>"

    @property
    def has_numbers(self) -> bool:
        """Whether numbers are to be predicted, and not classes."""
        return self.dataset.num_classes == 0

    def _said(self) -> str:
        data = self.dataset
        targets = "targets are numbers" if self.has_numbers else f"{data.num_classes} classes"
        return (
            f"{data.name}: {len(data.train)} training and {len(data.test)} test devices, inputs of "
            f"shape {data.input_shape}, {targets}"
        )


def _columns(user: str, label: str | Sequence[str], features: Iterable[str]) -> Columns:
    return Columns(user, (label,) if isinstance(label, str) else tuple(label), tuple(features))


def _split_by(split: str) -> SplitBy:
    try:
        return SplitBy(split)
    except ValueError:
        raise ValueError(f"split={split!r}: must be 'devices' or 'samples'") from None


def _array(name: str, device: object, which: str, values: npt.ArrayLike) -> npt.NDArray[np.generic]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name}: user {str(device)!r}: {which} is no array: {error}") from None


def _check_classes(name: str, labels: Mapping[Any, npt.NDArray[np.generic]]) -> None:
    for key, values in labels.items():
        if values.dtype.kind == "f" and values.size and not (values == np.floor(values)).all():
            wrong = values[values != np.floor(values)].flat[0]
            raise DataError(
                f"{name}: user {str(key)!r} has the label {wrong}, which is no class: if numbers "
                "are to be predicted, say targets='numbers'; else encode classes as 0, 1, ..."
            )


def _numbered(
    labels: Mapping[Any, npt.NDArray[np.generic]],
) -> tuple[dict[Any, npt.NDArray[np.generic]], tuple[str, ...]]:
    """Labels as numbers from 0, and what they were; whole numbers from 0 stay as they are."""
    parts = [one for one in labels.values() if one.ndim == 1 and one.size]
    if all(one.dtype.kind in _NUMBERS for one in parts):
        return dict(labels), ()
    classes = np.unique(np.concatenate([one.astype(str) for one in parts]))
    numbered = {
        key: np.searchsorted(classes, one.astype(str)) if one.ndim == 1 and one.size else one
        for key, one in labels.items()
    }
    return numbered, tuple(classes.tolist())
