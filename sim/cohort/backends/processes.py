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
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final, Never, cast

import numpy as np
import torch

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import keep_freed_memory
from deltafl.fl.parameters import num_parameters
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import Answer, CpuClock, ModelSpec, SampleReference, Work
from deltafl.sim.cohort.backends.in_process import learner_of, worked_on
from deltafl.sim.cohort.backends.shared_memory import (
    DoubleBuffer,
    Location,
    SharedMemory,
    read_samples,
)
from deltafl.sim.errors import RunError

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
_ROOM_FOR_MODELS: Final = 1 << 24
"""Bytes of models that are kept; each stays as long as somebody reads it."""

_NOTHING: Final = np.zeros(0, np.float32)
_NICENESS: Final = 5
_FLOAT: Final = np.dtype(np.float32)
_WORKER: Final = "deltafl.sim.cohort.backends.processes"


class WorkerGone(RunError):
    """A worker has ended, so that there will be no answers."""


class Crew:
    """Worker processes, each of which does its chunks in the order in which it got them.

    Args:
        spec: what is trained.
        size: how many workers.

    Attributes:
        size: how many workers.
        at_once: most devices that train in one chunk.
        clock: the CPU time of all workers.
    """

    def __init__(self, spec: ModelSpec, size: int) -> None:
        told = spec.to_bytes()  # before anything is opened, for it may be refused
        keep_freed_memory()  # updates come and go
        self.size = size
        self.clock = CpuClock()
        self.at_once = _AT_ONCE.get(spec.name, 1)
        self._length = num_parameters(spec.build())
        self._updates_size = self.at_once * self._length * _FLOAT.itemsize
        self._counting = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        with contextlib.ExitStack() as opened:  # which closes all if not everything can be opened
            self._samples = opened.enter_context(contextlib.closing(DoubleBuffer()))
            self._models = opened.enter_context(contextlib.closing(DoubleBuffer(_ROOM_FOR_MODELS)))
            self._updates = opened.enter_context(contextlib.closing(SharedMemory()))
            self._updates.reserve(size * self._updates_size)
            opened.callback(self.stop)
            for _ in range(size):
                self._start(opened)
            for pipe in self._pipes:
                with contextlib.suppress(OSError):  # who asks a worker that is gone is told
                    pipe.send(told)
            self._opened = opened.pop_all()

    def do(
        self, worker: int, work: Work, refs: Sequence[SampleReference], seeds: Sequence[int]
    ) -> Sequence[Answer]:
        """Have a worker do a chunk: each worker for one thread at a time.

        Args:
            worker: which worker.
            work: what is to be done.
            refs: whose samples.
            seeds: of each device's shuffling.

        Returns:
            For each device a loss, an update, or metrics.

        Raises:
            WorkerGone: the worker is gone.
            ValueError: the model does not fit the data.
            Exception: whatever a device raises that cannot be made, or in its work.
        """
        told, samples = DeviceData("", work.model, _NOTHING), list[Location]()
        with contextlib.ExitStack() as held:
            model = self._models.hold(work.model, 0, lambda: told)
            held.callback(self._models.release, model)
            for ref in refs:
                samples.append(self._samples.hold(ref.devices, ref.index, ref.data))
                held.callback(self._samples.release, samples[-1])
            place = worker * self._updates_size
            work = replace(work, model=_NOTHING)  # which lies in shared memory
            try:
                self._pipes[worker].send((work, seeds, samples, model, place))
                answers, cpu_s, error = self._pipes[worker].recv()
            except (EOFError, OSError):
                raise self._gone(worker) from None
        with self._counting:
            self.clock.elsewhere += cpu_s
        if error is not None:
            raise error
        if answers is None:
            updates = self._updates.array(place, (len(refs), self._length), _FLOAT)
            answers = [update.copy() for update in updates]
        return cast("list[Answer]", answers)

    def stop(self) -> None:
        """End the workers, whatever they are at."""
        for process in self._processes:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Let go of all; nobody may be waiting for a worker."""
        self._opened.close()

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

    def _gone(self, worker: int) -> WorkerGone:
        status = self._processes[worker].wait()
        why = f"signal {-status}" if status < 0 else f"exit code {status}"
        hint = "; that is often a lack of memory" if status == -9 else ""
        return WorkerGone(
            f"worker {worker + 1} of {self.size} ended with {why}{hint}: resume the run, or start "
            "another one with fewer training.workers"
        )


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
