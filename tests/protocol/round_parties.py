"""A round driven by hand: the server's machine, the devices', and every envelope between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import lenient
import numpy as np
import pytest
from flat_configs import round_of

from deltafl.fl.cohort import SecureRoundResult
from deltafl.protocol import wire
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Ask
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.round import LostSearch, RoundOutcome
from deltafl.protocol.server import RoundServer
from deltafl.protocol.states import RoundState
from deltafl.secagg import Enrolment, PeerError, SessionParams, Stage, Step
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.cohort.work import CohortWork, device_objects

POLICY = RoundPolicy(**lenient.ROUNDS, min_cohort=3)
"""A policy that small test rounds satisfy."""

MODEL = b"a small model..."

Tamper = Callable[[int, bytes], bytes]
"""What a lying server makes of an envelope, by the device that is to get it."""


@dataclass(frozen=True)
class Played:
    """A round of a single level."""

    outcome: RoundOutcome
    bytes_up: float | None = None


def play_levels(
    rounds, levels, models, devices, *, vanishing=None, graph_seed=b"g" * 32, lost=()
) -> SecureRoundResult:
    """Play rounds that devices, which are objects, take part in; models are bytes."""
    vectors = [np.frombuffer(model, dtype="<f4") for model in models]
    thetas, bound = [config.theta for config in levels.rounds], levels.common.search.grid.bound
    work = CohortWork(device_objects(devices), vectors, thetas, bound)
    return rounds.play(levels, work, graph_seed=graph_seed, vanishing=vanishing or {}, lost=lost)


def play_single(rounds, config, model, devices, **others) -> Played:
    """Play a round of a single level; see `play_levels`."""
    result = play_levels(rounds, Levels((config,)), (model,), devices, **others)
    return Played(result.outcomes[0], result.bytes_up)


def make_config(**changes) -> RoundConfig:
    """A small round of one query; seven envelopes in all, nine where its session is signed.

    Its only query is in a tolerant slot, because no least number of devices is asked for.
    """
    fields = {
        "round_index": 3,
        "cohort_size": 3,
        "theta": Fraction(1, 2),
        "method": "mm",
        "num_pivots": None,
        "max_queries": 1,
        "grid": LossGrid(resolution_bits=8, bound=8),
        "max_weight": 500,
        "update_length": 4,
        "update_clip": 4.0,
        "update_resolution_bits": 12,
    }
    return round_of(**(fields | changes))


def make_params(config, model=MODEL, **changes) -> SessionParams:
    """The session of a round, on the complete graph; signed where its search is verified."""
    fields = {
        "slots": config.slots(),
        "num_invited": config.cohort_size,
        "degree": config.cohort_size - 1,
        "threshold": 2,
        "min_cohort": 3,
        "graph_seed": bytes(32),
        "context": Levels((config,)).context(model),
        "signed": config.search.verified,
    }
    return SessionParams(**(fields | changes))


@dataclass(frozen=True, eq=False)
class Device:
    """What a simulated device answers with."""

    loss: float
    weight: int
    update: np.ndarray

    def measured(self, config: RoundConfig) -> DeviceRound:
        return DeviceRound.measured(config, self.loss, self.weight)


def make_devices(config, seed=0) -> dict[int, Device]:
    """Devices by id; the losses, 0.5, 1.5, …, rise with the id."""
    generator = np.random.default_rng(seed)
    return {
        3 + 7 * rank: Device(
            0.5 + rank,
            int(generator.integers(1, config.update.max_weight, endpoint=True)),
            generator.uniform(-1, 1, config.update_length).astype(np.float32),
        )
        for rank in range(config.cohort_size)
    }


@dataclass(frozen=True)
class Point:
    """How far a device has come: envelopes that it took, and whether it did the last one's task."""

    num_taken: int
    task_done: bool = True


