"""A device's side inside Flower: a mod that lets an ordinary client app take part."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path
from threading import Event
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import log

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.protocol.client import RoundClient
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import TrustedKeys
from deltafl.secagg.identity import identity
from deltafl.secagg.sqlite_ledger import SqliteLedger
from deltafl.sim.cohort.devices import Devices, device_objects
from deltafl.sim.errors import ConfigError
from deltafl.sim.net.device import DeviceSide, Notes
from deltafl.sim.net.dialling import Server, take_part
from deltafl.sim.net.flower.handover import RECORD, Handover
from deltafl.sim.net.flower.layout import Layout
from deltafl.sim.net.frames import Reason, Task
from deltafl.sim.net.identities import OwnIdentity
from deltafl.sim.net.own_work import RoundWork, settings_of

OwnLoss = Callable[[Message, Context], tuple[float, int]]
"""A device's mean training loss of the model in a message, and its number of samples."""

ClientAppCallable = Callable[[Message, Context], Message]

_ARRAYS: Final = "arrays"
_PATIENCE_S: Final = 60.0  # without a connection: the round is over, or its server


class DeltaFLMod:
    """Takes part in rounds of `PrivateDeltaFL`; lets all other messages pass.

    The app's own function for training is called where the device passes the filter, and also
    where it does not; the result is then forgotten. It gets the message that Flower's strategies
    send, and answers as it always does.

    Args:
        loss: the device's training loss of a model.
        policy: what the device insists on.
        folder: where ledgers are, one for each node; `$FLWR_HOME/deltafl` by default.
    """

    def __init__(
        self, loss: OwnLoss, policy: RoundPolicy | None = None, folder: Path | None = None
    ) -> None:
        self._loss = loss
        self._policy = policy or RoundPolicy()
        home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
        self._folder = folder or Path(home) / "deltafl"

    def __call__(self, msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message; a mod of Flower's."""
        if RECORD not in msg.content:
            return call_next(msg, context)
        handover = Handover.of_record(msg.content[RECORD])
        own = OwnIdentity(handover.client, identity(handover.token))
        stop = Event()

        def declined(reason: Reason, detail: str) -> None:
            log(WARNING, "not in this round (%s): %s", reason.name.lower(), detail)

        def failed(error: Exception) -> None:
            log(WARNING, "training failed, and counts as zeros: %r", error)

        app = _App(handover.layout, msg, context, call_next, self._loss)

        def work_of(task: Task, machine: RoundClient) -> RoundWork:
            if task.measures:
                raise ConfigError("the app says nothing of test data")

            def devices(_levels: int) -> Devices:
                first = np.frombuffer(machine.models[0], dtype="<f4")
                return device_objects([_AppDevice(own.client, app.measure(first)[1], app)])

            return RoundWork(own.client, settings_of(task), task, machine, devices)

        self._folder.mkdir(parents=True, exist_ok=True)
        with (
            SqliteLedger(self._folder / f"node-{context.node_id}.ledger") as ledger,
            tempfile.TemporaryDirectory() as folder,
        ):
            side = DeviceSide(
                own,
                TrustedKeys({own.client: own.identity.public}),
                self._policy,
                ledger,
                work_of,
                Notes(over=lambda _done: stop.set(), declined=declined, failed=failed),
            )
            trusted = None
            if handover.authority:
                trusted = str(Path(folder) / "authority.pem")
                Path(trusted).write_text(handover.authority, encoding="ascii")
            take_part(Server(handover.url, trusted), side, _say, stop, patience=_PATIENCE_S)
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=msg)


@dataclass(slots=True, eq=False)
class _AppDevice:
    """A node of Flower's as a device; a `Device`.

    Attributes:
        id: in the round.
        weight: its number of samples.
    """

    id: int
    weight: int
    _app: "_App"

    def loss(self, model: Vector) -> float:
        """F_k, by the app."""
        return self._app.measure(model)[0]

    def update(self, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
        """Δ_k, by the app."""
        if objective != PLAIN:
            raise ValueError("the algorithm has an objective of its own, which the app has not")
        return self._app.train(model)


@dataclass(slots=True, eq=False)
class _App:
    """What the app does with models, which it gets as Flower's own strategies send them."""

    layout: Layout
    message: Message
    context: Context
    call_next: ClientAppCallable
    own_loss: OwnLoss

    def measure(self, model: Vector) -> tuple[float, int]:
        """The loss of a model, and the number of samples."""
        return self.own_loss(self._filled(model), self.context)

    def train(self, model: Vector) -> Vector:
        """What training changes of a model."""
        answer = self.call_next(self._filled(model), self.context)
        if answer.has_error():
            raise RuntimeError(f"the app's training answers with an error: {answer.error.reason}")
        records = list(answer.content.array_records.values())
        if len(records) != 1:
            raise ValueError(f"the app's training answers with {len(records)} array records, not 1")
        arrays = {name: np.asarray(array.numpy()) for name, array in records[0].items()}
        with np.errstate(invalid="ignore", over="ignore"):
            change: Vector = self.layout.to_vector(arrays) - model
        return change

    def _filled(self, model: Vector) -> Message:
        arrays = self.layout.to_arrays(model, {})
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        content: dict[str, Any] = {k: v for k, v in self.message.content.items() if k != RECORD}
        filled = Message(RecordDict({_ARRAYS: record, **content}), reply_to=self.message)
        filled.metadata.message_type = self.message.metadata.message_type
        return filled


def _say(sentence: str) -> None:
    log(INFO, "%s", sentence)
