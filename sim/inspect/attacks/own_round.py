"""The devices of a round of Δ-FL, honest unless an attack makes them otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import numpy as np

from deltafl.protocol import wire
from deltafl.protocol.answering import OwnWork, answered
from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.device import DeviceRound, Update
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.round import LostSearch, RoundOutcome
from deltafl.protocol.selection import Threshold
from deltafl.protocol.server import RoundServer
from deltafl.secagg import Adversary, ClientId, Enrolment, SessionParams, SlotSum, Step
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import present
from deltafl.secagg.messages import OpenSlot, SessionOpen
from deltafl.secagg.randomness import Randomness, SeededRandomness
from deltafl.secagg.session import NoObserver, Trip
from deltafl.secagg.states import Vanish
from deltafl.sim.inspect.attacks.own_session import new_enrolment

POLICY: Final = RoundPolicy(
    min_cohort=3,
    min_honest_tail=0,
    max_pivots=320,
    max_mm_pivots_per_device=Fraction(10),
    max_rounds_per_model=1,
)
"""A policy that the small rounds of attacks on something else satisfy.

By it, devices answer for a model once, as if they expected an active server."""
ACTIVE: Final = replace(
    POLICY,
    adversary=Adversary.ACTIVE,
    colluding_rate=0.2,
    min_honest_tail=1,
)
"""The policy of devices that expect an active server, and one in five devices that collude.

In a tail of two, one device may be alone: the attacks of `tails` are on such tails."""
QUORUM: Final = 4
"""The threshold that they insist on, of five devices."""

MODEL: Final = b"the model"
NEARLY_MODEL: Final = bytes([MODEL[0] ^ 1]) + MODEL[1:]
"""With one bit changed, which changes no loss by a tick."""
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
    WHOLE_ROUND, search=replace(WHOLE_ROUND.search, min_cohort=QUORUM, verified=True), min_tail=2
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

    @property
    def unit(self) -> float:
        """What a word of one stands for where it tells Δ_k of a device whose weight is known."""
        return 2.0**-UPDATE_ROUND.update.resolution_bits / max(1, self.weight)


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


class Own:
    """A device's own code; an `OwnWork`.

    Args:
        device: What it works out.
        shown: The model that it works with, whatever the session is bound to.
    """

    def __init__(self, device: Device, shown: bytes) -> None:
        self._device = device
        self._shown = shown

    def weight(self) -> int:
        """n_k."""
        return self._device.weight

    def loss(self, model: bytes) -> float:
        """F_k."""
        del model
        return self._device.loss

    def update(self, model: bytes) -> Update:
        """Δ_k, unless the model has no gradient."""
        del model
        return self._device.update * np.float32(self._shown != DEAD_MODEL)

    def wait(self, model: bytes) -> None:
        """Not a moment: nobody looks at the time here."""


def noise_of(client: ClientId) -> Randomness:
    """Where the noise of a device comes from; the server knows that of its own devices."""
    return SeededRandomness(client.to_bytes(32, "big"))


class RoundDevices:
    """The devices of a round, and the network between them and a server that speaks of a session.

    Args:
        config: The round.
        devices: Who takes part; five or so by default.
        policy: What the devices insist on; `ACTIVE` by default if the search is verified.
        threshold: Shares that rebuild a secret; by default, `QUORUM` then, and two otherwise.
        model: The model that the session is bound to; with several levels, theirs, joined.
        models: What each device is shown as the model; the same for all by default.
        believe: Whether devices take that for the model that the session is bound to.
        enrolment: Their identities and what these remember; new ones where not given.
        thetas: The tail fractions of the levels that are played in one session; by default, there
            is one, that of the round.

    Attributes:
        params: The session that the server announces.
        question: The query or threshold that devices are shown.
        opening: What they are shown as the proof of the sum before, if anything.
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
        believe: bool = False,
        enrolment: Enrolment | None = None,
        thetas: Sequence[Fraction] = (),
    ) -> None:
        self.devices = make_devices(config) if devices is None else devices
        self.question: Query | Threshold = Threshold(0, 0)
        self.opening = b""
        verified = config.search.verified
        self.policy = policy or (ACTIVE if verified else POLICY)
        threshold = threshold or (QUORUM if verified else 2)
        self.levels = Levels.at(config, thetas or (config.theta,))
        self.model = model
        self.enrolment = enrolment or new_enrolment()
        self.params = SessionParams(
            slots=self.levels.slots(),
            num_invited=config.cohort_size,
            degree=config.cohort_size - 1,
            threshold=threshold,
            min_cohort=max(3, threshold),
            graph_seed=bytes(32),
            context=self.levels.context(model),
            signed=True,
        )
        self._models = models or dict.fromkeys(self.devices, model)
        self._believe = believe
        self._machines = {
            client: RoundClient(
                client,
                self.policy,
                SeededRandomness(client.to_bytes(32, "little")),
                self.enrolment.credentials(client),
                noise_of(client),
                ledger=self.enrolment.ledger(client),
            )
            for client in self.devices
        }

    def carry(self, client: ClientId, data: bytes) -> bytes | None:
        """A device's answer to a message of the session, in the envelope of a lying server."""
        match session_wire.decode(data, self.params):
            case SessionOpen():
                envelope: Announce | Ask | Relay = Announce(self.levels, self.model, data)
            case OpenSlot():
                envelope = Ask(self.question, data, self.opening)
            case _:
                envelope = Relay(data)
        return self.answer(client, wire.encode(envelope))

    def answer(self, client: ClientId, data: bytes) -> bytes | None:
        """Let a device take an envelope, which announces its own model, and do what it is told."""
        envelope = wire.decode(data)
        if isinstance(envelope, Announce) and not self._believe:
            data = wire.encode(replace(envelope, models=self._models[client]))
        return answered(self._machines[client], data, self.own(client), lambda _: None)

    def own(self, client: ClientId) -> OwnWork:
        """The code of a device."""
        return Own(self.devices[client], self._models[client])


def with_an_honest_server(
    devices: RoundDevices,
    *,
    gone: Mapping[ClientId, Step] = MappingProxyType({}),
    lost: Sequence[LostSearch] = (),
) -> tuple[RoundOutcome, list[SlotSum]]:
    """Take the round to its end; devices are shown their models, the rest is as it should be.

    Args:
        devices: Who takes part.
        gone: Who drops out, and before which of its messages.
        lost: What earlier rounds over the models have revealed.

    Returns:
        The outcome of the first level, and the sums that the server learns, in order.
    """
    server = RoundServer(
        devices.levels,
        devices.model,
        devices.params,
        devices.devices,
        directory=devices.enrolment,
        keeps_cohort=devices.policy.expects_active,
        lost=lost,
    )
    learnt = list[SlotSum]()
    vanishing = {client: Vanish(step) for client, step in gone.items()}
    outgoing = server.start()
    while outgoing:
        trip = Trip(server, vanishing, NoObserver())
        for client, data in trip.deliver(outgoing):
            trip.take(client, devices.answer(client, data))
        outgoing = trip.close()
        if server.revealed is not None:
            learnt.append(server.revealed)
    return present(server.outcomes)[0], learnt
