"""The devices of a round of Δ-FL, honest unless an attack makes them otherwise.

They are those of this project, or plain ones, which know the session's protocol and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol import wire
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.configuration import RoundConfig, UpdateParams, binding
from deltafl.protocol.device import DeviceRound, Update
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.round import LostSearch, RoundOutcome
from deltafl.protocol.selection import Threshold
from deltafl.protocol.server import RoundServer
from deltafl.secagg import (
    Client,
    ClientId,
    Credentials,
    Enrolment,
    SessionParams,
    SlotSum,
    Step,
    UsageError,
)
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import present
from deltafl.secagg.ledger import Ledger
from deltafl.secagg.messages import OpenSlot, SessionOpen
from deltafl.secagg.openings import Prove
from deltafl.secagg.randomness import Randomness, SeededRandomness
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Words
from deltafl.sim.inspect.attacks.own_session import ACTIVE_POLICY, new_enrolment

POLICY: Final = RoundPolicy(
    min_cohort=3,
    min_threshold=2,
    min_threshold_share=0.2,
    min_honest_tail=0,
    min_search_cohort=3,
    max_pivots=320,
    max_mm_pivots_per_device=Fraction(10),
    max_rounds_per_model=1,
)
"""A policy that the small rounds of attacks on something else satisfy.

By it, devices answer for a model once, as if they expected an active server."""
ACTIVE: Final = replace(
    POLICY,
    adversary=ACTIVE_POLICY.adversary,
    colluding_rate=0.2,
    min_honest_tail=1,
    min_threshold=ACTIVE_POLICY.min_threshold,
    min_threshold_share=ACTIVE_POLICY.min_threshold_share,
)
"""The policy of devices that expect an active server, and one in five devices that collude.

In a tail of two, one device may be alone: the attacks of `tails` are on such tails."""
QUORUM: Final = 4
"""The threshold that they insist on, of five devices."""

MODEL: Final = b"the model"
DEAD_MODEL: Final = b"a model whose gradient is zero"

UPDATE_ROUND: Final = RoundConfig(
    round_index=3,
    cohort_size=5,
    theta=Fraction(1),
    method="mm",
    search=SearchParams(max_queries=1, grid=LossGrid(resolution_bits=8, bound=8)),
    update=UpdateParams(clip=4.0, resolution_bits=12, max_weight=500),
    update_length=64,
)
"""A round without a search: its only slot is the update's."""

WHOLE_ROUND: Final = replace(
    UPDATE_ROUND,
    theta=Fraction(1, 2),
    method="bracketed",
    search=replace(UPDATE_ROUND.search, max_queries=12),
)
"""The same with a search."""

VERIFIED_ROUND: Final = replace(
    WHOLE_ROUND,
    search=replace(WHOLE_ROUND.search, min_cohort=QUORUM, verified=True),
    min_tail=2,
)
"""The same with a search that devices follow, and tails of two devices, one of which colludes."""


@dataclass(frozen=True, eq=False)
class Device:
    """What a device answers with.

    Attributes:
        loss: F_k, in nats.
        weight: n_k.
        update: Δ_k, float32.
    """

    loss: float
    weight: int
    update: Update

    def measured(self, config: RoundConfig) -> DeviceRound:
        """Its part of a round."""
        return DeviceRound.measured(config, self.loss, self.weight)


def make_devices(config: RoundConfig) -> dict[ClientId, Device]:
    """Devices by id; the losses, 0.5, 1.5, …, rise with the id."""
    generator = np.random.default_rng(0)
    return {
        ClientId(3 + 7 * rank): Device(
            0.5 + rank,
            int(generator.integers(1, config.update.max_weight, endpoint=True)),
            generator.uniform(-1, 1, config.update_length).astype(np.float32),
        )
        for rank in range(config.cohort_size)
    }


