"""The model that did best on the validation devices, kept beside the evaluations of its run.

A run without validation devices has none: the test must not choose.
"""

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.metrics import Summary, summarise_test_error
from deltafl.fl.read.npz import MAX_ARRAY_BYTES, open_npz
from deltafl.fl.registry import BEST_BY
from deltafl.fl.vectors import Vector
from deltafl.sim.errors import damaged
from deltafl.sim.record.atomic import write_file
from deltafl.sim.record.evaluations import Evaluation

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


def keep_if_best(folder: Path, evaluation: Evaluation, model: Vector, by: str) -> None:
    """Keep a model if none before it was as good; of equals, the first is kept.

    Args:
        folder: that of the run's evaluations.
        evaluation: of the model; without validation devices, nothing is kept.
        model: its parameters, float32 [d].
        by: as of `score_of`.
    """
    if not evaluation.validation:
        return
    score, before = score_of(summarise_test_error(evaluation.validation), by), read_best(folder)
    if before is not None and before.score <= score:
        return
    buffer = io.BytesIO()
    np.savez(buffer, round=np.int64(evaluation.round), score=np.float64(score), model=model)
    write_file(_file(folder), buffer.getvalue())


def read_best(folder: Path) -> Best | None:
    """The best model of a run; None if it has no validation devices.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    path = _file(folder)
    if not os.path.lexists(path):
        return None
    try:
        with open_npz(path) as archive:
            names = ("round", "score", "model")
            number, score, model = (archive.read(name, MAX_ARRAY_BYTES) for name in names)
            return Best(int(number.item()), float(score.item()), model.astype(np.float32))
    except (OSError, MemoryError, LookupError, ValueError, TypeError) as error:
        raise damaged(path, error) from error


def drop_best(folder: Path, last_round: int | None) -> None:
    """Delete a best model of a round that is played anew."""
    best = read_best(folder)
    if best is not None and (last_round is None or best.round > last_round):
        _file(folder).unlink()


def _file(folder: Path) -> Path:
    return folder / "best.npz"
