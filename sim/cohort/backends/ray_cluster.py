"""A crew of Ray actors, on this machine or on a cluster.

What is to be done is the same as with worker processes, and so are the answers; samples and models
go through Ray's object store. Every machine of the cluster needs this package, in the same version.
Ray serialises with pickle, so anybody who can reach the cluster's ports can run code on it. Keep
the ports private, as Ray's own documentation says.
"""

import logging
import os
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import Answer, ModelSpec, SampleReference, Work
from deltafl.sim.cohort.backends.in_process import learner_of_worker, updates_at_once, worked_on
from deltafl.sim.cohort.backends.pool import Chunk, Done, Pool
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.settings.backends import RAY

# Objects of ray. They are Any, for mypy accepts this module with and without ray.
_Ray: TypeAlias = Any
_Reference: TypeAlias = Any

_ROOM: Final = 1 << 30
"""Bytes of samples that are kept in the object store from round to round."""

_NO_MODEL: Final = np.zeros(0, np.float32)  # which comes by the object store
_PATIENCE_S: Final = 5.0
_SOON_S: Final = 0.005
_EXTRA: Final = "install the extra: pip install '.[ray]'"


def open_pool(spec: ModelSpec, workers: int, address: str) -> Pool:
    """Open the backend `ray`.

    Raises:
        UserError: the package ray is not installed, or there is no such cluster.
    """
    at_once = updates_at_once(spec.name)
    actors = RayActors(spec, at_once, size=workers, address=address)
    return Pool(RAY, actors, updates_at_once=at_once)


class RayActors:
    """Workers that are Ray actors, one core each; see `Crew`.

    Args:
        spec: what is trained.
        at_once: most devices that train in one chunk.
        size: how many workers.
        address: of the cluster; empty starts one on this machine, of as many cores.

    Raises:
        UserError: the package ray is not installed, or the cluster cannot be reached.
        ConfigError: the caller's own module cannot be sent.
    """

    def __init__(self, spec: ModelSpec, at_once: int, *, size: int, address: str) -> None:
        ray = _import_ray()
        if spec.own is not None:
            spec.to_bytes(RAY)  # which Ray would refuse with a page of text
        self.size = size
        self._ray = ray
        # in a session of somebody else's making the caller's Ray is used, and left as it is
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            _connect(ray, address, size)
        actor = ray.remote(num_cpus=1)(_Worker)
        self._actors = [actor.remote(spec, at_once) for _ in range(size)]
        self._flights: list[deque[_Reference]] = [deque() for _ in range(size)]
        self._samples = _Store(ray)
        self._stopped = False
        self._model: tuple[Vector, _Reference] | None = None

    def send(self, worker: int, chunk: Chunk) -> None:
        """Give a worker a chunk; see `Crew`."""
        work = chunk.work
        if self._model is None or self._model[0] is not work.model:
            self._model = work.model, self._ray.put(work.model)
        samples = [self._samples.put(ref) for ref in chunk.refs]
        self._flights[worker].append(
            self._actors[worker].do.remote(
                replace(work, model=_NO_MODEL),
                list(chunk.seeds),
                self._model[1],
                *samples,  # as arguments of their own, for only these are fetched by Ray
            )
        )

    def wait(self) -> bool:
        """Wait until something is finished; see `Crew`."""
        while not self._stopped:
            # what is sent meanwhile is not among what is waited for, so not for long
            oldest = self._oldest()
            if oldest and self._ray.wait(list(oldest), timeout=_SOON_S)[0]:
                return True
            if not oldest:
                time.sleep(_SOON_S)
        return False

    def collect(self) -> Sequence[tuple[int, Done]]:
        """Take what has been finished; see `Crew`."""
        oldest = self._oldest()
        if not oldest:
            return []
        ready, _ = self._ray.wait(list(oldest), num_returns=len(oldest), timeout=0)
        return [(oldest[flight], self._receive(oldest[flight])) for flight in ready]

    def stop_waiting(self) -> None:
        """Have `wait` return False; see `Crew`."""
        self._stopped = True

    def close(self) -> None:
        """End the workers, and Ray if it was started for them; see `Crew`."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []  # to kill one later would start Ray anew
        if self._is_ours:
            self._ray.shutdown()

    def _oldest(self) -> dict[_Reference, int]:
        return {flights[0]: worker for worker, flights in enumerate(self._flights) if flights}

    def _receive(self, worker: int) -> Done:
        flight = self._flights[worker].popleft()
        try:
            answers, cpu_s, error = self._ray.get(flight)
        except self._ray.exceptions.RayError as caught:
            raise RunError(
                f"worker {worker + 1} of {self.size} on the Ray cluster is gone "
                f"({type(caught).__name__}): resume the run when the cluster is well"
            ) from caught
        return Done(answers, cpu_s, None if error is None else ValueError(error))


class _Worker:
    """What runs on the cluster."""

    def __init__(self, spec: ModelSpec, at_once: int) -> None:
        torch.set_num_threads(1)
        self._learner = learner_of_worker(spec, at_once)

    def do(
        self,
        work: Work,
        seeds: list[int],
        model: Vector,
        *devices: DeviceData,
    ) -> tuple[Sequence[Answer], float, str | None]:
        """Do a chunk; the answers, the CPU seconds, and what the caller did wrong."""
        start = time.process_time()
        answers: Sequence[Answer] = ()
        error = None
        try:
            with_model = replace(work, model=model)
            answers = list(worked_on(self._learner, with_model, devices, seeds))
        except ValueError as caught:
            error = str(caught)
        return answers, time.process_time() - start, error


class _Store:
    """Samples in Ray's object store; the least recently used go when there are too many."""

    def __init__(self, ray: _Ray) -> None:
        self._ray = ray
        self._size = 0
        # a sequence is kept alive, so that no other gets its identity
        self._found: OrderedDict[tuple[int, int], tuple[_Reference, int, object]] = OrderedDict()

    def put(self, ref: SampleReference) -> _Reference:
        """The reference to a device's samples."""
        key = id(ref.devices), ref.index
        if key in self._found:
            self._found.move_to_end(key)
            return self._found[key][0]
        data = ref.data()
        size = data.x.nbytes + data.y.nbytes
        reference = self._ray.put(data)
        self._found[key] = reference, size, ref.devices
        self._size += size
        while self._size > _ROOM and len(self._found) > 1:
            _, (_, gone, _) = self._found.popitem(last=False)
            self._size -= gone
        return reference


def _import_ray() -> _Ray:
    try:
        return import_module("ray")
    except ImportError:
        raise UserError(f"training.backend = 'ray': the package ray is missing; {_EXTRA}") from None


def _connect(ray: _Ray, address: str, size: int) -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns that it will
    try:
        if not address:
            ray.init(
                num_cpus=size,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
            return
        _check_somebody_listens(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"training.address = {address!r}: no Ray cluster: {error}") from error


def _check_somebody_listens(address: str) -> None:
    """Find out now, for Ray tries for minutes and then ends the process."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "//" not in host:
        socket.create_connection((host, int(port)), _PATIENCE_S).close()