def as_update(device: Device) -> Callable[[Words], npt.NDArray[np.float64]]:
    """Reads words as Δ_k of a device whose weight is known."""
    layout, factor = UPDATE_ROUND.update_layout, device.weight
    shift = 64 - layout.ring_bits

    def read(words: Words) -> npt.NDArray[np.float64]:
        numbers = words[: UPDATE_ROUND.update_length].astype(np.int64)
        return layout.to_float("update", (numbers << shift) >> shift) / factor

    return read


Say = Callable[[Query | Threshold, bytes], tuple[Vector, Prove | None]]
"""What a plain device answers to a question about a model, and proves of it where that is asked."""


class PlainDevice(RoundClient):
    """A device that knows the session's protocol: it checks nothing of the round around it.

    Args:
        say: What it answers.
        client_id: As for `RoundClient`, and so are those that follow.
        policy: Of the session.
        randomness: Source of secrets.
        credentials: For signed sessions.
        ledger: The device's own.
    """

    def __init__(
        self,
        say: Say,
        client_id: ClientId,
        policy: RoundPolicy,
        randomness: Randomness,
        credentials: Credentials | None = None,
        *,
        ledger: Ledger | None = None,
    ) -> None:
        super().__init__(client_id, policy, randomness, credentials, ledger=ledger)
        self._say = say
        self._plain = Client(client_id, policy, randomness, credentials, ledger=ledger)
        self._shown = b""

    def receive(self, data: bytes) -> bytes | None:
        """Take an envelope; the answer to what is in it, at once."""
        envelope = wire.decode(data)
        if isinstance(envelope, Announce):
            self._shown = envelope.models
        if not isinstance(envelope, Ask):
            return self._plain.receive(envelope.session)
        if envelope.opening:
            self._plain.receive(envelope.opening)
        self._plain.receive(envelope.session)
        question = envelope.question
        vector, prove = self._say(question, self._shown)
        bound = binding(present(self._plain.params).context, question)
        return self._plain.contribute(vector, bound, prove)


def trusting(config: RoundConfig, device: Device) -> Callable[..., RoundClient]:
    """Makes a plain device that answers the truth about whatever model it is shown."""
    own = device.measured(config)

    def say(question: Query | Threshold, model: bytes) -> tuple[Vector, None]:
        if isinstance(question, Query):
            return own.answer(question), None
        update = device.update * np.float32(model != DEAD_MODEL)
        return own.contribution(update if own.passes(question) else None), None

    return partial(PlainDevice, say)


def _as_usual(_client: ClientId) -> Callable[..., RoundClient]:
    return RoundClient


