"""Rounds in one process, for simulation and test: two backends, one answer.

`MaskedSum` runs the real machines, every byte of them; `IdealSum` lets a trusted party add up the
same contributions. Both lose the same devices and give bit for bit the same outcome. They refuse in
the same cases but one: the ideal backend asks a device for its loss or update only when it is
summed, so that it does not meet those of a device that vanishes before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias, runtime_checkable

from deltafl.protocol.client import RoundClient, Task
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.device import DeviceRound, Update
from deltafl.protocol.levels import LevelRounds, Levels
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import RoundOutcome
from deltafl.protocol.selection import Threshold
from deltafl.protocol.server import LevelsServer
from deltafl.secagg import (
    Adversary,
    ClientId,
    DevicePolicy,
    Enrolment,
    GraphKind,
    IdealSession,
    PeerError,
    Refusal,
    SessionAborted,
    SessionParams,
    ThreatModel,
    UsageError,
)
from deltafl.secagg.primitives import Primitives
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.ring import Vector
from deltafl.secagg.session import Answer, NoObserver, Observer, run_round
from deltafl.secagg.simulated import simulated
from deltafl.secagg.stages import Vanishing
from deltafl.secagg.threat import at_most, sparse_parameters

# Below, the complete graph is cheap, and statements about shares of the cohort mean little.
_LARGE_COHORT: Final = 40

NoiseSource: TypeAlias = Callable[[ClientId], Randomness]
"""Where each device takes the noise of its answers from, if its round asks for noise."""


def system_noise(client_id: ClientId) -> Randomness:
    """The operating system's randomness, for every device."""
    del client_id
    return system_randomness


class RoundDevice(Protocol):
    """A simulated device: what it can tell about a model that it is shown."""

    @property
    def id(self) -> int:
        """Who it is, in [0, 2^32)."""

    @property
    def weight(self) -> int:
        """Its weight n_k ≥ 0."""

    def loss(self, model: bytes) -> float:
        """Its loss F_k under the model."""

    def update(self, model: bytes) -> Update:
        """Δ_k = w_k − w after local training, float32 of shape (d,)."""


@runtime_checkable
class WorksAhead(Protocol):
    """A simulated device that can be told what it will be asked, before the answer is needed.

    What many devices are told together may be worked on together, or meanwhile.
    """

    def expect_loss(self, model: bytes) -> None:
        """`loss` of this model will be asked for."""

    def expect_update(self, model: bytes) -> None:
        """`update` of this model will be asked for."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """How the sessions of the rounds are set up, the same for both backends.

    Attributes:
        policy: What every device insists on.
        threat: What a session must withstand.
        graph: Complete or sparse; None takes the sparse one where it saves work.
        min_cohort: Smallest cohort to sum over.
        signed: Whether devices have identities and agree on survivors; against an active adversary
            they do in any case.
    """

    policy: DevicePolicy = field(default_factory=DevicePolicy)
    threat: ThreatModel = field(default_factory=ThreatModel)
    graph: GraphKind | None = None
    min_cohort: int = 5
    signed: bool = False

    def params(self, config: RoundConfig, model: bytes, graph_seed: bytes) -> SessionParams:
        """The parameters of one round's session; see `params_of_levels`."""
        return self.params_of_levels(Levels((config,)), model, graph_seed)

    def params_of_levels(self, levels: Levels, models: bytes, graph_seed: bytes) -> SessionParams:
        """The parameters of the session of one or more levels.

        Args:
            levels: Their rounds.
            models: Their models, joined in order.
            graph_seed: 32 public bytes, unique to the session.

        Raises:
            UsageError: no parameters withstand the threat with so small a cohort.
            PeerError: they fall short of the devices' policy, or of the noise that is promised.
        """
        config = levels.common
        params = SessionParams.for_threat(
            config.cohort_size,
            levels.slots(),
            threat=self.threat,
            graph=self.graph or preferred_graph(config.cohort_size, self.threat),
            min_cohort=self.min_cohort,
            signed=self.signed,
            graph_seed=graph_seed,
            context=levels.context(models),
        )
        self.policy.check(params)
        if config.noise is not None:
            config.noise.check(params, self.policy, config.min_search_cohort)
        return params

    def num_noisy(self, cohort_size: int, min_search_cohort: int) -> int:
        """How many devices add noise to a search, at the least: h of `deltafl.protocol.noise`.

        Those that are in every sum, less those that may collude; less than 1 if that is nobody.

        Args:
            cohort_size: Devices invited.
            min_search_cohort: Fewest devices to search over.
        """
        colluding = max(self.threat.colluding_rate, self.policy.colluding_rate)
        return max(self.min_cohort, min_search_cohort) - at_most(colluding, cohort_size)


