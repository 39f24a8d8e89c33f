"""A worker process: gets chunks of devices' work by a pipe, and finds all arrays in shared memory.

Messages say what is to be done and where, and what came of it. It ends when the pipe does.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final

import cloudpickle
import numpy as np
import torch

from deltafl.fl.parameters import num_parameters
from deltafl.sim.cohort.backends.base import Answer, Work
from deltafl.sim.cohort.backends.learners import build_learner, worked_on
from deltafl.sim.cohort.backends.shared_memory import Assigned, SharedMemory, read_samples

NUM_FILES: Final = 5
"""File descriptors that a worker gets: the pipe, two buffers, the models and the updates."""

_NICENESS: Final = 5


class _Worker:
    def __init__(self, pipe: Connection, memories: list[SharedMemory]) -> None:
        learner, spec = cloudpickle.loads(pipe.recv_bytes())
        self._length = num_parameters(spec.build())
        self._learner = build_learner(learner, spec, torch.device("cpu"))
        self._samples = memories[0], memories[1]
        self._models, self._updates = memories[2:]
        self._pipe = pipe

    def serve(self) -> None:
        """Do chunks until there is nobody to send one."""
        while True:
            try:
                assigned = self._pipe.recv()
            except (EOFError, OSError):  # the latter if answers were left lying, or in mid-message
                return
            start = time.process_time()
            answers: Sequence[Answer] = ()
            error = None
            try:
                answers = self._do(assigned)
            except ValueError as caught:  # the model does not fit the data: the caller's fault
                error = str(caught)
            spent = time.process_time() - start
            with contextlib.suppress(OSError):
                self._pipe.send((answers, spent, error))

    def _do(self, assigned: Assigned) -> Sequence[Answer]:
        """Do a chunk; the answers, but for updates, which go where they are to lie."""
        model = self._models.array(assigned.model, (self._length,), np.float32).view(np.float32)
        work = Work(model, assigned.training, assigned.objective)
        devices = [read_samples(self._samples, one) for one in assigned.locations]
        found = worked_on(
            self._learner, work, devices, assigned.seeds, evaluates=assigned.evaluates
        )
        if assigned.evaluates or assigned.training is None:
            return list(found)
        shape = len(devices), self._length
        places = self._updates.array(assigned.updates, shape, np.float32, writable=True)
        for place, update in zip(places, found, strict=True):
            place[...] = update
        return ()


def _end_with_the_caller(pipe: int) -> None:
    """End as soon as the other end is closed, also in the middle of a chunk: nobody wants it."""
    watched = select.poll()
    watched.register(pipe, 0)  # which tells of a hang-up and of nothing else
    watched.poll()
    os._exit(0)


def main() -> None:
    """Serve on the file descriptors that are given as arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent to decide what ends
    # the caller's own work, such as the protocol, is what everybody waits for in the end
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    pipe, *files = map(int, sys.argv[1:])
    threading.Thread(target=_end_with_the_caller, args=(pipe,), daemon=True).start()
    _Worker(Connection(pipe), [SharedMemory(file) for file in files]).serve()
    os._exit(0)  # nothing is left to be tidied up, and the interpreter takes its time over it


if __name__ == "__main__":
    main()
