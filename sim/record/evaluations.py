"""How a model performs on every device: one Parquet file per evaluation, one row per device.

Columns: round (int32), split ("train" or "test"), device (its id), num_samples (int32), loss (mean
cross-entropy in nats, float64), error (share misclassified, float64). The folder as a whole is a
data set that pandas, pyarrow, polars and DuckDB read at once.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.errors import damaged
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
    write_file(folder / f"round-{evaluation.round:06}.parquet", buffer.getvalue())


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


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-[0-9]*.parquet"))


def read_evaluation(path: Path) -> Evaluation:
    """Read one evaluation.

    Raises:
        RunDirectoryError: it is damaged, or has other columns.
    """
    try:
        table = pq.read_table(path, schema=_SCHEMA, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from error
    if not table.num_rows:
        raise damaged(path, "it is empty")
    rounds, splits, *columns = (column.to_pylist() for column in table.columns)
    metrics: dict[str, list[DeviceMetrics]] = {"train": [], "test": []}
    for split, *row in zip(splits, *columns, strict=True):
        if split not in metrics or None in row:
            raise damaged(path, f"it has a row of {split!r} with {row}")
        metrics[split].append(DeviceMetrics(*row))
    return Evaluation(rounds[0], metrics["train"], metrics["test"])
