"""Learners by name, and what workers in other processes need of them."""

from collections.abc import Iterable, Sequence
from typing import Final

import torch

from deltafl.fl.batched import BatchedLearner
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import CohortLearner, Learner
from deltafl.sim.cohort.backends.base import Answer, ModelSpec, Work

REFERENCE: Final = "reference"
"""One device after another."""

BATCHED: Final = "batched"
"""Many devices at once."""

_AT_ONCE: Final = {
    "linear": 32,
    "logistic": 256,
    "logistic-bias": 256,
    "gru": 16,
    "gru-embedding": 16,
}
"""Models of which a worker trains many devices at once, since that is faster on one thread of a CPU
(`deltafl.fl.stacked`), and the most that make a chunk, a few stacks. The others train one by
one."""


def build_learner(name: str, spec: ModelSpec, device: torch.device) -> CohortLearner:
    """Make a learner.

    Args:
        name: `REFERENCE` or `BATCHED`.
        spec: what it trains.
        device: where tensors live.
    """
    learner = BatchedLearner if name == BATCHED else Learner
    return learner(spec.build(), device=device, criterion=spec.criterion)


def worked_on(
    learner: CohortLearner,
    work: Work,
    devices: Sequence[DeviceData],
    seeds: Sequence[int],
    *,
    evaluates: bool,
) -> Iterable[Answer]:
    """What a worker's learner makes of a chunk, device by device."""
    if evaluates:
        return learner.evaluate(work.model, devices)
    if work.training is None:
        return learner.losses(work.model, devices)
    return learner.updates(work.model, devices, work.training, seeds, work.objective)


def updates_at_once(model: str) -> tuple[str, int]:
    """The learner that a worker takes for a model, and how many devices make a chunk."""
    at_once = _AT_ONCE.get(model, 1)
    return (REFERENCE if at_once == 1 else BATCHED), at_once
