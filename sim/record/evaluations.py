"""How a model performs on every device: one Parquet file per evaluation, one row per device.

Columns: round (int32), split ("train" or "test"), device (its id), num_samples (int32), loss (mean
cross-entropy in nats, float64), error (share misclassified, float64). The folder as a whole is a
data set that pandas, pyarrow, polars and DuckDB read at once.
"""

import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from deltafl.fl.data.federated import MAX_NAME
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.read.exact import shortened
from deltafl.fl.read.parquet import check_pages
from deltafl.fl.read.regular import open_regular
from deltafl.sim.errors import RunDirectoryError, damaged
from deltafl.sim.record.atomic import write_file

_SCHEMA: Final = pa.schema(
    [
        ("round", pa.int32()),
        ("split", pa.string()),
        ("device", pa.string()),
        ("num_samples", pa.int32()),
        ("loss", pa.float64()),
        ("error", pa.float64()),
    ]
)

COLUMNS: Final = tuple(_SCHEMA.names)
"""The columns of a file, in their order."""

_NAME: Final = re.compile(r"round-[0-9]{1,18}\.parquet")
_FEW_ROWS: Final = 1 << 16  # more than these take a byte each, because their devices differ


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One model on all devices.

    Attributes:
        round: how many rounds the model has seen.
        train: the training devices, in the data set's order.
        test: the test devices, in the data set's order.
    """

    round: int
    train: Sequence[DeviceMetrics]
    test: Sequence[DeviceMetrics]


def write_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Write an evaluation into `folder`, atomically."""
    write_file(folder / f"round-{evaluation.round:06}.parquet", evaluation_bytes(evaluation))


def evaluation_bytes(evaluation: Evaluation) -> bytes:
    """The file of an evaluation, as this version of pyarrow writes it."""
    devices = [*evaluation.train, *evaluation.test]
    columns = [
        [evaluation.round] * len(devices),
        ["train"] * len(evaluation.train) + ["test"] * len(evaluation.test),
        [device.id for device in devices],
        [device.num_samples for device in devices],
        [device.loss for device in devices],
        [device.error for device in devices],
    ]
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)],
        _SCHEMA,
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Read all evaluations of a run, by round."""
    return [read_evaluation(path) for path in _files(folder)]


def read_last_evaluation(folder: Path) -> Evaluation | None:
    """Read the evaluation of the latest round; None if there is none."""
    files = _files(folder)
    return read_evaluation(files[-1]) if files else None


def drop_evaluations_after(folder: Path, last_round: int | None) -> None:
    """Delete the evaluations of rounds after `last_round`; all of them if it is None."""
    for path in _files(folder):
        if last_round is None or int(path.stem.removeprefix("round-")) > last_round:
            path.unlink()


def is_due(number: int, every: int, rounds: int) -> bool:
    """Whether a run evaluates after this round: every few, and after the last."""
    return number % every == 0 or number >= rounds


def drop_evaluations_not_due(folder: Path, every: int, rounds: int) -> None:
    """Delete those that a run does not make: it was made longer, and they were its last.

    Args:
        folder: of one conformity level.
        every: rounds between two evaluations.
        rounds: of the whole run; there is one after the last.
    """
    for path in _files(folder):
        if not is_due(int(path.stem.removeprefix("round-")), every, rounds):
            path.unlink()


def _files(folder: Path) -> list[Path]:
    found = folder.glob("round-*.parquet")
    return sorted(path for path in found if _NAME.fullmatch(path.name))


def read_evaluation(path: Path) -> Evaluation:
    """Read one evaluation.

    Raises:
        RunDirectoryError: it is damaged, or has other columns.
    """
    try:
        with open_regular(path) as opened:
            size = os.fstat(opened.fileno()).st_size
            check_pages(opened)
            with pq.ParquetFile(opened, read_dictionary=["split", "device"]) as file:
                if file.metadata.num_rows > max(_FEW_ROWS, size):
                    raise ValueError(f"{file.metadata.num_rows:,} rows are not in {size:,} bytes")
                table = file.read(use_threads=False)  # a few thousand rows
                table.validate(full=True)  # pyarrow believes the places in a dictionary
                columns = [_column(table, field) for field in _SCHEMA]
    except RunDirectoryError:
        raise
    except (OSError, MemoryError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise damaged(path, error) from error
    return _evaluation(path, columns)


def _column(table: pa.Table, field: pa.Field) -> list[Any]:
    """The values of a column, each of the schema's type; equal texts share memory."""
    column = table.column(field.name)
    is_coded = pa.types.is_dictionary(column.type)
    if (column.type.value_type if is_coded else column.type) != field.type:
        raise ValueError(f"the column {field.name} is of {column.type}, not of {field.type}")
    if is_coded:
        values: list[Any] = []
        for chunk in column.chunks:
            words = chunk.dictionary.to_pylist()
            if any(len(word or "") > MAX_NAME for word in words):
                raise ValueError(f"the column {field.name} has a text of more than {MAX_NAME}")
            values += [None if i is None else words[i] for i in chunk.indices.to_pylist()]
        return values
    return list(column.to_pylist())


def _evaluation(path: Path, columns: Sequence[Sequence[Any]]) -> Evaluation:
    """Sort the rows of a file into the two splits; columns as in the schema."""
    rounds, splits, devices, counts, losses, errors = columns
    if not rounds:
        raise damaged(path, "it is empty")
    if any(value is None for column in columns for value in column):
        raise damaged(path, "a value is missing")
    if len(set(rounds)) != 1 or rounds[0] < 0 or min(counts) < 0:
        raise damaged(path, "it is not of one round, or a number of samples is negative")
    metrics: dict[str, list[DeviceMetrics]] = {"train": [], "test": []}
    for split, *values in zip(splits, devices, counts, losses, errors, strict=True):
        if split not in metrics:
            raise damaged(path, f"its split {shortened(split)} is neither train nor test")
        metrics[split].append(DeviceMetrics(*values))
    return Evaluation(rounds[0], metrics["train"], metrics["test"])
