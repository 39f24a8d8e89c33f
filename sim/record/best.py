"""The model that did best on the validation devices, in the table `arrays` of a run's record.

A run without validation devices has none: the test must not choose.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.fl.metrics import Summary, summarise_test_error
from deltafl.fl.registry import BEST_BY
from deltafl.fl.vectors import Vector
from deltafl.sim.errors import damaged
from deltafl.sim.record.checkpoint import read_arrays, write_arrays
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.record import Record
from deltafl.sim.settings.config_io import show

_TAIL: Final = 90


@dataclass(frozen=True, slots=True, eq=False)
class Best:
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
