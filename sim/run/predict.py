"""What `deltafl predict` does: predictions by a finished run, at a conformity level you choose."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from deltafl.fl.bundle import Bundle
from deltafl.fl.data.agreed import unknown_label
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.data.glove import load_glove
from deltafl.fl.data.leaf import numeric_device, read_leaf
from deltafl.fl.data.npz import read_arrays, users_of
from deltafl.fl.data.own_files import READERS, files_of
from deltafl.fl.data.registry import FORMATS
from deltafl.fl.data.tables import Columns, Rows, Texts, column_names, name_of
from deltafl.fl.errors import DataError
from deltafl.fl.superquantile import parse_theta
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import UserError
from deltafl.sim.record.own_files import write_file
from deltafl.sim.record.rundir import RunDirectory, check_output
from deltafl.sim.settings.config import WITH_LEVELS, DataConfig
from deltafl.sim.settings.config_io import show
from deltafl.sim.visible import on_one_line, visible

_COLUMNS: Final = ("user", "sample", "class", "probability", "label")


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The samples to predict.

    Attributes:
        x: inputs, [n, *input_shape].
        y: labels, int64 [n]; None if unknown.
        users: the user of each sample, n names.
    """

    x: npt.NDArray[np.generic]
    y: npt.NDArray[np.int64] | None
    users: tuple[str, ...]

    def of(self, user: str) -> "Samples":
        """The samples of one user.

        Raises:
            UserError: there are none.
        """
        rows = [index for index, name in enumerate(self.users) if name == user]
        if not rows:
            known = ", ".join(sorted(set(self.users))[:10])
            raise UserError(f"--user {user}: there is no such user; the data have {known}")
        return Samples(self.x[rows], None if self.y is None else self.y[rows], (user,) * len(rows))


