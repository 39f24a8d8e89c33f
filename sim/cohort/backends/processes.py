"""A crew of processes on this machine, each with one thread and a core of its own.

All workers share the memory that holds samples, models and updates; only short messages about the
work go through pipes. Workers are fresh interpreters that run this module, and know only what they
are told. They read at once whatever they are sent, so that to send never waits for a worker's own
answer to be taken, however long both are. They end when their pipe does.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Never, cast

import numpy as np
import torch

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import keep_freed_memory
from deltafl.fl.parameters import num_parameters
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import Answer, ModelSpec, SampleReference, Work
from deltafl.sim.cohort.backends.in_process import learner_of, worked_on
from deltafl.sim.cohort.backends.shared_memory import (
    DoubleBuffer,
    Location,
    SharedMemory,
    read_samples,
)
from deltafl.sim.errors import RunError

IN_FLIGHT: Final = 2
"""Chunks that a worker may have: the one it is at and the next, so that it never waits."""

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

_ONE_THREAD: Final = {
    name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
}
_FAREWELL_S: Final = 5.0
_ROOM_FOR_MODELS: Final = 1 << 24
"""Bytes of models that are kept; each stays as long as somebody reads it."""

_NOTHING: Final = np.zeros(0, np.float32)
_NICENESS: Final = 5
_FLOAT: Final = np.dtype(np.float32)
_WORKER: Final = "deltafl.sim.cohort.backends.processes"


class Done(NamedTuple):
    """What came of a worker's oldest chunk.

    Attributes:
        worker: which worker.
        answers: for each device a loss, an update, or metrics.
        cpu_s: CPU seconds of the worker.
        error: why there are no answers; None if there are.
    """

    worker: int
    answers: Sequence[Answer]
    cpu_s: float
    error: Exception | None = None


class Crew:
    """Worker processes, each of which does its chunks in the order in which it got them.

    Args:
        spec: what is trained.
        size: how many workers.

    Attributes:
        size: how many workers.
        at_once: most devices that train in one chunk.
    """

    def __init__(self, spec: ModelSpec, size: int) -> None:
        told = spec.to_bytes()  # before anything is opened, for it may be refused
        keep_freed_memory()  # updates come and go
        self.size = size
        self.at_once = _AT_ONCE.get(spec.name, 1)
        self._length = num_parameters(spec.build())
        self._flights: list[deque[_Flight]] = [deque() for _ in range(size)]
        # a worker's chunks take turns at its places for updates
        self._slots = [deque(range(w * IN_FLIGHT, (w + 1) * IN_FLIGHT)) for w in range(size)]
        self._updates_size = self.at_once * self._length * _FLOAT.itemsize
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        with contextlib.ExitStack() as opened:  # which closes all if not everything can be opened
            self._samples = opened.enter_context(contextlib.closing(DoubleBuffer()))
            self._models = opened.enter_context(contextlib.closing(DoubleBuffer(_ROOM_FOR_MODELS)))
            self._updates = opened.enter_context(contextlib.closing(SharedMemory()))
            self._updates.reserve(size * IN_FLIGHT * self._updates_size)
            opened.callback(self._see_off)  # once their pipes are closed
            self._bell, self._cord = map(opened.enter_context, Pipe(duplex=False))
            for _ in range(size):
                self._start(opened)
            for worker in range(size):
                self._tell(worker, told)
            self._opened = opened.pop_all()

    def send(
        self, worker: int, work: Work, refs: Sequence[SampleReference], seeds: Sequence[int]
    ) -> None:
        """Give a worker a chunk.

        Args:
            worker: which worker.
            work: what is to be done.
            refs: whose samples.
            seeds: of each device's shuffling.

        Raises:
            RunError: the worker is gone.
            Exception: whatever a device raises that cannot be made.
        """
        told = DeviceData("", work.model, _NOTHING)
        model = self._models.hold(work.model, 0, lambda: told)
        flight = _Flight([], model, self._slots[worker][0] * self._updates_size)
        try:
            for ref in refs:
                flight.locations.append(self._samples.hold(ref.devices, ref.index, ref.data))
            work = replace(work, model=_NOTHING)  # which lies in shared memory
            self._tell(worker, (work, seeds, *flight))
        except BaseException:
            self._release(flight)
            raise
        self._slots[worker].rotate(-1)
        self._flights[worker].append(flight)

    def wait(self) -> bool:
        """Wait until something is finished, or a worker gone; False when the crew is to close."""
        return self._bell not in wait([self._bell, *self._pipes])

    def collect(self) -> Sequence[Done]:
        """Take what has been finished.

        Raises:
            RunError: a worker is gone.
        """
        ready = wait(self._pipes, 0.0)
        return [self._receive(w) for w, pipe in enumerate(self._pipes) if pipe in ready]

    def stop_waiting(self) -> None:
        """Have `wait` return False, now or when it is called next."""
        self._cord.send_bytes(b"stop")

    def close(self) -> None:
        """End the workers."""
        self._opened.close()

    def _see_off(self) -> None:
        deadline = time.monotonic() + _FAREWELL_S
        for process in self._processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, opened: contextlib.ExitStack) -> None:
        ours, theirs = Pipe()
        self._pipes.append(opened.enter_context(ours))
        memories = *self._samples.memories, *self._models.memories, self._updates
        with theirs:
            files = [theirs.fileno(), *(memory.file for memory in memories)]
            self._processes.append(
                subprocess.Popen(  # noqa: S603 (this interpreter and a module of ours)
                    # -P, for -m would look for modules in the working directory first
                    [sys.executable, "-P", "-m", _WORKER, str(self.at_once), *map(str, files)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=files,
                    env={**os.environ, **_ONE_THREAD, "PYTHONPATH": _same_modules()},
                )
            )

    def _tell(self, worker: int, told: object) -> None:
        try:
            self._pipes[worker].send(told)
        except OSError:
            raise self._gone(worker) from None

    def _receive(self, worker: int) -> Done:
        try:
            answers, cpu_s, error = self._pipes[worker].recv()
        except (EOFError, OSError):
            raise self._gone(worker) from None
        flight = self._flights[worker].popleft()
        self._release(flight)
        if answers is None:
            shape = len(flight.locations), self._length
            updates = self._updates.array(flight.updates, shape, _FLOAT)
            answers = [update.copy() for update in updates]
        return Done(worker, answers, cpu_s, error)

    def _release(self, flight: "_Flight") -> None:
        for location in flight.locations:
            self._samples.release(location)
        self._models.release(flight.model)

    def _gone(self, worker: int) -> RunError:
        status = self._processes[worker].wait()
        why = f"signal {-status}" if status < 0 else f"exit code {status}"
        hint = "; that is often a lack of memory" if status == -9 else ""
        return RunError(
            f"worker {worker + 1} of {self.size} ended with {why}{hint}: resume the run, or start "
            "another one with fewer training.workers"
        )


class _Flight(NamedTuple):
    """Where the samples, the model and the updates of a chunk lie."""

    locations: list[Location]
    model: Location
    updates: int


def _same_modules() -> str:
    """Where this process finds modules, so that workers find the same."""
    return os.pathsep.join(folder or os.getcwd() for folder in sys.path)


class _Worker:
    """What runs in a process of a crew: does chunks, and finds all arrays in shared memory."""

    def __init__(self, at_once: int, pipe: Connection, memories: list[SharedMemory]) -> None:
        self._pipe = pipe
        self._told = SimpleQueue[Any]()  # first the module, then chunks
        threading.Thread(target=self._read_ahead, daemon=True).start()
        spec = ModelSpec.of_bytes(self._told.get())
        self._length = num_parameters(spec.build())
        self._learner = learner_of(spec, torch.device("cpu"), many=at_once > 1)
        self._samples, self._models, self._updates = memories[:2], memories[2:4], memories[4]

    def serve(self) -> Never:
        """Do chunks for as long as the process lasts."""
        while True:
            told = self._told.get()
            start = time.process_time()
            answers: list[Answer] | None = None
            error: Exception | None = None
            try:
                answers = self._do(*told)
            except ValueError as caught:  # the model does not fit the data: the caller's fault
                error = ValueError(str(caught))
            except Exception as caught:  # noqa: BLE001 (so is what a module of theirs raises)
                error = RunError(f"a device's work failed: {type(caught).__name__}: {caught}")
            spent = time.process_time() - start
            with contextlib.suppress(OSError):
                self._pipe.send((answers, spent, error))

    def _read_ahead(self) -> None:
        """Take what is sent, whatever the worker is at, so that the caller can always send.

        The process ends as soon as the other end is closed, also in the middle of a chunk: nobody
        wants it.
        """
        # OSError if answers were left lying, or in mid-message
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._told.put(self._pipe.recv())
        finally:
            os._exit(0)  # nothing is left to be tidied up

    def _do(
        self,
        work: Work,
        seeds: Sequence[int],
        samples: Sequence[Location],
        model: Location,
        updates: int,
    ) -> list[Answer] | None:
        """The answers of a chunk; None of training, for updates lie in shared memory."""
        devices = [read_samples(self._samples, location) for location in samples]
        work = replace(work, model=cast("Vector", read_samples(self._models, model).x))
        found = worked_on(self._learner, work, devices, seeds)
        if work.training is None:
            return list(found)
        places = self._updates.array(updates, (len(devices), self._length), _FLOAT)
        for place, update in zip(places, found, strict=True):
            place[...] = update
        return None


def main() -> None:
    """Serve: most devices that train at once, and file descriptors are given as arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent to decide what ends
    # the caller's own work, such as the protocol, is what everybody waits for in the end
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    at_once, pipe, *files = map(int, sys.argv[1:])
    _Worker(at_once, Connection(pipe), [SharedMemory(file) for file in files]).serve()


if __name__ == "__main__":
    main()
