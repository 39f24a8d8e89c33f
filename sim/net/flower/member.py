"""A node of Flower's in a round: who it is, what it insists on, what its app computes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.vectors import Vector
from deltafl.protocol.client import RoundClient
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Adversary, ClientId, TrustedKeys
from deltafl.secagg.identity import identity
from deltafl.secagg.ledger import Ledger
from deltafl.sim.cohort.work import Devices, device_objects
from deltafl.sim.errors import ConfigError
from deltafl.sim.net.device import DeviceSide, Notes
from deltafl.sim.net.flower.messages import Handover
from deltafl.sim.net.frames import Task
from deltafl.sim.net.identities import (
    OwnIdentity,
    ledger_beside,
    read_directory,
)
from deltafl.sim.net.own_work import RoundWork, WorkOf, settings_of
from deltafl.sim.run.algorithms import policy_of
from deltafl.sim.settings.config_io import build_config, read_config_file


class App(Protocol):
    """What the app does with a model."""

    def measure(self, model: Vector) -> tuple[float, int]:
        """The training loss of a model, and the number of samples."""

    def train(self, model: Vector) -> Vector:
        """What training changes of a model."""


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


IDENTITY: Final = "deltafl-identity"
DEVICES: Final = "deltafl-devices"
SETTINGS: Final = "deltafl-settings"
"""What the owner of a node says in `flower-supernode --node-config`: three files."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node in a round.

    Attributes:
        client: its id.
        token: the seed of the identity that it has in this round only; empty if it has its own.
        identity: the file of its own identity; empty with a token.
        devices: the file of the federation's list, its owner's copy; likewise.
        ledger: the file of its ledger.
        policy: what it insists on.
        told: the digest of what it is told of the round by Flower's messages.
    """

    client: ClientId
    token: bytes = field(repr=False)
    identity: str
    devices: str
    ledger: str
    policy: RoundPolicy
    told: bytes

    @classmethod
    def of(
        cls,
        handover: Handover,
        config: Mapping[str, object],
        ledger: Path,
        policy: RoundPolicy,
        told: bytes,
    ) -> "Member":
        """A node, as the server app and its own owner have it.

        A node with an identity of its own takes part in signed sessions only, and insists that the
        server may deviate from the protocol, whatever its policy says otherwise.

        Args:
            handover: what the server app hands over.
            config: what the owner has set in the node's configuration.
            ledger: the ledger of a node without an identity of its own.
            policy: what it insists on if its owner says nothing.
            told: the digest of what it is told by Flower's messages.

        Raises:
            ConfigError: the round is for nodes with identities and this node has none, or the other
                way round; or it is not the device that the server app takes it for.
            UserError: a file of the owner's cannot be read.
        """
        settings = _file(config, SETTINGS)
        if settings:
            policy = policy_of(build_config([read_config_file(Path(settings))]), own=True)
        if handover.token and cls.has_identity(config):
            raise ConfigError(
                "this node has an identity of its own, and takes part in signed sessions only: the "
                "server app has to give PrivateDeltaFL enrolled=Enrolled(…)"
            )
        if handover.token:
            return cls(handover.client, handover.token, "", "", str(ledger), policy, told)
        files = _file(config, IDENTITY), _file(config, DEVICES)
        if not all(files):
            raise ConfigError(
                f"the round is for devices with identities: start the SuperNode with {IDENTITY!r} "
                f"and {DEVICES!r} in its --node-config, the files of its identity (from `deltafl "
                "enrol`) and of the list of devices"
            )
        own = OwnIdentity.read(Path(files[0]))
        if own.client != handover.client:
            raise ConfigError(
                f"the server takes this node for device {handover.client}, and its identity in "
                f"{files[0]} is that of device {own.client}"
            )
        beside = str(ledger_beside(Path(files[0])))
        policy = replace(policy, adversary=Adversary.ACTIVE)
        return cls(own.client, b"", *files, beside, policy, told)

    @staticmethod
    def has_identity(config: Mapping[str, object]) -> bool:
        """Whether a node's owner has given it an identity."""
        return IDENTITY in config

    def work_by(self, app: App) -> WorkOf:
        """The work of the node, round by round.

        Args:
            app: what computes it.
        """

        def work_of(task: Task, machine: RoundClient) -> RoundWork:
            if task.measures:
                raise ConfigError("the app says nothing of test data")
            if task.beside != self.told:
                raise ConfigError("Flower's messages say something else than the session is about")

            def devices(_levels: int) -> Devices:
                first = np.frombuffer(machine.models[0], dtype="<f4")
                return device_objects([_AppDevice(self.client, app.measure(first)[1], app)])

            return RoundWork(self.client, settings_of(task), task, machine, devices)

        return work_of

    def side(self, ledger: Ledger, work_of: WorkOf, notes: Notes) -> DeviceSide:
        """The device's side of its connection, or of its messages.

        Args:
            ledger: its ledger, open.
            work_of: what it computes.
            notes: who is told what happens.

        Raises:
            UserError: its identity or its list cannot be read, or the list has not its identity.
        """
        if self.token:
            own = OwnIdentity(self.client, identity(self.token))
            directory = TrustedKeys({own.client: own.identity.public})
        else:
            own, directory = (
                OwnIdentity.read(Path(self.identity)),
                read_directory(Path(self.devices)),
            )
            if not directory.accepts(own.client, own.identity.public):
                raise ConfigError(
                    f"{self.devices} does not list the identity in {self.identity}: have the line "
                    f"'{own.entry}' added to it"
                )
        # whatever the policy says: under Flower, the server begins each round anew
        policy = replace(self.policy, max_rounds_per_model=1)
        return DeviceSide(own, directory, policy, ledger, work_of, notes)

    def to_json(self) -> bytes:
        """All of it, for another process of the node."""
        table = {one.name: getattr(self, one.name) for one in fields(self)}
        policy = {one.name: _plain(getattr(self.policy, one.name)) for one in fields(self.policy)}
        secret = {"token": self.token.hex(), "told": self.told.hex()}
        return json.dumps({**table, **secret, "policy": policy}).encode()

    @classmethod
    def of_json(cls, data: bytes) -> "Member":
        """What `to_json` has written; from a process of the node itself."""
        table = cast("dict[str, Any]", json.loads(data))
        usual, policy = RoundPolicy(), table["policy"]
        limits: dict[str, Any] = {
            name: Fraction(value) if isinstance(getattr(usual, name), Fraction) else value
            for name, value in policy.items()
        }
        binary = {name: bytes.fromhex(table[name]) for name in ("token", "told")}
        return cls(**{**table, **binary, "policy": RoundPolicy(**limits)})


def _file(config: Mapping[str, object], name: str) -> str:
    found = config.get(name, "")
    if not isinstance(found, str):
        raise ConfigError(f"{name!r} of the node's configuration is no path: {found!r}")
    return found


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Fraction) else value
