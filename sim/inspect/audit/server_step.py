"""The model after a round: the step that the server takes along the mean of the updates."""

from typing import Final

import numpy as np

from deltafl.fl.strategies.base import Memory
from deltafl.fl.strategies.server_optimizer import ServerOptimizer, Sgd, step_along
from deltafl.protocol.round import RoundOutcome
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.run.algorithms import server_optimizer_of

PLAIN_STEP: Final = Sgd(1.0)
"""The server takes the mean of the updates as it is."""


def optimizer_of(source: Source) -> ServerOptimizer:
    """How the run's settings say that the server steps; a bare transcript does not say."""
    declared = None if source.config is None else server_optimizer_of(source.config)
    return PLAIN_STEP if declared is None else declared


def following(
    model: bytes, outcome: RoundOutcome, optimizer: ServerOptimizer, moments: Memory | None
) -> tuple[bytes | None, Memory | None]:
    """The model that a round leads to, computed as the strategy does, and the moments after it.

    If the moments are not known, the model is not known either, unless the optimiser has none.
    """
    if outcome.update is None or len(model) != 4 * len(outcome.update):
        return model, moments
    if isinstance(optimizer, Sgd):
        moments = {}
    if moments is None:
        return None, None
    before = np.frombuffer(model, dtype="<f4").astype(np.float32)
    with np.errstate(all="ignore"):  # a model of the server's own making may hold anything
        proposed = (before + outcome.update).astype(np.float32)
        after, moments = step_along(optimizer, before, proposed, moments)
    return after.astype("<f4").tobytes(), moments
