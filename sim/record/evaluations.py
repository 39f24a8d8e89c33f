"""How a model performs on every device: a row for each in the table `evaluations` of a record.

Columns: round, theta (the model's conformity level), split ("train", "validation" or "test"),
device (its id), num_samples, loss (mean cross-entropy in nats), error (share misclassified).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any, Final, cast

from deltafl.fl.data.federated import MAX_NAME, TEST, TRAIN, VALIDATION
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.errors import damaged
from deltafl.sim.record.chain import Link
from deltafl.sim.record.record import Record
from deltafl.sim.settings.config_io import show

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
        """All devices by what they are for, in the order of the rows."""
        return {TRAIN: self.train, VALIDATION: self.validation, TEST: self.test}


def write_evaluation(record: Record, theta: Fraction, evaluation: Evaluation) -> None:
    """Append an evaluation of the model of a level; the record is not kept."""
    for split, devices in evaluation.sides.items():
        for one in devices:
            measured = one.num_samples, float(one.loss), float(one.error)
            place = evaluation.round, show(theta), split, one.id
            record.chain.append("evaluations", *place, *measured)


def is_due(number: int, every: int, rounds: int) -> bool:
    """Whether a run evaluates after this round: every few, and after the last."""
    return number % every == 0 or number >= rounds


def read_evaluations(
    record: Record, theta: Fraction | None = None, after: int = -1
) -> Iterator[Evaluation]:
    """Read a run's evaluations of the model of a level, by round.

    That of the last round of a run that was made longer is left out, where it is not due any more.

    Args:
        record: the run's.
        theta: the level; by default, the first.
        after: only those of later rounds.

    Raises:
        UserError: a row is none of an evaluation; those before it have been given.
    """
    federation = record.config(checked=False).federation
    level = show(federation.thetas[0] if theta is None else theta)
    rows = record.chain.select("evaluations", "theta = ? AND round > ?", level, after)
    for number, of_round in groupby(rows, lambda link: cast(int, link.fields[0])):
        evaluation = _evaluation(record, number, of_round)
        if is_due(number, federation.evaluate_every, federation.rounds):
            yield evaluation


def read_last_evaluation(record: Record, theta: Fraction | None = None) -> Evaluation | None:
    """Read the evaluation of the latest round; None if there is none."""
    newest = "SELECT round FROM evaluations ORDER BY number DESC LIMIT 1"
    found = record.db.execute(newest).fetchone()
    after = found[0] - 1 if found and isinstance(found[0], int) else -1
    return next(read_evaluations(record, theta, after), None)


def _evaluation(record: Record, number: int, rows: Iterator[Link]) -> Evaluation:
    """Sort the rows of a round into its splits.

    Raises:
        RunDirectoryError: a value is out of its range.
    """
    metrics: dict[str, list[DeviceMetrics]] = {TRAIN: [], VALIDATION: [], TEST: []}
    for link in rows:
        _, _, split, device, count, loss, error = cast("tuple[Any, ...]", link.fields)
        fits = split in metrics and len(device) <= MAX_NAME and count < _MAX_COUNT
        if not (fits and number < _MAX_COUNT and math.isfinite(error)):
            raise damaged(record.path, f"row {link.number} is no evaluation of a device")
        metrics[split].append(DeviceMetrics(device, count, loss, error))
    return Evaluation(number, metrics[TRAIN], metrics[TEST], metrics[VALIDATION] or ())
