"""The devices' work by a crew of workers: which worker does what, and when.

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
    CpuClock,
    ModelSpec,
    SampleReference,
    Work,
)
from deltafl.sim.cohort.backends.processes import IN_FLIGHT, Crew
from deltafl.sim.errors import RunError
from deltafl.sim.settings.config import PROCESSES

_LOSSES_AT_ONCE: Final = 16  # devices, at most, whose losses are measured in one chunk
_EVALUATED_AT_ONCE: Final = 8192  # samples
_LONGEST: Final = 512  # devices, for each takes time, however few its samples are


def open_pool(spec: ModelSpec, workers: int) -> "Pool":
    """Open the backend `processes`."""
    return Pool(Crew(spec, workers))


class Pool(Backend):
    """A backend whose work is done by a crew.

    A thread gives a worker its next chunk as soon as it has finished one, whatever the caller is at
    meanwhile, such as the protocol.

    Args:
        crew: does the work. Where its workers train one device at a time, training begins as soon
            as it is asked for; else when everybody is known.
    """

    name = PROCESSES

    def __init__(self, crew: Crew) -> None:
        self.clock = CpuClock()
        self._crew = crew
        self._batches: deque[_Batch] = deque()
        self._sent: list[deque[list[_Job]]] = [deque() for _ in range(crew.size)]
        self._failure: Exception | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # guards all of the above
        self._foreman = threading.Thread(target=self._attend, name="foreman", daemon=True)
        self._foreman.start()

    def begin(self, work: Work, ref: SampleReference, seed: int) -> Pending[Answer]:
        """Ask a device; see `Backend`."""
        with self._lock:
            batch = self._batches[-1] if self._batches else None
            if batch is None or not batch.takes(work):
                batch = self._begin(work)
            job = batch.add(ref, seed)
            self._pump()
        return Later(lambda: self.answer_of(job))

    def forget(self) -> None:
        """Drop what was asked for and not begun; see `Backend`."""
        error = RuntimeError("an answer was forgotten and is asked for: this is a bug")
        with self._lock:
            _fail((job for batch in self._batches for job in batch.jobs()), error)
            self._batches.clear()

    def evaluate(self, model: Vector, devices: Sequence[DeviceData]) -> list[DeviceMetrics]:
        """Measure a model on many devices; see `Backend`."""
        sizes = sizes_of(devices).tolist()
        with self._lock:
            batch = self._begin(Work(model, evaluates=True))
            jobs = [
                batch.add(SampleReference(devices, index, size), 0)
                for index, size in enumerate(sizes)
            ]
        return [cast("DeviceMetrics", self.answer_of(job)) for job in jobs]

    def close(self) -> None:
        """End the workers; see `Backend`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._crew.stop_waiting()
        self._foreman.join()
        self._crew.close()

    def answer_of(self, job: "_Job") -> Answer:
        """Have a job done, and hand over its answer, once."""
        with self._lock:
            job.batch.close()
            self._pump()
        answer = job.answer.result()
        del job.answer  # which may be large
        return answer

    def _begin(self, work: Work) -> "_Batch":
        if self._batches:
            self._batches[-1].close()
        at_once = _LOSSES_AT_ONCE if work.training is None else self._crew.at_once
        batch = _Batch(work, at_once, self._crew.size)
        self._batches.append(batch)
        return batch

    def _pump(self) -> None:
        """Give chunks to the workers that have room, the idlest first, as far as there are any."""
        while True:
            worker = min(range(self._crew.size), key=lambda one: len(self._sent[one]))
            if len(self._sent[worker]) == IN_FLIGHT or not (jobs := self._next_chunk()):
                return
            refs, seeds = [job.ref for job in jobs], [job.seed for job in jobs]
            try:
                if self._failure is not None:
                    raise self._failure
                self._crew.send(worker, jobs[0].batch.work, refs, seeds)
            except Exception as error:  # noqa: BLE001 (whoever waits for an answer raises it)
                _fail(jobs, error)
            else:
                self._sent[worker].append(jobs)

    def _next_chunk(self) -> "list[_Job]":
        while self._batches:
            if jobs := self._batches[0].next_chunk():
                return jobs
            if not self._batches[0].is_closed:
                return []
            self._batches.popleft()
        return []

    def _attend(self) -> None:
        """Take answers and give out chunks until the pool is closed."""
        failure: Exception = RunError("the workers were ended before all work was done")
        try:
            while self._crew.wait():
                with self._lock:
                    self._collect()
                    self._pump()
        except Exception as error:  # noqa: BLE001 (whoever waits for an answer raises it)
            failure = error
        with self._lock:
            self._failure = failure
            for sent in self._sent:
                _fail(chain.from_iterable(sent), failure)
                sent.clear()
            self._pump()  # nothing is sent any more

    def _collect(self) -> None:
        for done in self._crew.collect():
            self.clock.elsewhere += done.cpu_s
            jobs = self._sent[done.worker][0]
            if done.error is not None:
                _fail(jobs, done.error)
            else:
                # as a list, so that nobody has an answer if there are too few
                for job, answer in list(zip(jobs, done.answers, strict=True)):
                    job.answer.set_result(answer)
            self._sent[done.worker].popleft()


@dataclass(slots=True, eq=False, repr=False)
class _Job:
    """One device's part in a batch."""

    batch: "_Batch"
    ref: SampleReference
    seed: int
    answer: Future[Answer] = field(default_factory=Future)


def _fail(jobs: Iterable[_Job], error: Exception) -> None:
    """There will be no answers."""
    for job in jobs:
        job.answer.set_exception(error)


class _Batch:
    """Devices with the same work, cut into chunks when the last one has joined."""

    def __init__(self, work: Work, at_once: int, num_workers: int) -> None:
        self.is_closed = False
        self.work = work
        self._at_once = at_once
        self._num_workers = num_workers
        self._jobs: deque[_Job] = deque()
        self._chunks: deque[list[_Job]] = deque()

    def takes(self, work: Work) -> bool:
        """Whether a device with this work may still join."""
        return not self.is_closed and self.work.is_same(work)

    def add(self, ref: SampleReference, seed: int) -> _Job:
        """Let a device join."""
        job = _Job(self, ref, seed)
        self._jobs.append(job)
        return job

    def close(self) -> None:
        """Let nobody else join, and make the chunks."""
        if self.is_closed:
            return
        self.is_closed = True
        jobs = list(self._jobs)
        self._jobs.clear()
        self._chunks.extend(
            _by_samples(jobs)
            if self.work.evaluates
            else _by_number(jobs, self._at_once, self._num_workers)
        )

    def jobs(self) -> list[_Job]:
        """Those that nobody has begun."""
        return [*self._jobs, *chain.from_iterable(self._chunks)]

    def next_chunk(self) -> list[_Job]:
        """Take the next chunk; none if there is none, or none yet."""
        if self._chunks:
            return self._chunks.popleft()
        if self._at_once == 1 and self._jobs:
            return [self._jobs.popleft()]
        return []


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
