"""What a node computes in a round, by the app's own functions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.protocol.client import RoundClient
from deltafl.secagg import ClientId
from deltafl.sim.cohort.devices import Devices, device_objects
from deltafl.sim.errors import ConfigError
from deltafl.sim.net.frames import Task
from deltafl.sim.net.own_work import RoundWork, WorkOf, settings_of


class App(Protocol):
    """What the app does with a model."""

    def measure(self, model: Vector) -> tuple[float, int]:
        """The training loss of a model, and the number of samples."""

    def train(self, model: Vector) -> Vector:
        """What training changes of a model."""


def work_by(app: App, client: ClientId, told: bytes) -> WorkOf:
    """The work of a node, round by round.

    Args:
        app: what computes it.
        client: the node's id.
        told: the digest of what the node is told by Flower's messages; it must be the session's.
    """

    def work_of(task: Task, machine: RoundClient) -> RoundWork:
        if task.measures:
            raise ConfigError("the app says nothing of test data")
        if task.beside != told:
            raise ConfigError("Flower's messages say something else than the session is about")

        def devices(_levels: int) -> Devices:
            first = np.frombuffer(machine.models[0], dtype="<f4")
            return device_objects([_AppDevice(client, app.measure(first)[1], app)])

        return RoundWork(client, settings_of(task), task, machine, devices)

    return work_of


@dataclass(slots=True, eq=False)
class _AppDevice:
    """A node of Flower's as a device; a `Device`.

    Attributes:
        id: in the round.
        weight: its number of samples.
    """

    id: int
    weight: int = field(repr=False)
    _app: App

    def loss(self, model: Vector) -> float:
        """F_k, by the app."""
        return self._app.measure(model)[0]

    def update(self, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
        """Δ_k, by the app."""
        if objective != PLAIN:
            raise ValueError("the algorithm has an objective of its own, which the app has not")
        return self._app.train(model)


Say = Callable[[str], None]
"""Told what happens on the node, in short sentences; nothing of it goes to the server."""
