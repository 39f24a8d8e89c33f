"""How a model performs on every device: a row for each in the table `evaluations` of a record.

Columns: round, theta (the model's conformity level), split ("train", "validation" or "test"),
device (its id), num_samples, loss (mean cross-entropy in nats), error (share misclassified).

Of the models that were evaluated, the one is kept that did best on the validation devices, in the
table `arrays`. A run without any has none: the test must not choose.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from deltafl.fl.data.federated import MAX_NAME, TEST, TRAIN, VALIDATION
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.metrics import Summary, summarise_test_error
from deltafl.fl.registry import BEST_BY
from deltafl.fl.vectors import Vector
from deltafl.sim.errors import damaged
from deltafl.sim.record.chain import Link
from deltafl.sim.record.checkpoint import read_arrays, write_arrays
from deltafl.sim.record.record import Record
from deltafl.sim.settings.config_io import show

_TAIL: Final = 90
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
    for number, of_round in groupby(rows, lambda link: int(link.fields[0])):
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
        _, _, split, device, count, loss, error = link.fields
        fits = split in metrics and len(device) <= MAX_NAME and count < _MAX_COUNT
        if not (fits and number < _MAX_COUNT and math.isfinite(error)):
            raise damaged(record.path, f"row {link.number} is no evaluation of a device")
        metrics[split].append(DeviceMetrics(device, count, loss, error))
    return Evaluation(number, metrics[TRAIN], metrics[TEST], metrics[VALIDATION] or ())


class Best(NamedTuple):
    """A model, and what it was chosen by.

    Attributes:
        round: after which it was the model.
        score: its error over validation devices (`score_of`).
        model: its parameters, float32 [d].
    """

    round: int
    score: float
    model: Vector


def score_of(errors: Summary, by: str) -> float:
    """What a model is chosen by, one of `BEST_BY`: smaller is better.

    Args:
        errors: of the validation devices.
        by: one of `deltafl.fl.registry.BEST_BY`.
    """
    return errors.mean if by == BEST_BY[0] else errors.percentiles[_TAIL]


def keep_if_best(
    record: Record, theta: Fraction, evaluation: Evaluation, model: Vector, by: str
) -> None:
    """Keep a model if none before it was as good; of equals, the first is kept.

    Args:
        record: the run's; it is not kept.
        theta: the conformity level.
        evaluation: of the model; without validation devices, nothing is kept.
        model: its parameters, float32 [d].
        by: as of `score_of`.
    """
    if not evaluation.validation:
        return
    score = score_of(summarise_test_error(evaluation.validation), by)
    before = read_best(record, theta)
    if before is None or score < before.score:
        about = {"round": np.array(evaluation.round, np.int64), "score": np.array(score)}
        write_arrays(record, _owner(theta), {**about, "model": model})


def read_best(record: Record, theta: Fraction) -> Best | None:
    """The best model of a level; None if there are no validation devices.

    Raises:
        RunDirectoryError: it is damaged.
    """
    try:
        if not (arrays := read_arrays(record, _owner(theta))):
            return None
        number, score, model = (arrays[name] for name in ("round", "score", "model"))
        return Best(int(number.item()), float(score.item()), model.astype(np.float32))
    except (MemoryError, LookupError, ValueError, TypeError) as error:
        raise damaged(record.path, error) from error


def _owner(theta: Fraction) -> str:
    return f"best {show(theta)}"
