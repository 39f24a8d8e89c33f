"""How a model performs on every device: one CSV file per evaluation, one row per device.

Columns: round, split ("train", "validation" or "test"), device (its id), num_samples, loss (mean
cross-entropy in nats), error (share misclassified). Numbers have as many digits as they need to be
read again to the bit.

A run's files may have been changed by others. Text takes no more memory than its size explains, and
nothing in a row says how much there is.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltafl.fl.data.federated import MAX_NAME, TEST, TRAIN, VALIDATION
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.read.exact import shortened
from deltafl.fl.read.regular import read_regular
from deltafl.sim.errors import RunDirectoryError, damaged
from deltafl.sim.record.atomic import write_file

_COLUMNS: Final = ["round", "split", "device", "num_samples", "loss", "error"]
_NAME: Final = re.compile(r"round-[0-9]{1,18}\.csv")
_MAX_BYTES: Final = 1 << 27  # two million rows
_MAX_COUNT: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One model on all devices.

    Attributes:
        round: how many rounds the model has seen.
        train: the training devices, in the data set's order.
        test: the test devices, in the data set's order.
        validation: the devices that settings and models are chosen by, likewise; there may be none.
    """

    round: int
    train: Sequence[DeviceMetrics]
    test: Sequence[DeviceMetrics]
    validation: Sequence[DeviceMetrics] = ()

    @property
    def sides(self) -> Mapping[str, Sequence[DeviceMetrics]]:
        """All devices by what they are for, in the order of the file."""
        return {TRAIN: self.train, VALIDATION: self.validation, TEST: self.test}


def write_evaluation(folder: Path, evaluation: Evaluation) -> None:
    """Write an evaluation into `folder`, atomically."""
    write_file(folder / f"round-{evaluation.round:06}.csv", evaluation_bytes(evaluation))


def evaluation_bytes(evaluation: Evaluation) -> bytes:
    """The file of an evaluation."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for split, devices in evaluation.sides.items():
        for one in devices:
            writer.writerow((evaluation.round, split, one.id, one.num_samples, one.loss, one.error))
    return text.getvalue().encode()


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Read all evaluations of a run, by round."""
    return [read_evaluation(path) for path in evaluation_files(folder)]


def read_last_evaluation(folder: Path) -> Evaluation | None:
    """Read the evaluation of the latest round; None if there is none."""
    files = evaluation_files(folder)
    return read_evaluation(files[-1]) if files else None


def is_due(number: int, every: int, rounds: int) -> bool:
    """Whether a run evaluates after this round: every few, and after the last."""
    return number % every == 0 or number >= rounds


def drop_evaluations(folder: Path, last_round: int | None, every: int, rounds: int) -> None:
    """Delete those that a run makes anew, and those that it does not make.

    Of the latter is the last one of a run that was made longer.

    Args:
        folder: of one conformity level.
        last_round: the round after which all are made anew; all of them if it is None.
        every: rounds between two evaluations.
        rounds: of the whole run; there is one after the last.
    """
    for path in evaluation_files(folder):
        number = int(path.stem.removeprefix("round-"))
        if last_round is None or number > last_round or not is_due(number, every, rounds):
            path.unlink()


def evaluation_files(folder: Path) -> list[Path]:
    """The files of a run's evaluations, by round.

    Raises:
        RunDirectoryError: an earlier version wrote them, in Parquet.
    """
    if older := next(folder.glob("round-*.parquet"), None):
        raise RunDirectoryError(
            f"{older}: an earlier version wrote it, and this one reads no evaluations in Parquet: "
            "read it with pandas.read_parquet, or run again; transcript.bin can be audited alone"
        )
    return sorted(path for path in folder.glob("round-*.csv") if _NAME.fullmatch(path.name))


def read_evaluation(path: Path) -> Evaluation:
    """Read one evaluation.

    Raises:
        RunDirectoryError: it is damaged, or has other columns.
    """
    try:
        text = read_regular(path, _MAX_BYTES).decode()
        return _evaluation(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (OSError, MemoryError, ValueError, csv.Error) as error:
        raise damaged(path, error) from error


def _evaluation(rows: Iterator[Sequence[str]]) -> Evaluation:
    """Sort the rows of a file into its splits.

    Raises:
        ValueError: a row is none of an evaluation.
    """
    if next(rows, None) != _COLUMNS:
        raise ValueError(f"its first row is not {','.join(_COLUMNS)}")
    rounds = set[int]()
    metrics: dict[str, list[DeviceMetrics]] = {TRAIN: [], VALIDATION: [], TEST: []}
    for number, split, device, count, loss, error in rows:
        if split not in metrics:
            raise ValueError(f"its split {shortened(split)} is none of {', '.join(metrics)}")
        if not 0 <= int(count) < _MAX_COUNT or len(device) > MAX_NAME:
            raise ValueError(f"it has {shortened(count)} samples of {shortened(device)}")
        rounds.add(int(number))
        metrics[split].append(DeviceMetrics(device, int(count), float(loss), float(error)))
    if len(rounds) != 1 or not 0 <= min(rounds) < _MAX_COUNT:
        raise ValueError("it is not of one round")
    return Evaluation(rounds.pop(), metrics[TRAIN], metrics[TEST], metrics[VALIDATION] or ())
