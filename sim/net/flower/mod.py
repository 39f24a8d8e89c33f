"""A device's side inside Flower: a mod that lets an ordinary client app take part."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from logging import ERROR, INFO, WARNING
from pathlib import Path
from threading import Event
from typing import Final

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common import log

from deltafl.fl.vectors import Vector
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import LedgerError
from deltafl.secagg.ledger import SqliteLedger
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.net.device import Notes
from deltafl.sim.net.dialling import MAX_FRAME, Server, take_part
from deltafl.sim.net.flower import resident
from deltafl.sim.net.flower.member import App, Member
from deltafl.sim.net.flower.messages import RECORD, Handover, Told, frames_of, record_of

OwnLoss = Callable[[Message, Context], tuple[float, int]]
"""A device's mean training loss of the model in a message, and its number of samples."""

ClientAppCallable = Callable[[Message, Context], Message]

_ARRAYS: Final = "arrays"
_CONFIG: Final = "config"
_RESIDENT: Final = "resident"  # in the node's state: where its resident process can be reached
_PATIENCE_S: Final = 60.0  # without a connection: the round is over, or its server


class DeltaFLMod:
    """Takes part in rounds of `PrivateDeltaFL`.

    It lets other messages pass, unless the node's owner has given it an identity: then the server
    is not trusted, and an app that answered it by itself would show what the node has.

    The app's own function for training is called where the device passes the filter, and also
    where it does not; the result is then forgotten. It gets the message that Flower's strategies
    send, and answers as it always does.

    Args:
        loss: the device's training loss of a model.
        policy: what the device insists on, unless its owner says it in the SuperNode's
            configuration (`member.SETTINGS`).
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
        if RECORD not in msg.content and not Member.has_identity(context.node_config):
            return call_next(msg, context)
        try:
            return self._answered(msg, context, call_next)
        except Exception as error:  # noqa: BLE001 (Flower sends what is raised to the server)
            is_usual = isinstance(error, (UserError, LedgerError, ValueError))
            log(ERROR, "this node cannot take part: %s", error, exc_info=not is_usual)
            raise RuntimeError("the node cannot take part, and its log says why") from None

    def _answered(self, msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if RECORD not in msg.content:
            raise ConfigError("it has an identity, and answers to rounds of PrivateDeltaFL only")
        handover = Handover.of_record(msg.content[RECORD])
        context.run_config = dict(sorted(context.run_config.items()))
        ledger = self._folder / f"node-{context.node_id}.ledger"
        self._folder.mkdir(parents=True, exist_ok=True)
        app = _App(_told(msg, context, handover), msg, context, call_next, self._loss)
        digest = app.told.digest()
        member = Member.of(handover, context.node_config, ledger, self._policy, digest)
        if not handover.url:
            return _by_message(msg, context, member, app)
        _by_connection(handover, member, app)
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=msg)


def _told(msg: Message, context: Context, handover: Handover) -> Told:
    """What the app will be handed, sorted: the digest says nothing of orders."""
    config = dict(sorted(msg.content.config_records.get(_CONFIG, ConfigRecord()).items()))
    run = {} if handover.token else dict(context.run_config)
    metadata = msg.metadata
    return Told(handover.layout, metadata.message_type, metadata.group_id, config, run)


def _by_connection(handover: Handover, member: Member, app: App) -> None:
    """Take part in a round until it is over."""
    stop = Event()

    notes = replace(Notes.spoken(_warn), over=lambda _done: stop.set())
    with SqliteLedger(member.ledger) as ledger, tempfile.TemporaryDirectory() as folder:
        side = member.side(ledger, member.work_by(app), notes)
        trusted = None
        if handover.authority:
            trusted = str(Path(folder) / "authority.pem")
            Path(trusted).write_text(handover.authority, encoding="ascii")
        server = Server(handover.url, trusted)
        asyncio.run(take_part(server, side, _say, stop, patience=_PATIENCE_S))


def _by_message(msg: Message, context: Context, member: Member, app: App) -> Message:
    """Take one step of a round; the node's resident process knows the rest of it."""
    frames = frames_of(msg.content, most=resident.MOST_FRAMES, longest=MAX_FRAME)
    known = context.state.config_records.get(RECORD, ConfigRecord())
    folder = resident.found_or_started(str(known.get(_RESIDENT, "")))
    context.state[RECORD] = ConfigRecord({_RESIDENT: folder})
    replies = resident.exchange(folder, member, frames, app, _say)
    return Message(RecordDict({**record_of(replies)}), reply_to=msg)


@dataclass(slots=True, eq=False)
class _App:
    """What the app does with models, which it gets as Flower's own strategies send them."""

    told: Told
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
            change: Vector = self.told.layout.to_vector(arrays) - model
        return change

    def _filled(self, model: Vector) -> Message:
        arrays = self.told.layout.to_arrays(model, {})
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        # nothing else of the message: the session is not about it
        content = RecordDict({_ARRAYS: record, _CONFIG: ConfigRecord(dict(self.told.config))})
        filled = Message(content, reply_to=self.message)
        filled.metadata.message_type = self.message.metadata.message_type
        return filled


def _warn(sentence: str) -> None:
    log(WARNING, "%s", sentence)


def _say(sentence: str) -> None:
    log(INFO, "%s", sentence)
