"""Secure rounds by the complete real protocol, over a network where devices drop out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from deltafl.fl.cohort import SecureRoundResult
from deltafl.fl.vectors import Vector
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import LostSearch
from deltafl.protocol.server import RoundServer
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import ClientId, Enrolment, SessionParams
from deltafl.secagg.messages import Outgoing
from deltafl.secagg.prg import SEED_SIZE
from deltafl.secagg.primitives import Primitives
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.session import NoObserver, Observer, Trip
from deltafl.secagg.states import Vanishing
from deltafl.sim.cohort.shared import simulated
from deltafl.sim.cohort.work import CohortWork
from deltafl.sim.record.truth import Told, sources_of

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
        enrolment: The devices' identities.
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
        keeps = self.sessions.policy.expects_active
        server = RoundServer(
            levels, models, params, ids, self.enrolment, own, keeps_cohort=keeps, lost=lost
        )
        sources = {i: self._sources(i, params, work.told) for i in ids}
        clients = {
            i: RoundClient(
                i,
                self.sessions.policy,
                self.enrolment.credentials(i),
                *sources[i],
                primitives=own,
                ledger=self.enrolment.ledger(i),
            )
            for i in ids
        }
        devices, outgoing, received = WorkingDevices(clients, work), server.start(), 0
        while outgoing:
            trip = Trip(server, vanishing, self.observer)
            devices.answer(trip, outgoing)
            outgoing = trip.close()
            received += trip.received
            if server.revealed is not None:
                self.observer.revealed(server.revealed)
        if server.outcomes is None:
            raise RuntimeError("the round stopped without an outcome: this is a bug")
        return SecureRoundResult(server.outcomes, received / len(ids))

    def _sources(
        self, device: ClientId, params: SessionParams, told: Told | None
    ) -> tuple[Randomness, Randomness]:
        """Where a device's secrets and its noise come from: one seed, which is noted, if any is."""
        if told is None:
            return self.randomness, self.noise(device)
        seed = self.randomness(SEED_SIZE)
        told.seeds[params.tag, device] = seed, self.enrolment.seed(device)
        return sources_of(seed)


class WorkingDevices:
    """The devices' machines, and the work that these ask for.

    Args:
        clients: the machines.
        work: what the devices do.
    """

    def __init__(self, clients: Mapping[ClientId, RoundClient], work: CohortWork) -> None:
        self._clients = clients
        self._work = work

    def answer(self, trip: Trip, outgoing: Outgoing) -> None:
        """Answer the server's messages.

        All devices begin their work before the first is waited for. Where a device has to work or
        wait, so have all others, whatever their data. Answers then arrive once all devices have a
        message, in the order of the messages, which therefore does not tell who trains.
        """
        waiting: list[tuple[ClientId, bytes | LocalWork | None]] = []
        for client, data in trip.deliver(outgoing):
            with trip.at_work(client):
                reply = self._clients[client].receive(data)
            if isinstance(reply, LocalWork):
                self._begin(client, reply)
            if waiting or isinstance(reply, LocalWork):
                waiting.append((client, reply))
            else:
                trip.take(client, reply)
        for client, reply in waiting:
            made = self._finish(trip, client, reply) if isinstance(reply, LocalWork) else reply
            trip.take(client, made)

    def _begin(self, client: ClientId, task: LocalWork) -> None:
        if task is LocalWork.MEASURE_LOSS:
            self._work.begin_losses(client, range(len(self._work.models)))
        elif task is LocalWork.TRAIN:
            self._work.begin_update(client, self._clients[client].level)

    def _finish(self, trip: Trip, client: ClientId, task: LocalWork) -> bytes:
        machine, work = self._clients[client], self._work
        if task is LocalWork.MEASURE_LOSS:
            losses = [work.loss(client, level) for level in range(len(work.models))]
            weight = work.weight(client)
            if work.told is not None:
                for level, loss in enumerate(losses):
                    work.told.measured[client, level] = loss, weight
            with trip.at_work(client):
                return machine.supply_losses(losses, weight)
        update = work.update(client, machine.level) if task is LocalWork.TRAIN else None
        if work.told is not None and update is not None:
            work.told.updates[client, machine.level] = update
        with trip.at_work(client):
            return machine.supply_zeros() if update is None else machine.supply_update(update)


def as_bytes(models: Sequence[Vector]) -> bytes:
    """The models of all levels, as devices get them."""
    return b"".join(model.astype("<f4").tobytes() for model in models)