class RoundParties:
    """A round of honest parties, repeatable; whoever is to lie is tampered with."""

    def __init__(
        self,
        config=None,
        *,
        devices=None,
        seed=0,
        signed=None,
        policy=POLICY,
        model=MODEL,
        enrolment=None,
    ):
        self.config = make_config() if config is None else config
        self.devices = make_devices(self.config) if devices is None else devices
        signed = self.config.search.verified if signed is None else signed
        self.params = params = make_params(self.config, model, signed=signed)
        if enrolment is None:
            enrolment = Enrolment(SeededRandomness(bytes([seed]) * 32))
        self.enrolment = enrolment
        self.server = RoundServer(
            Levels((self.config,)),
            model,
            params,
            self.devices,
            directory=enrolment if signed else None,
        )
        self.clients = {
            i: RoundClient(
                i,
                policy,
                SeededRandomness(bytes([seed, i]) * 16),
                enrolment.credentials_for(i, params),
                ledger=enrolment.ledger(i),
            )
            for i in self.devices
        }
        self.victim = max(self.devices)
        self.taken: list[bytes] = []  # by the victim
        self.sent: list[bytes] = []
        self.log: list[bytes] = []

    @property
    def machine(self) -> RoundClient:
        """The machine of the device under test; its loss is the largest."""
        return self.clients[self.victim]

    def do(self, client: int, reply: bytes | LocalWork | None) -> bytes | None:
        """Do the task that a device was given, if it was."""
        device = self.devices[client]
        match reply:
            case LocalWork.MEASURE_LOSS:
                return self.clients[client].supply_loss(device.loss, device.weight)
            case LocalWork.TRAIN:
                return self.clients[client].supply_update(device.update)
            case LocalWork.WAIT:
                return self.clients[client].supply_zeros()
            case _:
                return reply

    def answer(self, client: int, data: bytes) -> bytes | None:
        """Let a device take an envelope, with all that follows from it."""
        return self.do(client, self.give(client, data))

    def give(self, client: int, data: bytes) -> bytes | LocalWork | None:
        """Let a device take an envelope, and leave its task undone."""
        if client == self.victim:
            self.taken.append(data)
        return self.clients[client].receive(data)

    def collect(self, replies: Mapping[int, bytes | None]) -> Mapping[int, bytes]:
        """Give the server the devices' messages and close the round trip."""
        for client, data in replies.items():
            if data is not None:
                self.sent.append(data)
                self.server.receive(client, data)
        return self._logged(self.server.close_round())

    def exchange(self, outgoing, tamper: Tamper | None = None) -> Mapping[int, bytes]:
        tamper = tamper or (lambda _, data: data)
        return self.collect({c: self.answer(c, tamper(c, data)) for c, data in outgoing.items()})

    def bring(self, point: Point) -> bytes:
        """Play until the victim stands at the point; the envelope that it took last or gets next.

        Where its task is not done, the others have answered and the round trip is open.
        """
        outgoing = self._logged(self.server.start())
        for _ in range(point.num_taken - (not point.task_done)):
            outgoing = self.exchange(outgoing)
        if not point.task_done:
            self.give(self.victim, outgoing[self.victim])
            for client in outgoing:
                if client != self.victim:
                    self.server.receive(client, self.answer(client, outgoing[client]))
        self.pending = outgoing
        return outgoing.get(self.victim, b"")

    def until_asked(self, number: int = 1) -> Ask:
        """Play until the victim is to get its n-th question; the envelope with it."""
        outgoing = self._logged(self.server.start())
        while True:
            envelope = wire.decode(outgoing[self.victim])
            number -= isinstance(envelope, Ask)
            if not number:
                self.pending = outgoing
                return envelope
            outgoing = self.exchange(outgoing)

    def go_on(self, reply: bytes | LocalWork | None = None) -> RoundOutcome:
        """Finish the round from where `bring` left it.

        Args:
            reply: Of the victim, where its task was not done.
        """
        if reply is None:
            return self.play(self.pending)
        return self.play(self.collect({self.victim: reply}))

    def play(self, outgoing=None, tamper: Tamper | None = None) -> RoundOutcome:
        """Play on to the end."""
        outgoing = self._logged(self.server.start()) if outgoing is None else outgoing
        while outgoing:
            outgoing = self.exchange(outgoing, tamper)
        return self.server.outcomes[0]

    def _logged(self, outgoing):
        self.log += outgoing.values()
        return outgoing


def assert_fails(machine, data, reason, detail=None) -> None:
    """A device refuses an envelope under a name, and its round is over."""
    with pytest.raises(PeerError, match=detail) as refused:
        machine.receive(data)
    assert refused.value.reason is reason
    assert machine.state is RoundState.FAILED


def comparable(outcome: RoundOutcome) -> tuple[object, ...]:
    """All of an outcome, as something that can be compared."""
    update = None if outcome.update is None else outcome.update.tobytes()
    numbers = (outcome.kept_weight, outcome.kept_devices, outcome.train_loss, outcome.clipped)
    ends = (outcome.drops, outcome.aborted, shown(outcome.lost))
    return (outcome.search, outcome.secure_sums, update, numbers, outcome.longer, *ends)


def shown(lost: LostSearch | None) -> tuple[object, ...] | None:
    """All that a lost search has revealed, as something that can be compared."""
    return None if lost is None else (lost.devices, [total.tolist() for total in lost.sums])


def steps_of(levels: Levels) -> list[Step]:
    """Every step of a session of these levels."""
    set_up = [Step(stage) for stage in (Stage.ADVERTISE, Stage.SHARE, Stage.RECEIPT)]
    in_slots = (Stage.LIST, Stage.MASK, Stage.CONFIRM, Stage.UNMASK)
    return set_up + [Step(s, slot) for slot in range(len(levels.slots())) for s in in_slots]