def main(options: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        UserError: the request cannot be carried out.
        DataError: the samples cannot be used.
    """
    path: Path = options.bundle
    if options.out is not None:
        check_output(options.out, [one for one in (path, options.data) if one is not None])
    vectors = _vectors(options.vectors, options.data)
    bundle = Bundle.load(path / "bundle.npz" if path.is_dir() else path, vectors)
    if options.list:
        print(_json(_about(bundle)) if options.json else _described(bundle))
        return 0
    if options.data is None:
        raise UserError("--data is missing: name the samples to predict, or use --list")
    made_up = _made_up(path, options.data)
    if not made_up and bundle.provenance.get("standardise", "none") not in ("none", "train"):
        how = bundle.provenance["standardise"]
        _note(
            f"the run trained with data.standardise = {how!r}: the features need the same scaling"
        )
    samples = made_up or _of_table(path, options.data) or read_samples(options.data)
    if not samples.users:
        raise DataError(f"{options.data}: no samples: give at least one")
    _check_finite(samples, options.data)
    if options.user is not None:
        samples = samples.of(options.user)
    if options.conformity is None and _has_levels(bundle):
        if options.out is not None:
            raise UserError("--out needs --conformity: choose the level to predict with")
        if samples.y is None:
            raise UserError(
                "levels cannot be compared without labels: choose one with --conformity"
            )
        _compare(bundle, samples, as_json=options.json)
        return 0
    level = _level(bundle, options.conformity)
    probabilities = bundle.predict(samples.x, level)
    if options.out is not None:
        write_file(options.out, _written(options.out, samples, probabilities).encode())
        print(f"{len(samples.users)} predictions are in {options.out}")
    elif options.json:
        print(_json(list(_rows(samples, probabilities))))
    else:
        sys.stdout.write(_csv(samples, probabilities))
    if samples.y is not None:
        text = _errors(_label(bundle, level), samples, probabilities, by_user=True)
        print(visible(text), file=sys.stdout if options.out is not None else sys.stderr)
    return 0


def _vectors(given: Path | None, data: Path | None) -> npt.NDArray[np.float32] | None:
    """The frozen vectors of the tokens: a file of them, or those beside the samples."""
    if given is not None:
        return load_glove(given).table
    if data is None or data.suffix != ".npz" or not data.exists():
        return None
    beside = read_arrays(data, (), ("embedding",)).get("embedding")
    return None if beside is None else beside.astype(np.float32)


def _compare(bundle: Bundle, samples: Samples, *, as_json: bool) -> None:
    """Print the error of every model."""
    found = {level: bundle.predict(samples.x, level) for level in bundle.levels}
    if as_json:
        errors = {level: _error_of_each(samples, rows) for level, rows in found.items()}
        print(_json([{"theta": show(level), "error": each} for level, each in errors.items()]))
        return
    for level, probabilities in found.items():
        print(_errors(_label(bundle, level), samples, probabilities))


def _made_up(run: Path, data: Path) -> Samples | None:
    """The test data of a run whose data were not read from files, if `--data` is their name."""
    kind = FORMATS.get(str(data))
    if kind is None or kind.needs or data.exists():
        return None
    settings = _settings_of(run, data)
    if settings.source != str(data):
        raise UserError(f"--data {data}: the run in {run} has the data {settings.source}")
    if settings.standardise == "train":  # a bundle scales such inputs itself
        settings = replace(settings, standardise="none")
    return _of_devices(build_dataset(settings).test)


def _settings_of(run: Path, data: Path) -> DataConfig:
    """What a run says of its own data."""
    if not (run.is_dir() and RunDirectory(run).is_run):
        raise UserError(f"--data {data}: name the run's directory, which says how to read them")
    return RunDirectory(run).config().data


def _of_devices(devices: Sequence[DeviceData]) -> Samples:
    return Samples(
        np.concatenate([device.x for device in devices]),
        np.concatenate([device.y for device in devices]),
        tuple(device.id for device in devices for _ in range(device.num_samples)),
    )


def _of_table(run: Path, data: Path) -> Samples | None:
    """The rows of a table, read as the run read its own; None if `--data` is no table.

    Raises:
        UserError: what the columns are is not known.
        DataError: the table cannot be read.
    """
    read = READERS.get(data.suffix.lower())
    if read is None or not data.is_file():
        return None
    settings = _settings_of(run, data)
    names = column_names(data, settings.separator)
    user = settings.user_column if settings.user_column in names else ""
    labels = (settings.label_column,) if settings.label_column in names else ()
    columns = Columns(
        user,
        labels,
        settings.feature_columns or _features(settings),
        settings.missing,
        settings.separator,
        settings.decimal,
        is_one=True,
    )
    try:
        rows = read(data, columns)
    except DataError as error:
        raise DataError(
            f"{error}. A table is read here as the run read its own, and nothing can be set: write "
            "it as that was written"
        ) from error
    if rows.left_out:
        _note(f"{rows.left_out} rows with gaps are left out, and the others counted without them")
    users = tuple(rows.users.names[code] for code in rows.users.codes.tolist())
    return Samples(rows.x, _labels(rows, settings) if labels else None, users)


def _labels(rows: Rows, settings: DataConfig) -> npt.NDArray[np.int64] | None:
    """The labels of a table as the run has numbered them; None if that is not known.

    A run that names its classes needs no data of its own for it.

    Raises:
        DataError: there is a label that the run's own data lack.
    """
    classes = settings.classes
    try:
        if not classes:
            dataset = build_dataset(settings)
            classes = dataset.classes or tuple(map(str, range(dataset.num_classes)))
    except DataError as error:
        _note(f"labels are not compared, because the run's own data cannot be read: {error}")
        return None
    if isinstance(rows.labels, Texts):
        labels = [rows.labels.names[code] for code in rows.labels.codes.tolist()]
    else:
        labels = list(map(name_of, rows.labels.tolist()))
    known = {name: number for number, name in enumerate(classes)}
    if unknown := sorted(set(labels) - known.keys()):
        raise unknown_label("--data", unknown, classes)
    return np.array([known[name] for name in labels], np.int64)


def _note(sentence: str) -> None:
    print(f"deltafl: note: {visible(sentence)}", file=sys.stderr)


def _features(settings: DataConfig) -> tuple[str, ...]:
    """The inputs of the table that a run was trained on, in its order.

    Raises:
        UserError: the settings do not name them, and the table is there no more.
    """
    source = Path(settings.source)
    if source.is_dir():
        source = next((one for one in files_of(source) if one.suffix.lower() in READERS), source)
    if source.suffix.lower() not in READERS or not source.is_file():
        raise UserError(
            f"the order of the inputs is not known: the run names no data.feature_columns, and "
            f"{source} is no table; give the samples as an .npz file"
        )
    taken = {settings.user_column, settings.label_column}
    return tuple(one for one in column_names(source, settings.separator) if one not in taken)


def read_samples(path: Path) -> Samples:
    """Read samples to predict.

    Raises:
        DataError: the source has no known format, or cannot be used.
    """
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.is_dir():
        # a single user is enough, because nothing is split
        devices, _ = read_leaf(path, numeric_device)
        if not devices:
            raise DataError(f"{path} contains no users: give samples of at least one")
        shapes = {device.x.shape[1:]: device.id for device in devices}
        if len(shapes) > 1:
            shown = " and ".join(f"{shape} of user {user}" for shape, user in shapes.items())
            raise DataError(f"{path}: samples have shapes {shown}: give all the same shape")
        return _of_devices(devices)
    raise DataError(f"{path}: neither an .npz file nor a folder of LEAF files: check the path")


def _read_npz(path: Path) -> Samples:
    found = read_arrays(path, ("x",), ("y", "user", "users"))
    if found["x"].ndim < 1:
        raise DataError(f"{path}: array 'x' is a single number: store one sample after another")
    x = found["x"]
    for name in ("y", "user"):
        column = found.get(name)
        if column is not None and (column.shape != (len(x),) or column.dtype.kind not in "iu"):
            raise DataError(
                f"{path}: array {name!r} has dtype {column.dtype} and shape {column.shape}: give "
                f"one integer for each of the {len(x)} samples"
            )
    y = found["y"].astype(np.int64) if "y" in found else None
    user = found.get("user", np.zeros(len(x), np.int64))
    names, index = users_of(path, user, found.get("users"))
    return Samples(x, y, tuple(names[place] for place in index.tolist()))


def _check_finite(samples: Samples, path: Path) -> None:
    """Refuse inputs that are no numbers, and say whose."""
    if samples.x.dtype.kind != "f" or np.isfinite(samples.x).all():
        return
    row = int(np.argmin(np.isfinite(samples.x.reshape(len(samples.x), -1)).all(axis=1)))
    user, values = samples.users[row], samples.x[row].reshape(-1)
    value = values[~np.isfinite(values)][0]
    raise DataError(
        f"{path}: user {user!r}: sample {samples.users[:row].count(user)} has the input {value}, "
        "which is not finite: correct or remove the sample"
    )


def _has_levels(bundle: Bundle) -> bool:
    """Whether its models are of conformity levels; other algorithms train one for all."""
    return (
        len(bundle.levels) > 1 or bundle.provenance.get("algorithm", WITH_LEVELS[0]) in WITH_LEVELS
    )


def _label(bundle: Bundle, level: Fraction) -> str:
    """What to call a model."""
    if _has_levels(bundle):
        return f"θ = {show(level)}"
    return on_one_line(bundle.provenance.get("algorithm", "the model"))


def _level(bundle: Bundle, conformity: str | None) -> Fraction:
    """The level to predict with; a note says so if it is not the one that was asked for."""
    if conformity is None:
        return bundle.levels[0]
    asked = _conformity(conformity)
    level = bundle.level_for(asked)
    if not _has_levels(bundle):
        _note(f"{_label(bundle, level)} trains one model for all: --conformity chooses nothing")
    elif level != asked:
        _note(f"no model was trained for θ = {show(asked)}; using the model of θ = {show(level)}")
    return level


def _conformity(text: str) -> Fraction:
    try:
        return parse_theta(text)
    except ValueError as error:
        raise UserError(f"--conformity {text}: must lie in (0, 1], such as 0.5 or 1/3") from error


def _described(bundle: Bundle) -> str:
    architecture = bundle.architecture
    lines = [
        f"{architecture.name}, inputs {architecture.input_shape}, {architecture.num_classes} "
        f"classes, {len(bundle.model(1))} parameters",
        *(f"  {_label(bundle, level)}" for level in bundle.levels),
        *(on_one_line(f"{name}: {value}") for name, value in sorted(bundle.provenance.items())),
        f"models_sha256: {bundle.sha256}",
    ]
    return "\n".join(lines)


def _rows(
    samples: Samples, probabilities: npt.NDArray[np.float64]
) -> Iterator[Mapping[str, object]]:
    counts: dict[str, int] = {}
    for number, (user, row) in enumerate(zip(samples.users, probabilities, strict=True)):
        place = counts[user] = counts.get(user, -1) + 1
        chosen = int(row.argmax())
        yield {
            "user": user,
            "sample": place,
            "class": chosen,
            "probability": round(float(row[chosen]), 6),
            "label": None if samples.y is None else int(samples.y[number]),
        }


def _error_of_each(samples: Samples, probabilities: npt.NDArray[np.float64]) -> dict[str, float]:
    """The share of misclassified samples of each user, by name."""
    wrong = probabilities.argmax(axis=1) != samples.y
    users = np.array(samples.users)
    return {name: float(wrong[users == name].mean()) for name in sorted(set(samples.users))}


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _about(bundle: Bundle) -> dict[str, object]:
    architecture = bundle.architecture
    return {
        "model": architecture.name,
        "input_shape": list(architecture.input_shape),
        "num_classes": architecture.num_classes,
        "parameters": len(bundle.model(1)),
        "levels": [show(level) for level in bundle.levels],
        "provenance": dict(bundle.provenance),
        "models_sha256": bundle.sha256,
    }


def _written(path: Path, samples: Samples, probabilities: npt.NDArray[np.float64]) -> str:
    if path.suffix == ".csv":
        return _csv(samples, probabilities)
    if path.suffix == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in _rows(samples, probabilities))
    raise UserError(f"--out {path}: must end in .csv or .jsonl")


def _csv(samples: Samples, probabilities: npt.NDArray[np.float64]) -> str:
    columns = _COLUMNS if samples.y is not None else _COLUMNS[:-1]
    table = pd.DataFrame(_rows(samples, probabilities), columns=columns)
    text: str = table.to_csv(index=False, lineterminator="\n")
    return text


def _errors(
    label: str, samples: Samples, probabilities: npt.NDArray[np.float64], *, by_user: bool = False
) -> str:
    """The share of misclassified samples: over users and, if `by_user`, for each user."""
    if samples.y is None:
        return ""
    each = _error_of_each(samples, probabilities)
    names = list(each)
    whom = "1 user" if len(names) == 1 else f"{len(names)} users"
    line = f"{label}: error {np.mean(list(each.values())):.1%} over {whom}"
    if len(names) > 1:
        line += f", {np.percentile(list(each.values()), 90):.1%} at the 90th percentile"
    if by_user:
        line += "".join(f"\n  {name}: {error:.1%}" for name, error in each.items())
    return line
