"""The devices' work in this process, by one learner: one device at a time, or many as one batch."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Generic, TypeVar

import torch

from deltafl.fl.cohort import Later, Pending
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.local import CohortLearner, LocalTraining
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import CpuClock, ModelSpec, SampleReference, Work
from deltafl.sim.cohort.backends.learners import BATCHED, REFERENCE, build_learner
from deltafl.sim.settings.backends import CUDA

T = TypeVar("T")


def reference(spec: ModelSpec, device: torch.device) -> "InProcess":
    """Open the backend `reference`: one device after another."""
    return InProcess(REFERENCE, build_learner(REFERENCE, spec, device))


def batched(spec: ModelSpec, device: torch.device) -> "InProcess":
    """Open the backend `batched`: many devices as one."""
    return InProcess(BATCHED, build_learner(BATCHED, spec, device))


def cuda(spec: ModelSpec, device: torch.device) -> "InProcess":
    """Open the backend `cuda`: `batched`, with data that stay on the GPU."""
    return InProcess(CUDA, build_learner(BATCHED, spec, device))


class InProcess:
    """A backend around a learner. Nothing is done before an answer is waited for.

    Args:
        name: what to call it.
        learner: does the work.
    """

    def __init__(self, name: str, learner: CohortLearner) -> None:
        self.name = name
        self.clock = CpuClock()
        self._learner = learner
        self._losses: _Batch[float] | None = None
        self._updates: _Batch[Vector] | None = None

    def begin_loss(self, model: Vector, ref: SampleReference) -> Pending[float]:
        """Ask for a loss; see `Backend`."""
        work = Work(model)
        if self._losses is None or not self._losses.takes(work):
            self._losses = _Batch(work, self._measure, self._measured)
        return self._losses.add(ref, 0)

    def begin_update(
        self,
        model: Vector,
        ref: SampleReference,
        training: LocalTraining,
        seed: int,
        objective: LocalObjective = PLAIN,
    ) -> Pending[Vector]:
        """Ask for an update; see `Backend`."""
        work = Work(model, training, objective)
        if self._updates is None or not self._updates.takes(work):
            self._updates = _Batch(work, self._train, self._measured)
        return self._updates.add(ref, seed)

    def forget(self) -> None:
        """Drop what was asked for; see `Backend`."""
        self._losses = self._updates = None

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

    def _measure(
        self, work: Work, refs: list[SampleReference], seeds: list[int]
    ) -> Iterator[float]:
        del seeds  # nothing is random
        return iter(self._learner.losses(work.model, [ref.data() for ref in refs]))

    def _train(self, work: Work, refs: list[SampleReference], seeds: list[int]) -> Iterator[Vector]:
        if work.training is None:
            raise RuntimeError("losses among updates: this is a bug")
        devices = [ref.data() for ref in refs]
        return self._learner.updates(work.model, devices, work.training, seeds, work.objective)


class _Batch(Generic[T]):
    """Devices with the same work. It grows until its first answer is waited for."""

    def __init__(
        self,
        work: Work,
        run: Callable[[Work, list[SampleReference], list[int]], Iterator[T]],
        measured: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._work = work
        self._run = run
        self._measured = measured
        self._refs: list[SampleReference] = []
        self._seeds: list[int] = []
        self._answers: Iterator[T] | None = None
        self._error: Exception | None = None
        self._num_answers = 0
        self._kept: dict[int, T] = {}

    def takes(self, work: Work) -> bool:
        """Whether a device with this work may still join."""
        is_open = self._answers is None and self._error is None
        return is_open and self._work.is_same(work)

    def add(self, ref: SampleReference, seed: int) -> Pending[T]:
        """Let a device join."""
        self._refs.append(ref)
        self._seeds.append(seed)
        return Later(partial(self.take, len(self._refs) - 1))

    def take(self, number: int) -> T:
        """Hand over an answer, working as far as it takes."""
        with self._measured():
            while self._num_answers <= number:
                if self._error is not None:
                    raise self._error
                try:
                    if self._answers is None:
                        self._answers = self._run(self._work, self._refs, self._seeds)
                    self._kept[self._num_answers] = next(self._answers)
                except Exception as error:
                    self._error = error  # whoever comes next gets it too, for there is no going on
                    raise
                self._num_answers += 1
        return self._kept.pop(number)
