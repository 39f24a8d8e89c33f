"""Data of your own, by device: from arrays, a DataFrame, a table of devices, or files."""

import html
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy.typing as npt

from deltafl.fl.data.checks import with_embedding
from deltafl.fl.data.federated import TEST, TRAIN, VALIDATION, FederatedDataset
from deltafl.fl.data.hub import devices_of as hub_devices
from deltafl.fl.data.image_folder import read_image_folder
from deltafl.fl.data.load import standardise as scale
from deltafl.fl.data.own_files import without_rows
from deltafl.fl.data.tables import (
    Columns,
    Rows,
    name_of,
    read_csv_table,
    read_frame,
    read_parquet_table,
)
from deltafl.fl.errors import DataError
from deltafl.sim.api.given import (
    Arrays,
    Part,
    array_of,
    check_several,
    federation_of,
    is_nothing,
    scaling,
    split_by,
)
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.settings.config_io import build_config

if TYPE_CHECKING:
    import pandas as pd

Names: TypeAlias = str | Iterable[str]
"""A column, or several."""


@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """Devices and their samples.

    Attributes:
        dataset: who trains, and who tests.
    """

    dataset: FederatedDataset

    @classmethod
    def from_devices(
        cls,
        devices: Mapping[Any, Arrays],
        *,
        test: Part = 0.5,
        validation: Part = 0.0,
        split: str = "devices",
        seed: int = 0,
        standardise: str = "none",
        targets: str = "classes",
        name: str = "own data",
        embedding: npt.ArrayLike | None = None,
    ) -> Self:
        """Devices by their names.

        Args:
            devices: inputs and labels of each, or a data set of torch's with pairs of them. Inputs
                are numbers, which become float32; or pixels (uint8); or other integers, which a
                module gets as int64 if it takes them, such as tokens, and else as float32. Labels
                are whole numbers from 0, or texts; or see `targets`.
            test: the share that is tested on, in (0, 1); or the names of the devices; or, where the
                split is made, these devices themselves, like `devices`.
            validation: likewise, the share of the others that is held out of training, in [0, 1),
                to choose settings and models by.
            split: what is divided into training and test: "devices", so that a tested device has
                never been seen, or "samples", those of every device.
            seed: of the division.
            standardise: how inputs are scaled: "none", or by mean and standard deviation over all
                training devices ("train") or over each "device".
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
        how, scaled = split_by(test, split, seed), scaling(standardise)
        if not isinstance(devices, Mapping):
            raise DataError(
                f"{name}: devices of type {type(devices).__name__}: give a dictionary, such as "
                "{'ann': (x, y), …}"
            )
        parts = {TRAIN: devices, VALIDATION: validation, TEST: test}
        dataset, classes = federation_of(name, parts, how, of_numbers=targets == "numbers")
        vectors = None if embedding is None else array_of(f"{name}: embedding", embedding)
        named = replace(scale(dataset, scaled), classes=classes)
        return cls(with_embedding(named, vectors))

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
            array_of(f"{name}: {what}", values)
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
            if is_nothing(one):
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
        missing: str = "refuse",
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """A DataFrame with a row for each sample.

        Args:
            table: the DataFrame.
            user: the column that says whose a sample is.
            label: the column of labels; with `targets="numbers"`, there may be several.
            features: the column of inputs, or several, all of them numbers; by default all others.
            missing: "refuse" rows in which something is missing, or "leave-out" such rows.
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
        columns = Columns(str(user), _named(label), _named(features), missing)
        return cls._from_table(name, read, columns, options)

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        *,
        user: str,
        label: Names,
        features: Names = (),
        missing: str = "refuse",
        separator: str = ",",
        decimal: str = ".",
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """A CSV file with a row for each sample; its first row names the columns.

        Args:
            path: the file, of at most 1 GiB.
            user: the column that says whose a sample is.
            label: the column of labels; with `targets="numbers"`, there may be several.
            features: the column of inputs, or several, all of them numbers; by default all others.
            missing: "refuse" rows in which something is missing, or "leave-out" such rows.
            separator: what stands between columns: ",", ";", "|" or "tab".
            decimal: what stands before the fractions of numbers, "." or ",".
            options: those of `from_devices`.

        Raises:
            DataError: the file cannot be read; it says in which row; or as `from_devices`.
        """
        options.setdefault("name", Path(path).stem)
        read = partial(read_csv_table, Path(path))
        columns = Columns(str(user), _named(label), _named(features), missing, separator, decimal)
        return cls._from_table(str(path), read, columns, options)

    @classmethod
    def from_parquet(
        cls,
        path: str | Path,
        *,
        user: str,
        label: Names,
        features: Names = (),
        missing: str = "refuse",
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """A Parquet file with a row for each sample, and a column for each number.

        Args:
            path: the file.
            user: as of `from_csv`.
            label: likewise.
            features: likewise.
            missing: likewise.
            options: those of `from_devices`.

        Raises:
            DataError: the file cannot be read; or as `from_devices`.
        """
        options.setdefault("name", Path(path).stem)
        read = partial(read_parquet_table, Path(path))
        columns = Columns(str(user), _named(label), _named(features), missing)
        return cls._from_table(str(path), read, columns, options)

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
            path: the folder; the images are PNG, JPEG, WebP, BMP or TIFF, and become bytes of shape
                [channels, height, width], with one channel if they are grey and three in colour.
            size: height and width to which images are brought; by default all have one size.
            options: those of `from_devices`, but for `targets`.

        Raises:
            DataError: a file is no image, or has another size; or as `from_devices`.
        """
        _check_no_targets(options)
        devices, classes = read_image_folder(Path(path), size)
        options.setdefault("name", Path(path).name)
        made = cls.from_devices({one.id: (one.x, one.y) for one in devices}, **options)
        return replace(made, dataset=replace(made.dataset, classes=classes))

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
        columns: Columns,
        options: dict[str, Any],
    ) -> Self:
        of_numbers = options.get("targets") == "numbers"
        if len(columns.labels) > 1 and not of_numbers:
            raise DataError(
                f"{source}: labels in {len(columns.labels)} columns are numbers that are to be "
                "predicted: say targets='numbers', or name one column"
            )
        rows = read(columns)
        if of_numbers:
            rows.check_numbers(source)
        check_several(source, rows.classes)
        made = cls.from_devices({name: (x, y) for name, x, y in rows.by_user()}, **options)
        dataset = replace(without_rows(made.dataset, rows.left_out), classes=rows.classes)
        return replace(made, dataset=dataset)

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
    def classes(self) -> tuple[str, ...]:
        """The texts that the labels were, by their numbers; empty if they were numbers."""
        return self.dataset.classes

    @property
    def has_numbers(self) -> bool:
        """Whether numbers are to be predicted, and not classes."""
        return self.dataset.num_classes == 0

    def _said(self) -> str:
        data = self.dataset
        held_out = f", {len(data.validation)} validation" if len(data.validation) else ""
        targets = "targets are numbers" if self.has_numbers else f"{data.num_classes} classes"
        return (
            f"{data.name}: {len(data.train)} training{held_out} and {len(data.test)} test devices, "
            f"inputs of shape {data.input_shape}, {targets}"
        )


def _check_no_targets(options: Mapping[str, object]) -> None:
    if "targets" in options:
        raise ValueError(f"targets={options['targets']!r}: labels here are classes: leave it out")


def _named(names: Names) -> tuple[str, ...]:
    """Names of columns; a text is one name, and so is a number."""
    several = names if isinstance(names, Iterable) and not isinstance(names, str) else [names]
    return tuple(map(str, several))
