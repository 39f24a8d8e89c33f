"""Secure rounds by the complete real protocol, over a network where devices drop out."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from deltafl.fl.cohort import SecureRoundResult
from deltafl.fl.vectors import Vector
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.levels import Levels
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.round import LostSearch
from deltafl.protocol.server import RoundServer
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import ClientId, Directory, Enrolment, SessionParams
from deltafl.secagg.primitives import Primitives
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.session import NoObserver, Observer, Reply, drive
from deltafl.secagg.stages import Vanishing
from deltafl.sim.cohort.shared import simulated
from deltafl.sim.cohort.work import CohortWork
from deltafl.sim.record.truth import Told

NoiseSource: TypeAlias = Callable[[ClientId], Randomness]
"""Where each device takes the noise of its answers from, if its round asks for noise."""


def system_noise(client_id: ClientId) -> Randomness:
    """The operating system's randomness, for every device."""
    del client_id
    return system_randomness


@dataclass(frozen=True, slots=True)
class MaskedRounds:
    """Rounds by the real protocol.

    Attributes:
        sessions: How sessions are set up.
        randomness: Source of every secret.
        observer: Watches what the server sends and receives.
        enrolment: The devices' identities, for signed sessions.
        noise: Source of each device's noise.
        primitives: What the parties of a session compute with, called for each session.
    """

    sessions: Sessions
    randomness: Randomness = system_randomness
    observer: Observer = field(default_factory=NoObserver)
    enrolment: Enrolment = field(default_factory=Enrolment)
    noise: NoiseSource = system_noise
    primitives: Callable[[], Primitives] = simulated

    def play(
        self,
        levels: Levels,
        work: CohortWork,
        *,
        graph_seed: bytes,
        vanishing: Vanishing,
        lost: Sequence[LostSearch] = (),
    ) -> SecureRoundResult:
        """Play a round; see `deltafl.sim.cohort.simulated.SecureRounds`."""
        ids, own = [ClientId(device) for device in work.weights], self.primitives()
        models = as_bytes(work.models)
        params = self.sessions.params_of_levels(levels, models, graph_seed)
        server = round_server(
            levels, models, params, ids, self.enrolment, own, self.sessions.policy, lost
        )
        clients = {
            i: RoundClient(
                i,
                self.sessions.policy,
                self._source(i, params, work.told),
                self.enrolment.credentials_for(i, params),
                self.noise(i),
                primitives=own,
                ledger=self.enrolment.ledger(i),
            )
            for i in ids
        }
        devices = WorkingDevices(clients, work, partial(self._at_work, server))
        bytes_up = 0
        for sent in drive(server, server.start(), devices.answer, vanishing, self.observer):
            bytes_up += sent
            if server.revealed is not None:
                self.observer.revealed(server.revealed)
        if server.outcomes is None:
            raise RuntimeError("the round stopped without an outcome: this is a bug")
        return SecureRoundResult(server.outcomes, bytes_up / len(ids))

    def _at_work(self, server: RoundServer, client: ClientId) -> AbstractContextManager[None]:
        return self.observer.working(client, server.step)

    def _source(self, device: ClientId, params: SessionParams, told: Told | None) -> Randomness:
        """Where a device's secrets come from; they are noted if anything is."""
        return self.randomness if told is None else told.note_draws(self.randomness, params, device)


class WorkingDevices:
    """The devices' machines, and the work that these ask for.

    Where a device has to work or wait, so have all others, whatever their data.

    Args:
        clients: the machines.
        work: what the devices do.
        at_work: a context for what a device does.
    """

    def __init__(
        self,
        clients: Mapping[ClientId, RoundClient],
        work: CohortWork,
        at_work: Callable[[ClientId], AbstractContextManager[None]],
    ) -> None:
        self._clients = clients
        self._work = work
        self._at_work = at_work

    def answer(self, client: ClientId, data: bytes) -> Reply:
        """A device's answer, or what gives it once the work is done that begins now."""
        machine, work = self._clients[client], self._work
        task = machine.receive(data)
        if not isinstance(task, LocalWork):
            return task
        if task is LocalWork.MEASURE_LOSS:
            work.begin_losses(client, range(len(work.models)))
            return partial(self._measured, client)
        if task is LocalWork.TRAIN:
            work.begin_update(client, machine.level)
            return partial(self._trained, client)
        return partial(self._waited, client)

    def _measured(self, client: ClientId) -> bytes | None:
        losses = [self._work.loss(client, level) for level in range(len(self._work.models))]
        weight = self._work.weight(client)
        with self._at_work(client):
            return self._clients[client].supply_losses(losses, weight)

    def _trained(self, client: ClientId) -> bytes | None:
        machine = self._clients[client]
        update = self._work.update(client, machine.level)
        with self._at_work(client):
            return machine.supply_update(update)

    def _waited(self, client: ClientId) -> bytes | None:
        with self._at_work(client):
            return self._clients[client].supply_zeros()


def as_bytes(models: Sequence[Vector]) -> bytes:
    """The models of all levels, as devices get them."""
    return b"".join(model.astype("<f4").tobytes() for model in models)


def round_server(
    levels: Levels,
    models: bytes,
    params: SessionParams,
    cohort: Sequence[ClientId],
    directory: Directory,
    primitives: Primitives,
    policy: RoundPolicy,
    lost: Sequence[LostSearch] = (),
) -> RoundServer:
    """The server of a round with devices of one policy, which it knows.

    Args:
        levels: the round's.
        models: `as_bytes` of their models.
        params: of the session.
        cohort: its devices.
        directory: their identities.
        primitives: what the server computes with.
        policy: what the devices insist on.
        lost: what earlier rounds over the models have revealed.
    """
    return RoundServer(
        levels,
        models,
        params,
        cohort,
        directory,
        primitives,
        keeps_cohort=policy.expects_active,
        lost=lost,
    )