@dataclass(frozen=True, slots=True, eq=False)
class RoundResult:
    """A simulated round.

    Attributes:
        outcome: What the server has learnt.
        bytes_up: Bytes that each device sent, on average over the cohort; None without messages.
    """

    outcome: RoundOutcome
    bytes_up: float | None


@dataclass(frozen=True, slots=True, eq=False)
class LevelsResult:
    """Simulated rounds at several levels, in one session.

    Attributes:
        outcomes: What the server has learnt at each level.
        bytes_up: Bytes that each device sent for all of them, on average over the cohort; None
            without messages.
    """

    outcomes: tuple[RoundOutcome, ...]
    bytes_up: float | None


class SumBackend(Protocol):
    """Something that runs rounds."""

    @property
    def name(self) -> str:
        """`masked` or `ideal`."""

    @property
    def sessions(self) -> Sessions:
        """How sessions are set up."""

    def run_round(
        self,
        config: RoundConfig,
        model: bytes,
        devices: Sequence[RoundDevice],
        *,
        warm_start: int | None,
        graph_seed: bytes,
        vanishing: Vanishing,
    ) -> RoundResult:
        """Run one round.

        Args:
            config: The round.
            model: The model w, as the bytes that devices get.
            devices: The cohort.
            warm_start: Tick near which η is expected; None for none.
            graph_seed: 32 public bytes, unique to the round.
            vanishing: Which devices vanish, and when.

        Raises:
            UsageError: no session parameters withstand the threat with so small a cohort.
            PeerError: the session falls short of the devices' policy.
            EncodingError: a device's loss or update is NaN or infinite, or has the wrong shape.
        """

    def run_levels(
        self,
        levels: Levels,
        models: bytes,
        devices: Sequence[RoundDevice],
        *,
        warm_starts: Sequence[int | None],
        graph_seed: bytes,
        vanishing: Vanishing,
    ) -> LevelsResult:
        """Run rounds at one or more levels in one session.

        Args:
            levels: Their rounds.
            models: Their models, as the bytes that devices get, joined in order.
            devices: The cohort.
            warm_starts: For each level the tick near which η is expected; None for none.
            graph_seed: 32 public bytes, unique to the session.
            vanishing: Which devices vanish, and when.

        Raises:
            UsageError: no session parameters withstand the threat with so small a cohort.
            PeerError: the session falls short of the devices' policy, such as by two levels with
                one model.
            EncodingError: a device's loss or update is NaN or infinite, or has the wrong shape.
        """


@dataclass(frozen=True, slots=True)
class MaskedSum:
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

    @property
    def name(self) -> str:
        """Its name in records."""
        return "masked"

    def run_round(
        self,
        config: RoundConfig,
        model: bytes,
        devices: Sequence[RoundDevice],
        *,
        warm_start: int | None,
        graph_seed: bytes,
        vanishing: Vanishing,
    ) -> RoundResult:
        """Run one round; see `SumBackend`."""
        result = self.run_levels(
            Levels((config,)),
            model,
            devices,
            warm_starts=(warm_start,),
            graph_seed=graph_seed,
            vanishing=vanishing,
        )
        return RoundResult(result.outcomes[0], result.bytes_up)

    def run_levels(
        self,
        levels: Levels,
        models: bytes,
        devices: Sequence[RoundDevice],
        *,
        warm_starts: Sequence[int | None],
        graph_seed: bytes,
        vanishing: Vanishing,
    ) -> LevelsResult:
        """Run rounds at one or more levels in one session; see `SumBackend`."""
        params = self.sessions.params_of_levels(levels, models, graph_seed)
        by_id = {ClientId(device.id): device for device in devices}
        ids = [ClientId(device.id) for device in devices]
        enrolled, primitives = self.enrolment, self.primitives()
        server = LevelsServer(levels, models, params, ids, warm_starts, enrolled, primitives)
        clients = {
            i: RoundClient(
                i,
                self.sessions.policy,
                self.randomness,
                enrolled.credentials_for(i, params),
                self.noise(i),
                primitives=primitives,
            )
            for i in by_id
        }
        bytes_up = 0

        def answer(client_id: ClientId, data: bytes) -> Answer:
            reply = _answer(clients[client_id], by_id[client_id], data)
            if not callable(reply):
                return count(reply)
            return lambda: count(reply())

        def count(reply: bytes | None) -> bytes | None:
            nonlocal bytes_up
            bytes_up += len(reply or b"")
            return reply

        outgoing = server.start()
        while outgoing:
            outgoing = run_round(server, outgoing, answer, server.step, vanishing, self.observer)
            if server.revealed is not None:
                self.observer.revealed(server.revealed)
        if server.outcomes is None:
            raise RuntimeError("the round stopped without an outcome: this is a bug")
        return LevelsResult(server.outcomes, bytes_up / len(devices))


