"""The devices' work by a crew of workers: which chunk is next.

Devices are worked on in chunks. Which devices make a chunk depends on the requests and on the
number of workers, but never on which worker was ready first. The same holds for the answers.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, cast

from deltafl.fl.cohort import Later, Pending
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.data.lazy import sizes_of
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import (
    Answer,
    Backend,
    SampleReference,
    Work,
)
from deltafl.sim.cohort.backends.processes import Crew, WorkerGone
from deltafl.sim.errors import RunError
from deltafl.sim.settings.config import PROCESSES

_LOSSES_AT_ONCE: Final = 16  # devices, at most, whose losses are measured in one chunk
_EVALUATED_AT_ONCE: Final = 8192  # samples
_LONGEST: Final = 512  # devices, for each takes time, however few its samples are


class Pool(Backend):
    """A backend whose work is done by a crew.

    A thread for each worker hands it chunk after chunk, whatever the caller is at meanwhile, such
    as the protocol.

    Args:
        crew: does the work. Where its workers train one device at a time, training begins as soon
            as it is asked for; else when everybody is known.
    """

    name = PROCESSES

    def __init__(self, crew: Crew) -> None:
        self.clock = crew.clock
        self._crew = crew
        self._work: Work | None = None  # which others may still be asked for
        self._jobs: deque[_Job] = deque()  # of those that were, and are in no chunk yet
        self._chunks: deque[list[_Job]] = deque()
        self._failure: RunError | None = None
        self._changed = threading.Condition()  # guards all of the above
        self._threads = [
            threading.Thread(target=self._attend, args=(worker,), daemon=True)
            for worker in range(crew.size)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, work: Work, ref: SampleReference, seed: int) -> Pending[Answer]:
        """Ask a device; see `Backend`."""
        job = self._add(work, ref, seed)
        return Later(lambda: self._answer_of(job))

    def forget(self) -> None:
        """Drop what was asked for and not begun; see `Backend`."""
        with self._changed:
            self._drop(RuntimeError("an answer was forgotten and is asked for: this is a bug"))

    def evaluate(self, model: Vector, devices: Sequence[DeviceData]) -> list[DeviceMetrics]:
        """Measure a model on many devices; see `Backend`."""
        work = Work(model, evaluates=True)
        jobs = [
            self._add(work, SampleReference(devices, index, size), 0)
            for index, size in enumerate(sizes_of(devices).tolist())
        ]
        return [cast("DeviceMetrics", self._answer_of(job)) for job in jobs]

    def close(self) -> None:
        """End the workers; see `Backend`."""
        self._end(RunError("the workers were ended before all work was done"))
        self._crew.stop()
        for thread in self._threads:
            thread.join()
        self._crew.close()

    def _add(self, work: Work, ref: SampleReference, seed: int) -> "_Job":
        with self._changed:
            if self._work is None or not self._work.is_same(work):
                self._cut()
                self._work = work
            job = _Job(self._work, ref, seed)
            if self._failure is None:
                self._jobs.append(job)
                self._changed.notify()
            else:
                job.answer.set_exception(self._failure)
        return job

    def _answer_of(self, job: "_Job") -> Answer:
        """Have a job done, and hand over its answer, once."""
        with self._changed:
            if job.work is self._work:
                self._cut()
        answer = job.answer.result()
        del job.answer  # which may be large
        return answer

    def _cut(self) -> None:
        """Let nobody join who has been asked for the same work, and make the chunks."""
        jobs, self._work = list(self._jobs), None
        self._jobs.clear()
        if jobs and jobs[0].work.evaluates:
            self._chunks.extend(_by_samples(jobs))
        elif jobs:
            self._chunks.extend(_by_number(jobs, self._at_once(jobs[0].work), self._crew.size))
        self._changed.notify_all()

    def _at_once(self, work: Work) -> int:
        return _LOSSES_AT_ONCE if work.training is None else self._crew.at_once

    def _attend(self, worker: int) -> None:
        """Have a worker do chunks until there will be no more."""
        while jobs := self._next_chunk():
            refs, seeds = [job.ref for job in jobs], [job.seed for job in jobs]
            try:
                answers = self._crew.do(worker, jobs[0].work, refs, seeds)
                # as a list, so that nobody has an answer if there are too few
                answered = list(zip(jobs, answers, strict=True))
            except WorkerGone as error:
                _fail(jobs, self._end(error))
            except Exception as error:  # noqa: BLE001 (whoever waits for an answer raises it)
                _fail(jobs, error)
            else:
                for job, answer in answered:
                    job.answer.set_result(answer)

    def _next_chunk(self) -> "list[_Job]":
        """Wait for a chunk; none once nothing is worked on any more."""
        with self._changed:
            while self._failure is None:
                if self._chunks:
                    return self._chunks.popleft()
                if self._jobs and self._at_once(self._jobs[0].work) == 1:
                    return [self._jobs.popleft()]
                self._changed.wait()
        return []

    def _end(self, failure: RunError) -> RunError:
        """Work on nothing any more; why not, which is the first such reason."""
        with self._changed:
            self._failure = self._failure or failure
            self._drop(self._failure)
            self._changed.notify_all()
            return self._failure

    def _drop(self, error: Exception) -> None:
        """Nobody begins what has not been begun."""
        _fail(chain(self._jobs, *self._chunks), error)
        self._jobs.clear()
        self._chunks.clear()


@dataclass(slots=True, eq=False, repr=False)
class _Job:
    """What one device is to do, with others that are asked for the very same work."""

    work: Work
    ref: SampleReference
    seed: int
    answer: Future[Answer] = field(default_factory=Future)


def _fail(jobs: Iterable[_Job], error: Exception) -> None:
    """There will be no answers."""
    for job in jobs:
        job.answer.set_exception(error)


def _by_number(jobs: Sequence[_Job], at_once: int, num_workers: int) -> Iterator[list[_Job]]:
    """Chunks of devices of like sizes, the largest first, as many for each worker."""
    falling = sorted(jobs, key=lambda job: -job.ref.size)
    num_turns = -(-len(falling) // (at_once * num_workers))
    num_chunks = min(num_turns * num_workers, len(falling))
    for number in range(num_chunks):
        start, end = (len(falling) * which // num_chunks for which in (number, number + 1))
        yield falling[start:end]


def _by_samples(jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
    """Chunks of neighbours with so many samples together, or of one device with more."""
    chunk: list[_Job] = []
    size = 0
    for job in jobs:
        if chunk and (size + job.ref.size > _EVALUATED_AT_ONCE or len(chunk) == _LONGEST):
            yield chunk
            chunk, size = [], 0
        chunk.append(job)
        size += job.ref.size
    if chunk:
        yield chunk
