"""Data of your own, by device: from arrays, a DataFrame, a table of devices, or files."""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.checks import checked_device, with_embedding
from deltafl.fl.data.federated import (
    FederatedDataset,
    Split,
    SplitBy,
    as_numbers,
    check_classes,
    federate,
)
from deltafl.fl.data.hub import devices_of as hub_devices
from deltafl.fl.data.image_folder import read_image_folder
from deltafl.fl.data.tables import (
    Columns,
    Rows,
    name_of,
    read_csv_table,
    read_frame,
    read_parquet_table,
)
from deltafl.fl.errors import DataError
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.settings.config_io import build_config

if TYPE_CHECKING:
    import pandas as pd

Arrays = tuple[npt.ArrayLike, npt.ArrayLike]
"""The inputs of a device's samples, [n, ...], and their labels, [n]."""

Names: TypeAlias = str | Iterable[str]
"""A column, or several."""

Values: TypeAlias = npt.NDArray[np.generic]

_NUMBERS: Final = "biuf"
"""The kinds of types that are numbers."""

_NUMERIC: Final = (int, float, np.integer, np.floating, np.bool_)


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
        embedding: npt.ArrayLike | None = None,
    ) -> Self:
        """Devices by their names.

        Args:
            devices: inputs and labels of each. Inputs are numbers, which become float32; or pixels
                (uint8); or other integers, which a module gets as int64 if it takes them, such as
                tokens, and else as float32. Labels are whole numbers from 0, or texts; or see
                `targets`.
            test: the share that is tested on, in (0, 1).
            split: what is divided into training and test: "devices", so that a tested device has
                never been seen, or "samples", those of every device.
            seed: of the division.
            targets: what labels are: "classes", or "numbers" that are to be predicted, one or more
                for each sample.
            name: what to call the data, in tables.
            embedding: frozen vectors of the tokens, [vocabulary, dimension], for "lstm".

        Raises:
            DataError: something is wrong with the data; it says where, and what would be right.
            ValueError: an argument is out of its range.
        """
        if targets not in ("classes", "numbers"):
            raise ValueError(f"targets={targets!r}: must be 'classes' or 'numbers'")
        how = _split(test, split, seed)
        if not isinstance(devices, Mapping):
            raise DataError(
                f"{name}: devices of type {type(devices).__name__}: give a dictionary, such as "
                "{'ann': (x, y), …}"
            )
        of_numbers = targets == "numbers"
        pairs = {key: _pair_of(name, key, pair) for key, pair in devices.items()}
        labels = {key: y for key, (_, y) in pairs.items()}
        if not of_numbers:
            _check_whole(name, labels)
        targeted, classes = (labels, ()) if of_numbers else _numbered(name, labels)
        made = [
            checked_device(
                name, name_of(key), x, targeted[key], numbers=of_numbers, keeps_whole=True
            )
            for key, (x, _) in pairs.items()
        ]
        if any(one.x.dtype == np.float32 for one in made):
            made = [as_numbers(one) for one in made]
        vectors = None if embedding is None else _array_of(f"{name}: embedding", embedding)
        dataset = federate(name, made, replace(how, num_classes=len(classes) or None))
        return cls(with_embedding(dataset, vectors), classes)

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
        name = options.get("name", "own data")
        inputs, labels, users = (
            _array_of(f"{name}: {what}", values)
            for what, values in (("x", x), ("y", y), ("user", user))
        )
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
        rows: dict[str, list[int]] = {}
        for row, one in enumerate(users.astype(object) if users.dtype.kind != "M" else users):
            if _is_nothing(one):
                raise DataError(f"{name}: sample {row} has the user {one}: say whose it is")
            rows.setdefault(name_of(one), []).append(row)
        return cls.from_devices({k: (inputs[r], labels[r]) for k, r in rows.items()}, **options)

    @classmethod
    def from_pandas(
        cls,
        table: "pd.DataFrame",
        *,
        user: str,
        label: Names,
        features: Names = (),
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """A DataFrame with a row for each sample.

        Args:
            table: the DataFrame.
            user: the column that says whose a sample is.
            label: the column of labels; with `targets="numbers"`, there may be several.
            features: the column of inputs, or several, all of them numbers; by default all others.
            options: those of `from_devices`.

        Raises:
            DataError: a column is missing, or has something else than numbers; or as
                `from_devices`.
        """
        if not hasattr(table, "columns"):
            raise DataError(
                f"a {type(table).__name__} is no DataFrame: give a pandas.DataFrame, or take "
                "from_csv, from_parquet or from_arrays"
            )
        name = options.setdefault("name", "a DataFrame")
        read = partial(read_frame, name, table)
        return cls._from_table(name, read, (user, label, features), options)

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        *,
        user: str,
        label: Names,
        features: Names = (),
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """A CSV file with a row for each sample; its first row names the columns.

        Args:
            path: the file, of at most 1 GiB.
            user: the column that says whose a sample is.
            label: the column of labels; with `targets="numbers"`, there may be several.
            features: the column of inputs, or several, all of them numbers; by default all others.
            options: those of `from_devices`.

        Raises:
            DataError: the file cannot be read; it says in which row; or as `from_devices`.
        """
        options.setdefault("name", Path(path).stem)
        read = partial(read_csv_table, Path(path))
        return cls._from_table(str(path), read, (user, label, features), options)

    @classmethod
    def from_parquet(
        cls,
        path: str | Path,
        *,
        user: str,
        label: Names,
        features: Names = (),
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
        options.setdefault("name", Path(path).stem)
        read = partial(read_parquet_table, Path(path))
        return cls._from_table(str(path), read, (user, label, features), options)

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
        _check_no_targets(options)
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
        _check_no_targets(options)
        name = options.setdefault("name", "a data set")
        devices = hub_devices(name, dataset, (user, inputs, label))
        return cls.from_devices({one.id: (one.x, one.y) for one in devices}, **options)

    @classmethod
    def _from_table(
        cls,
        source: str,
        read: Callable[[Columns], Rows],
        names: tuple[str, Names, Names],
        options: dict[str, Any],
    ) -> Self:
        user, label, features = names
        columns = Columns(str(user), _named(label), _named(features))
        of_numbers = options.get("targets") == "numbers"
        if len(columns.labels) > 1 and not of_numbers:
            raise DataError(
                f"{source}: labels in {len(columns.labels)} columns are numbers that are to be "
                "predicted: say targets='numbers', or name one column"
            )
        rows = read(columns)
        if rows.classes and of_numbers:
            shown = ", ".join(f"{name:.40}" for name in rows.classes[:5])
            raise DataError(f"{source}: labels such as {shown} are no numbers (targets='numbers')")
        _check_several(source, rows.classes)
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
        return cls(build_dataset(config.data, keeps_whole=True))

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


def _check_no_targets(options: Mapping[str, object]) -> None:
    if "targets" in options:
        raise ValueError(f"targets={options['targets']!r}: labels here are classes: leave it out")


def _split(test: float, split: str, seed: int) -> Split:
    """Who trains, with what was said of it checked by the names it has here."""
    try:
        share = Fraction(str(test))
    except ValueError:
        share = Fraction(0)
    if not 0 < share < 1:
        raise ValueError(f"test={test!r}: must be a share above 0 and below 1")
    if not isinstance(seed, int | np.integer):
        raise ValueError(f"seed={seed!r}: must be a whole number")
    try:
        by = SplitBy(split)
    except ValueError:
        raise ValueError(f"split={split!r}: must be 'devices' or 'samples'") from None
    return Split(train_fraction=1 - share, seed=int(seed), by=by)


def _named(names: Names) -> tuple[str, ...]:
    """Names of columns; a text is one name, and so is a number."""
    several = names if isinstance(names, Iterable) and not isinstance(names, str) else [names]
    return tuple(map(str, several))


def _pair_of(name: str, device: object, pair: Arrays) -> tuple[Values, Values]:
    """The inputs and the labels of a device.

    Raises:
        DataError: these are not two, or no arrays.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(
            f"{name}: user {str(device)!r}: a {type(pair).__name__} is not inputs and labels: give "
            "(x, y)"
        )
    x, y = (
        _array_of(f"{name}: user {str(device)!r}: {which}", values)
        for which, values in zip("xy", pair, strict=True)
    )
    return x, y


def _array_of(where: str, values: npt.ArrayLike) -> Values:
    """An array; numbers that are held as objects become plain ones.

    Raises:
        DataError: it is none, or has hidden elements, which NumPy would take for the others.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(f"{where} is a masked array: fill in what is hidden, or leave it out")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and all(isinstance(one, _NUMERIC) for one in array.flat):
            return np.asarray(array.tolist())
        return array
    except (ValueError, TypeError, RuntimeError) as error:  # a tensor that has a gradient
        raise DataError(f"{where} is no array: {error}") from None


def _is_nothing(value: object) -> bool:
    """None, NaN, or a date that is none: what stands where a table has nothing."""
    return value is None or value != value


def _check_whole(name: str, labels: Mapping[Any, Values]) -> None:
    """Check that labels that are to be classes have no fractions.

    Raises:
        DataError: one has.
    """
    for key, values in labels.items():
        if values.dtype.kind == "f" and values.size and not (values == np.floor(values)).all():
            wrong = values[values != np.floor(values)].flat[0]
            raise DataError(
                f"{name}: user {str(key)!r} has the label {wrong}, which is no class: if numbers "
                "are to be predicted, say targets='numbers'; else encode classes as 0, 1, ..."
            )


def _check_several(name: str, classes: Sequence[str]) -> None:
    if len(classes) == 1:
        raise DataError(
            f"{name}: all labels are {classes[0]!a:.60}: give samples of at least two classes"
        )


def _numbered(name: str, labels: Mapping[Any, Values]) -> tuple[dict[Any, Values], tuple[str, ...]]:
    """Labels as numbers from 0, and what they were; whole numbers from 0 stay as they are.

    Raises:
        DataError: a label is missing, there is one class, or two classes are one in two encodings.
    """
    for key, values in labels.items():
        for row, value in enumerate(values.flat if values.dtype.kind == "O" else ()):
            if _is_nothing(value):
                raise DataError(
                    f"{name}: user {str(key)!r}: sample {row} has the label {value}: fill it, or "
                    "leave the sample out"
                )
    parts = [one for one in labels.values() if one.ndim == 1 and one.size]
    if all(one.dtype.kind in _NUMBERS for one in parts):
        return dict(labels), ()
    classes = np.unique(np.concatenate([one.astype(str) for one in parts]))
    _check_several(name, classes.tolist())
    check_classes(name, classes.tolist())
    places = {
        key: np.searchsorted(classes, one.astype(str)) if one.ndim == 1 and one.size else one
        for key, one in labels.items()
    }
    return places, tuple(classes.tolist())
