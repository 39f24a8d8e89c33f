"""A worker process: gets chunks of devices' work by a pipe, and finds all arrays in shared memory.

Messages are msgpack: what is to be done and where, and what came of it. It ends when the pipe does.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any, Final, cast

import msgpack
import numpy as np
import torch

from deltafl.fl.criterion import CLASSIFIES
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.local import CohortLearner, LocalTraining
from deltafl.fl.objectives import LocalObjective
from deltafl.fl.parameters import num_parameters
from deltafl.sim.cohort.backends.base import ModelSpec, Work
from deltafl.sim.cohort.backends.learners import build_learner, worked_on
from deltafl.sim.cohort.backends.own import own_as_bytes, own_of
from deltafl.sim.cohort.backends.pool import Chunk
from deltafl.sim.cohort.backends.shared_memory import Location, SharedMemory, read_samples
from deltafl.sim.settings.backends import PROCESSES

NUM_FILES: Final = 5
"""File descriptors that a worker gets: the pipe, two buffers, the models and the updates."""

_NICENESS: Final = 5
_FLOAT: Final = np.dtype(np.float32)


def encode_spec(spec: ModelSpec, learner: str) -> bytes:
    """Say what is trained, and how.

    Raises:
        ConfigError: the caller's own module cannot be sent.
    """
    table = spec.embedding
    embedding = None if table is None else [table.astype("<f4").tobytes(), list(table.shape)]
    own = None if spec.own is None else own_as_bytes(spec, PROCESSES)
    packed: bytes = msgpack.packb(
        [learner, spec.name, list(spec.input_shape), spec.num_classes, embedding, own]
    )
    return packed


def encode_chunk(chunk: Chunk, locations: list[Location], model: int, updates: int) -> bytes:
    """Say what is to be done.

    Args:
        chunk: the work.
        locations: where its devices' samples lie.
        model: offset of the model.
        updates: offset at which the updates go.
    """
    training = chunk.work.training
    packed: bytes = msgpack.packb(
        [
            chunk.evaluates,
            model,
            None if training is None else asdict(training),
            asdict(chunk.work.objective),
            [
                (at.buffer, at.dtype, at.shape, at.x, at.y, at.targets_dtype, at.targets_shape)
                for at in locations
            ],
            list(chunk.seeds),
            updates,
        ]
    )
    return packed


class _Worker:
    def __init__(self, pipe: Connection, memories: list[SharedMemory]) -> None:
        name, model, input_shape, num_classes, embedding, own = msgpack.unpackb(pipe.recv_bytes())
        table = None
        if embedding is not None:
            table = np.frombuffer(embedding[0], dtype="<f4").reshape(embedding[1])
        make, criterion = (None, CLASSIFIES) if own is None else own_of(own)
        spec = ModelSpec(model, tuple(input_shape), num_classes, table, make, criterion)
        self._length = num_parameters(spec.build())
        self._learner: CohortLearner = build_learner(name, spec, torch.device("cpu"))
        self._samples = memories[0], memories[1]
        self._models, self._updates = memories[2:]
        self._pipe = pipe

    def serve(self) -> None:
        """Do chunks until there is nobody to send one."""
        while True:
            try:
                message = self._pipe.recv_bytes()
            except (EOFError, OSError):  # the latter if answers were left lying, or in mid-message
                return
            start = time.process_time()
            answers: list[Any] = []
            error = None
            try:
                answers = self._do(*msgpack.unpackb(message))
            except ValueError as caught:  # the model does not fit the data: the caller's fault
                error = str(caught)
            spent = time.process_time() - start
            with contextlib.suppress(OSError):
                self._pipe.send_bytes(msgpack.packb([answers, spent, error]))

    def _do(
        self,
        evaluates: bool,
        model: int,
        training: dict[str, Any] | None,
        objective: dict[str, Any],
        locations: list[list[Any]],
        seeds: list[int],
        updates: int,
    ) -> list[Any]:
        vector = self._models.array(model, (self._length,), _FLOAT).view(np.float32)
        devices = []
        for buffer, dtype, shape, x, y, of_targets, targets in locations:
            location = Location(buffer, "", dtype, tuple(shape), x, y, of_targets, tuple(targets))
            devices.append(read_samples(self._samples, location))
        of = None if training is None else LocalTraining(**training)
        found = worked_on(
            self._learner,
            Work(vector, of, LocalObjective(**objective)),
            devices,
            seeds,
            evaluates=evaluates,
        )
        if evaluates:
            return [[metrics.loss, metrics.error] for metrics in cast("list[DeviceMetrics]", found)]
        if training is None:
            return list(found)
        places = self._updates.array(updates, (len(devices), self._length), _FLOAT, writable=True)
        for place, update in zip(places, found, strict=True):
            place[...] = update
        return []


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
