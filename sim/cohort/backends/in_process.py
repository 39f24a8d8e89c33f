"""Learners by name, and the devices' work in this process by one of them."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from deltafl.fl.batched import BatchedLearner
from deltafl.fl.cohort import Later, Pending
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.local import Learner
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import (
    Answer,
    Backend,
    CpuClock,
    ModelSpec,
    SampleReference,
    Work,
)
from deltafl.sim.settings.config import REFERENCE


def worked_on(
    learner: Learner, work: Work, devices: Sequence[DeviceData], seeds: Sequence[int]
) -> Iterable[Answer]:
    """What a learner makes of devices with the same work, one by one."""
    if work.evaluates:
        return learner.evaluate(work.model, devices)
    if work.training is None:
        return learner.losses(work.model, devices)
    return learner.updates(work.model, devices, work.training, seeds, work.objective)


def open_in_process(name: str, spec: ModelSpec, device: torch.device) -> "InProcess":
    """Open a backend of this process.

    Args:
        name: "reference": one device after another. "batched": many devices as one. "cuda":
            likewise, with data that stay on the GPU.
        spec: what is trained.
        device: where tensors live.
    """
    return InProcess(name, learner_of(spec, device, many=name != REFERENCE))


def learner_of(spec: ModelSpec, device: torch.device, *, many: bool) -> Learner:
    """The learner of a model: of devices one by one, or of many at once."""
    learner = BatchedLearner if many else Learner
    return learner(spec.build(), device=device, criterion=spec.criterion, optimizer=spec.optimizer)


class InProcess(Backend):
    """A backend around a learner. Nothing is done before an answer is waited for.

    Args:
        name: what to call it.
        learner: does the work.
    """

    def __init__(self, name: str, learner: Learner) -> None:
        self.name = name
        self.clock = CpuClock()
        self._learner = learner
        self._open: dict[bool, _Batch] = {}  # whether it trains: of losses, and of updates

    def begin(self, work: Work, ref: SampleReference, seed: int) -> Pending[Answer]:
        """Ask a device; see `Backend`."""
        trains = work.training is not None
        batch = self._open.get(trains)
        if batch is None or not batch.takes(work):
            batch = self._open[trains] = _Batch(work, self._learner, self._measured)
        return batch.add(ref, seed)

    def forget(self) -> None:
        """Drop what was asked for; see `Backend`."""
        self._open.clear()

    def evaluate(self, model: Vector, devices: Sequence[DeviceData]) -> list[DeviceMetrics]:
        """Measure a model on many devices; see `Backend`."""
        with self._measured():
            return self._learner.evaluate(model, devices)

    def close(self) -> None:
        """Nothing to let go of; see `Backend`."""

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Add the CPU time of a block, also of one that raises."""
        start = time.process_time()
        try:
            yield
        finally:
            self.clock.here += time.process_time() - start


@dataclass(slots=True, eq=False, repr=False)
class _Batch:
    """Devices with the same work. It grows until its first answer is waited for."""

    _work: Work
    _learner: Learner
    _measured: Callable[[], AbstractContextManager[None]]
    _refs: list[SampleReference] = field(default_factory=list)
    _seeds: list[int] = field(default_factory=list)
    _answers: Iterator[tuple[int, Answer]] | None = None
    _error: Exception | None = None
    _kept: dict[int, Answer] = field(default_factory=dict)

    def takes(self, work: Work) -> bool:
        """Whether a device with this work may still join."""
        is_open = self._answers is None and self._error is None
        return is_open and self._work.is_same(work)

    def add(self, ref: SampleReference, seed: int) -> Pending[Answer]:
        """Let a device join."""
        self._refs.append(ref)
        self._seeds.append(seed)
        return Later(partial(self.take, len(self._refs) - 1))

    def take(self, number: int) -> Answer:
        """Hand over an answer, working as far as it takes."""
        with self._measured():
            while number not in self._kept:
                if self._error is not None:
                    raise self._error
                try:
                    if self._answers is None:
                        self._answers = self._begun()
                    place, answer = next(self._answers)
                except Exception as error:
                    self._error = error  # whoever comes next gets it too, for there is no going on
                    raise
                self._kept[place] = answer
        return self._kept.pop(number)

    def _begun(self) -> Iterator[tuple[int, Answer]]:
        devices = [ref.data() for ref in self._refs]
        return enumerate(worked_on(self._learner, self._work, devices, self._seeds))