@dataclass(frozen=True, slots=True)
class IdealSum:
    """Rounds by the ideal functionality.

    Attributes:
        sessions: How sessions are set up.
        noise: Source of each device's noise.
    """

    sessions: Sessions
    noise: NoiseSource = system_noise

    @property
    def name(self) -> str:
        """Its name in records."""
        return "ideal"

    def run_round(
        self,
        config: RoundConfig,
        model: bytes,
        devices: Sequence[RoundDevice],
        *,
        warm_start: int | None,
        graph_seed: bytes,
        vanishing: Vanishing,
    ) -> RoundResult:
        """Run one round; see `SumBackend`."""
        result = self.run_levels(
            Levels((config,)),
            model,
            devices,
            warm_starts=(warm_start,),
            graph_seed=graph_seed,
            vanishing=vanishing,
        )
        return RoundResult(result.outcomes[0], result.bytes_up)

    def run_levels(
        self,
        levels: Levels,
        models: bytes,
        devices: Sequence[RoundDevice],
        *,
        warm_starts: Sequence[int | None],
        graph_seed: bytes,
        vanishing: Vanishing,
    ) -> LevelsResult:
        """Run rounds at one or more levels in one session; see `SumBackend`."""
        params = self.sessions.params_of_levels(levels, models, graph_seed)
        by_id = {ClientId(device.id): device for device in devices}
        session = IdealSession(params, [ClientId(device.id) for device in devices], vanishing)
        each, measured = levels.split(models), dict[tuple[ClientId, int], DeviceRound]()
        if len(set(each)) != len(each):
            raise PeerError(Refusal.POLICY, "two levels have the same model")
        rounds = LevelRounds(levels, warm_starts)

        def measure(client_id: ClientId) -> DeviceRound:
            device, level = by_id[client_id], rounds.level
            key = client_id, level
            if key not in measured:
                config, loss = levels.rounds[level], device.loss(each[level])
                measured[key] = DeviceRound.measured(config, loss, device.weight)
            return measured[key]

        def passes(client_id: ClientId) -> bool:
            question = rounds.question
            return isinstance(question, Threshold) and measure(client_id).passes(question)

        def expect(ids: Sequence[ClientId]) -> None:
            model = each[rounds.level]
            for client_id in ids:
                if (client_id, rounds.level) not in measured:
                    _expect_loss(by_id[client_id], model)
            for client_id in ids:
                if passes(client_id):
                    _expect_update(by_id[client_id], model)

        def contribution(client_id: ClientId) -> Vector:
            own, question = measure(client_id), rounds.question
            if isinstance(question, Query):
                return own.answer(question, self.noise(client_id))
            model = each[rounds.level]
            return own.contribution(by_id[client_id].update(model) if passes(client_id) else None)

        try:
            session.set_up()
            while rounds.question is not None:
                rounds.assemble(len(session.remaining))
                rounds.check_opened(len(session.open_slot(rounds.slot)))
                answer = session.sum(rounds.slot, contribution, expect)
                if answer is None:
                    rounds.lose()
                else:
                    rounds.take(answer)
        except SessionAborted as error:
            return LevelsResult(rounds.outcomes(session.drops, str(error)), None)
        return LevelsResult(rounds.outcomes(session.drops), None)


def preferred_graph(cohort_size: int, threat: ThreatModel) -> GraphKind:
    """The sparse graph where it spares a device of a large cohort half its neighbours.

    Not against an active adversary, who might choose the roster to suit the graph.
    """
    if cohort_size < _LARGE_COHORT or threat.adversary is Adversary.ACTIVE:
        return GraphKind.COMPLETE
    try:
        degree, _ = sparse_parameters(cohort_size, threat)
    except UsageError:
        return GraphKind.COMPLETE
    return GraphKind.SPARSE if 2 * degree <= cohort_size else GraphKind.COMPLETE


def _answer(client: RoundClient, device: RoundDevice, data: bytes) -> Answer:
    """Let a device take an envelope; where that gives it a task, the answer comes when it is done.

    So all devices of a cohort begin before the first of them is waited for.
    """
    reply = client.receive(data)
    match reply:
        case Task.MEASURE_LOSS:
            for model in client.models:
                _expect_loss(device, model)
            return lambda: client.supply_losses(
                [device.loss(model) for model in client.models], device.weight
            )
        case Task.TRAIN:
            _expect_update(device, client.model)
            return lambda: client.supply_update(device.update(client.model))
        case _:
            return reply


def _expect_loss(device: RoundDevice, model: bytes) -> None:
    if isinstance(device, WorksAhead):
        device.expect_loss(model)


def _expect_update(device: RoundDevice, model: bytes) -> None:
    if isinstance(device, WorksAhead):
        device.expect_update(model)