class RoundDevices:
    """The devices of a round, and the network between them and a server that speaks of a session.

    Args:
        config: The round.
        devices: Who takes part; five or so by default.
        policy: What the devices insist on; `ACTIVE` by default if the search is verified.
        threshold: Shares that rebuild a secret; by default, `QUORUM` then, and two otherwise.
        model: The model that the session is bound to; with several levels, theirs, joined.
        models: What each device is shown as the model; the same for all by default.
        signed: Whether the session is; if the search is verified, it is.
        runs: What makes the machine of each device.
        enrolment: Their identities and what these remember; new ones where not given.
        number: Of the round; in each, devices draw other secrets and other noise.
        thetas: The tail fractions of the levels that are played in one session; by default, there
            is one, that of the round.

    Attributes:
        params: The session that the server announces.
        questions: The query or threshold that each device is shown, in every slot.
        openings: What each device is shown as the proof of the sum before, if anything.
        clients: The devices' machines.
    """

    def __init__(
        self,
        config: RoundConfig,
        devices: Mapping[ClientId, Device] | None = None,
        *,
        policy: RoundPolicy | None = None,
        threshold: int | None = None,
        model: bytes = MODEL,
        models: Mapping[ClientId, bytes] | None = None,
        signed: bool = False,
        runs: Callable[[ClientId], Callable[..., RoundClient]] = _as_usual,
        enrolment: Enrolment | None = None,
        number: int = 0,
        thetas: Sequence[Fraction] = (),
    ) -> None:
        self.config = config
        self.devices = make_devices(config) if devices is None else devices
        self.questions: Mapping[ClientId, Query | Threshold] = {}
        self.openings: Mapping[ClientId, bytes] = {}
        verified = config.search.verified
        policy = policy or (ACTIVE if verified else POLICY)
        threshold = threshold or (QUORUM if verified else 2)
        self.levels = Levels.at(config, thetas or (config.theta,))
        self.model = model
        self.models = models or dict.fromkeys(self.devices, model)
        self.enrolment = enrolment or new_enrolment()
        self.params = SessionParams(
            slots=self.levels.slots(),
            num_invited=config.cohort_size,
            degree=config.cohort_size - 1,
            threshold=threshold,
            min_cohort=max(3, threshold),
            graph_seed=bytes(32),
            context=self.levels.context(model),
            signed=signed or verified,
        )
        self.clients = {
            client: runs(client)(
                client,
                policy,
                SeededRandomness((client + (number << 64)).to_bytes(32, "little")),
                self.enrolment.credentials_for(client, self.params),
                ledger=self.enrolment.ledger(client),
            )
            for client in self.devices
        }

    def carry(self, client: ClientId, data: bytes) -> bytes | None:
        """A device's answer to a message of the session, in the envelope of a lying server."""
        match session_wire.decode(data, self.params):
            case SessionOpen():
                announced = Announce(self.levels, self.models[client], data)
                return self.answer(client, wire.encode(announced))
            case OpenSlot():
                asked = Ask(self.questions[client], data, self.openings.get(client, b""))
                return self.answer(client, wire.encode(asked))
            case _:
                return self.answer(client, wire.encode(Relay(data)))

    def shown(self, client: ClientId, data: bytes) -> bytes:
        """What becomes of an envelope on its way to a device: it announces the device's model."""
        envelope = wire.decode(data)
        if isinstance(envelope, Announce):
            return wire.encode(replace(envelope, models=self.models[client]))
        return data

    def answer(self, client: ClientId, data: bytes) -> bytes | None:
        """Let a device take an envelope, and do what it is told to."""
        machine, device = self.clients[client], self.devices[client]
        match machine.receive(data):
            case LocalWork.MEASURE_LOSS:
                losses = [device.loss] * len(self.levels.rounds)
                return machine.supply_losses(losses, device.weight)
            case LocalWork.TRAIN:
                dead = machine.model == DEAD_MODEL
                return machine.supply_update(device.update * np.float32(not dead))
            case LocalWork.WAIT:
                return machine.supply_zeros()
            case reply:
                return reply


def with_an_honest_server(
    devices: RoundDevices,
    *,
    gone: Mapping[ClientId, Step] = MappingProxyType({}),
    lost: Sequence[LostSearch] = (),
    keeps_cohort: bool = False,
) -> tuple[RoundOutcome, list[SlotSum]]:
    """Take the round to its end; devices are shown their models, the rest is as it should be.

    Args:
        devices: Who takes part.
        gone: Who drops out, and before which of its messages.
        lost: What earlier rounds over the models have revealed.
        keeps_cohort: Whether devices insist that nobody is lost after the first level.

    Returns:
        The outcome of the first level, and the sums that the server learns, in order.
    """
    server = RoundServer(
        devices.levels,
        devices.model,
        devices.params,
        devices.devices,
        directory=devices.enrolment if devices.params.signed else None,
        keeps_cohort=keeps_cohort,
        lost=lost,
    )
    learnt = list[SlotSum]()
    outgoing = server.start()
    while outgoing:
        for client, data in outgoing.items():
            if client in gone and gone[client].order <= server.step.order:
                continue
            if (reply := devices.answer(client, devices.shown(client, data))) is not None:
                server.receive(client, reply)
        outgoing = server.close_round()
        if server.revealed is not None:
            learnt.append(server.revealed)
    if server.outcomes is None:
        raise UsageError("the round is not over")
    return server.outcomes[0], learnt
