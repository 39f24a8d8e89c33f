"""A device's side inside Flower: a mod that lets an ordinary client app take part."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from logging import ERROR, INFO, WARNING
from pathlib import Path
from threading import Event
from typing import Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import log

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.protocol.client import RoundClient
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Adversary, ClientId, Credentials, FirstUse, LedgerError, TrustedKeys
from deltafl.secagg.identity import SEED_SIZE, identity
from deltafl.secagg.ledger import SqliteLedger
from deltafl.sim.cohort.work import Devices, device_objects
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.net.device import DeviceSide, Notes
from deltafl.sim.net.dialling import Server, take_part
from deltafl.sim.net.flower.messages import RECORD, Handover, Told
from deltafl.sim.net.frames import Task
from deltafl.sim.net.identities import OwnIdentity, ledger_beside, read_listed
from deltafl.sim.net.own_work import RoundWork, settings_of
from deltafl.sim.run.algorithms import policy_of
from deltafl.sim.settings.config_io import build_config, read_config_file

OwnLoss = Callable[[Message, Context], tuple[float, int]]
"""A device's mean training loss of the model in a message, and its number of samples."""

ClientAppCallable = Callable[[Message, Context], Message]

_ARRAYS: Final = "arrays"
_CONFIG: Final = "config"
_PATIENCE_S: Final = 60.0  # without a connection: the round is over, or its server

_IDENTITY: Final = "deltafl-identity"
_DEVICES: Final = "deltafl-devices"
_SETTINGS: Final = "deltafl-settings"
"""What the owner of a node says in `flower-supernode --node-config`: three files."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node in a round.

    Attributes:
        own: who it is to the server.
        listed: the federation's list, its owner's copy; of a node without one, itself.
        ledger: the file of its ledger.
        policy: what it insists on.
    """

    own: OwnIdentity
    listed: TrustedKeys
    ledger: Path
    policy: RoundPolicy

    @classmethod
    def of(
        cls, handover: Handover, config: Mapping[str, object], ledger: Path, policy: RoundPolicy
    ) -> "Member":
        """A node, as the server app and its own owner have it.

        A node with an identity of its own insists on that of all others, and that the server may
        deviate from the protocol, whatever its policy says otherwise. Each node answers
        for a model once: under Flower, the server begins each round anew.

        Args:
            handover: what the server app hands over.
            config: what the owner has set in the node's configuration.
            ledger: the ledger of a node without an identity of its own.
            policy: what it insists on if its owner says nothing.

        Raises:
            ConfigError: the round is for nodes with identities and this node has none, or the other
                way round; or it is not the device that the server app takes it for.
            UserError: a file of the owner's cannot be read.
        """
        settings = _file(config, _SETTINGS)
        if settings:
            policy = policy_of(build_config([read_config_file(Path(settings))]), own=True)
        policy = replace(policy, max_rounds_per_model=1)
        if handover.token and cls.has_identity(config):
            raise ConfigError(
                "this node has an identity of its own, and takes part with listed nodes only: the "
                "server app has to give PrivateDeltaFL enrolled=Enrolled(…)"
            )
        if handover.token:
            own = OwnIdentity(handover.client, identity(handover.token))
            return cls(own, TrustedKeys({own.client: own.identity.public}), ledger, policy)
        files = _file(config, _IDENTITY), _file(config, _DEVICES)
        if not all(files):
            raise ConfigError(
                "the round is for devices with identities: say in the SuperNode's --node-config "
                f"which files have its identity ({_IDENTITY!r}, from `deltafl enrol`) and the list "
                f"of devices ({_DEVICES!r})"
            )
        path = Path(files[0])
        own, listed = read_listed(path, Path(files[1]))
        if own.client != handover.client:
            told = f"the server takes this node for device {handover.client}"
            raise ConfigError(f"{told}, and its identity in {path} is that of device {own.client}")
        policy = replace(policy, adversary=Adversary.ACTIVE)
        return cls(own, listed, ledger_beside(path), policy)

    @staticmethod
    def has_identity(config: Mapping[str, object]) -> bool:
        """Whether a node's owner has given it an identity."""
        return _IDENTITY in config


def _file(config: Mapping[str, object], name: str) -> str:
    found = config.get(name, "")
    if not isinstance(found, str):
        raise ConfigError(f"{name!r} of the node's configuration is no path: {found!r}")
    return found


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
            configuration (`_SETTINGS`).
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
        member = Member.of(handover, context.node_config, ledger, self._policy)
        told = _told(msg, context, handover)
        _take_part(
            handover, member, _App(member.own.client, told, msg, context, call_next, self._loss)
        )
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=msg)


def _told(msg: Message, context: Context, handover: Handover) -> Told:
    """What the app will be handed, sorted: the digest says nothing of orders."""
    config = dict(sorted(msg.content.config_records.get(_CONFIG, ConfigRecord()).items()))
    run = {} if handover.token else dict(context.run_config)
    metadata = msg.metadata
    return Told(handover.layout, metadata.message_type, metadata.group_id, config, run)


class _NewNode(DeviceSide):
    """A node without an identity of its own: its token opens the door, and no session knows it."""

    def credentials(self) -> Credentials:
        """An identity for this round, and the first one that each other node shows."""
        return Credentials(identity(self.randomness(SEED_SIZE)), FirstUse())


def _take_part(handover: Handover, member: Member, app: "_App") -> None:
    """Take part in a round until it is over."""
    stop = Event()
    notes = replace(Notes.spoken(_warn), over=lambda _done: stop.set())
    with SqliteLedger(member.ledger) as ledger, tempfile.TemporaryDirectory() as folder:
        kind = _NewNode if handover.token else DeviceSide
        side = kind(member.own, member.listed, member.policy, ledger, app.work_of, notes)
        trusted = None
        if handover.authority:
            trusted = str(Path(folder) / "authority.pem")
            Path(trusted).write_text(handover.authority, encoding="ascii")
        server = Server(handover.url, trusted)
        asyncio.run(take_part(server, side, _say, stop, patience=_PATIENCE_S))


@dataclass(frozen=True, slots=True, eq=False)
class _App:
    """The app as a device; a `Device`. It gets models as Flower's own strategies send them.

    Attributes:
        id: in the round.
        told: what it is handed beside the model.
        message: the node's.
        context: likewise.
        call_next: trains.
        own_loss: measures.
        weight: its number of samples, once a round has begun.
    """

    id: ClientId
    told: Told
    message: Message
    context: Context
    call_next: ClientAppCallable
    own_loss: OwnLoss
    weight: int = field(default=0, repr=False)

    def work_of(self, task: Task, machine: RoundClient) -> RoundWork:
        """The work of a round; see `own_work.WorkOf`."""
        if task.measures:
            raise ConfigError("the app says nothing of test data")
        if task.beside != self.told.digest():
            raise ConfigError("Flower's messages say something else than the session is about")

        def devices(_levels: int) -> Devices:
            first = np.frombuffer(machine.models[0], dtype="<f4")
            weight = self._measured(first)[1]
            return device_objects([replace(self, weight=weight)])

        return RoundWork(self.id, settings_of(task), task, machine, devices)

    def loss(self, model: Vector) -> float:
        """F_k, by the app."""
        return self._measured(model)[0]

    def update(self, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
        """Δ_k, by the app."""
        if objective != PLAIN:
            raise ValueError("the algorithm has an objective of its own, which the app has not")
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

    def _measured(self, model: Vector) -> tuple[float, int]:
        """The loss of a model, and the number of samples."""
        return self.own_loss(self._filled(model), self.context)

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
