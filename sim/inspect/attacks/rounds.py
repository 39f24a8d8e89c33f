"""Attacks on a round, and on its search: what devices are asked, and what sums say of one device.

In the attacks of number 13, a server asks one query in two rounds over one model, the second time
without one of the devices.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from deltafl.protocol.answering import OwnWork
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import LostSearch
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ClientId, Enrolment, Refusal, Stage, Step
from deltafl.secagg.errors import present
from deltafl.secagg.ledger import Ledger, MemoryLedger
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Attack, Left, Loot, presuppose, told
from deltafl.sim.inspect.attacks.own_round import (
    DEAD_MODEL,
    MODEL,
    NEARLY_MODEL,
    POLICY,
    UPDATE_ROUND,
    WHOLE_ROUND,
    Device,
    Own,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.own_session import new_enrolment
from deltafl.sim.inspect.attacks.steering import Steering

# --- models -------------------------------------------------------------------------------------


@Attack(8, "12.8", Refusal.MALFORMED, saying="not bound to this model")
@told(
    "shows a model without a gradient to all devices but one (model inconsistency)",
    gain="that device's update",
    defence="the session is bound to the model that a device was shown",
)
def model_inconsistency(defended: bool) -> Loot:
    """A whole round with a search; the model is dead for all but the device that fares worst.

    Pasquini, Francati, Ateniese (CCS 2022): the updates of all others are zero. Without the
    defence, devices take the session for one that is bound to the model that they are shown.
    """
    devices = make_devices(WHOLE_ROUND)
    last = max(devices)
    network = RoundDevices(
        WHOLE_ROUND,
        devices,
        models={i: MODEL if i == last else DEAD_MODEL for i in devices},
        believe=not defended,
    )
    outcome, learnt = with_an_honest_server(network)
    presuppose(outcome.update is not None, "the round has come to an update")
    length = WHOLE_ROUND.update_length
    return Loot(
        learnt[-1].vector[:length],
        devices[last].measured(WHOLE_ROUND).contribution(devices[last].update)[:length],
        WHOLE_ROUND.update_layout.ring_bits,
        note=f"after {len(learnt) - 1} queries {outcome.kept_devices} devices were in the tail; "
        "their weights are in the sum as well",
        unit=devices[last].unit,
    )


_OWNERS: Final = (ClientId(10), ClientId(24))
"""Devices with a sample that the device's own code cannot read."""


class _Reader(Own):
    """A device's own code, which cannot read a sample of one property, or has a bug there."""

    def loss(self, model: bytes) -> float:
        """No loss."""
        del model
        raise IndexError("a token that the model does not know")


class _Readers(RoundDevices):
    """Devices, some of which have such code."""

    def own(self, client: ClientId) -> OwnWork:
        """The code of a device."""
        kind = _Reader if client in _OWNERS else Own
        return kind(self.devices[client], self.model)


@Attack(16, "12.4", Left.NOTHING)
@told(
    "announces a model under which devices' own code fails on samples with a certain property",
    gain="one bit about the samples of every device, by name",
    defence="what own code fails to work out counts as not finite, and the device goes on",
)
def silence_by_an_exception(defended: bool) -> Loot:
    """Without the defence, the exception ends the round on the device where it is raised."""
    raised = {} if defended else dict.fromkeys(_OWNERS, Step(Stage.MASK))
    _, learnt = with_an_honest_server(_Readers(UPDATE_ROUND), gone=raised)
    ids = sorted(make_devices(UPDATE_ROUND))
    return Loot(
        np.array([client not in learnt[-1].contributors for client in ids]),
        np.array([client in _OWNERS for client in ids]),
        ring_bits=1,
        note="which devices fell silent",
    )


# --- two rounds over one model ------------------------------------------------------------------

_PIVOTS: Final = 63
_CONFIG: Final = replace(
    UPDATE_ROUND,
    theta=UPDATE_ROUND.theta / 2,
    method="histogram",
    num_pivots=_PIVOTS,
    search=replace(UPDATE_ROUND.search, max_queries=2),
    update_length=4,
)
_QUERY: Final = Query("histogram", tuple(range(0, _PIVOTS * 16, 16)))
_RING_BITS: Final = _CONFIG.search_layout.ring_bits
_LOST: Final = 1
"""Position of the device that the second sum lacks."""
_ANSWER: Final = (
    "that device's answer, as the difference of the sums: its weight and where its loss lies"
)


def _asked_twice(
    enrolment: Enrolment,
    again: Enrolment | None = None,
    *,
    policy: RoundPolicy = POLICY,
    model: bytes = MODEL,
    between: int = 0,
) -> Loot:
    """Asks devices one query in two sessions, the second time without one of them.

    Args:
        enrolment: The devices' identities and what these remember.
        again: The same, the second time.
        policy: What they insist on.
        model: What is announced the second time.
        between: How many rounds are announced in between.

    Raises:
        PeerError: the devices refuse to answer a second time.
    """

    def network(index: int, model: bytes, known: Enrolment = enrolment) -> RoundDevices:
        config = replace(_CONFIG, round_index=index)
        return RoundDevices(config, model=model, policy=policy, enrolment=known)

    first = Steering(network(1, MODEL))
    both = first.ask(0, _QUERY)
    for number in range(between):
        Steering(network(2 + number, b"model %d" % number))
    second = Steering(network(2 + between, model, again or enrolment), without=_LOST)
    device = first.devices[_LOST]
    return Loot(
        both - second.ask(0, _QUERY),
        device.measured(_CONFIG).answer(_QUERY),
        _RING_BITS,
        (*first.evil.refusals.values(), *second.evil.refusals.values()),
        note=f"truth: loss {device.loss}, weight {device.weight}; the answer holds, for each "
        "of 63 losses, the weight that lies below, and then the same for the count",
    )


@Attack(13, "12.13", Refusal.MODEL_REPEATED, saying="answered for this model before")
@told(
    "announces one model under two round indices, the second time without one of the devices",
    gain=_ANSWER,
    defence="to an active server, a device answers for a model in one round, and remembers it",
)
def one_model_in_two_rounds(defended: bool) -> Loot:
    """There are two contexts. Without the defence, devices believe that the first round was lost.

    So do those that expect a curious server, up to `max_rounds_per_model` rounds.
    """
    policy = replace(POLICY, max_rounds_per_model=1 if defended else 2)
    return _asked_twice(new_enrolment(), policy=policy)


@Attack(13, "12.13", Left.NOTHING)
@told(
    "repeats a round that was lost, without one of its devices",
    gain=_ANSWER,
    defence="a round that is repeated goes on with the sums of the lost one, and searches no more",
)
def lost_round_begun_anew(defended: bool) -> Loot:
    """All follow the protocol, and devices believe that the server does.

    Without the defence, the server searches anew.
    """
    devices, enrolment, lost = make_devices(_CONFIG), new_enrolment(), list[LostSearch]()
    victim = sorted(devices)[_LOST]
    too_few = dict.fromkeys(sorted(devices)[-2:], Step(Stage.MASK, _CONFIG.update_slot))
    asked = []
    for number, gone in enumerate((too_few, {victim: Step(Stage.ADVERTISE)})):
        network = RoundDevices(
            replace(_CONFIG, round_index=number),
            devices,
            policy=replace(POLICY, max_rounds_per_model=2),
            threshold=4,
            enrolment=enrolment,
        )
        outcome, learnt = with_an_honest_server(network, gone=gone, lost=lost)
        presuppose((outcome.update is None) == (number == 0), "the first round is lost")
        asked.append([one.vector for one in learnt if one.slot == 0])
        lost = [outcome.lost] if defended and outcome.lost is not None else []
    (first,), again = asked
    taken = first - again[0] if again else 0 * first
    query = present(_CONFIG.start_search().query)
    return Loot(taken, devices[victim].measured(_CONFIG).answer(query), _RING_BITS)


_CAPACITY: Final = 5


class _SmallLedgers(Enrolment):
    """Identities with ledgers that have room for a few entries."""

    def ledger(self, client: ClientId) -> Ledger:
        """The ledger of a device."""
        return self._ledgers.setdefault(client, MemoryLedger(_CAPACITY))


@Attack(13, "12.13", Refusal.MODEL_REPEATED, saying="answered for this model before")
@told(
    "announces rounds until devices forget a model, and that model again without one of them",
    gain=_ANSWER,
    defence="a ledger holds only what a device has answered, and forgets nothing",
)
def announced_until_forgotten(defended: bool) -> Loot:
    """There are twice as many announcements as a ledger has room for, and the devices join them.

    Without the defence, announcements have taken up the room, and nothing else is known any more.
    """
    enrolment, forgetful = (_SmallLedgers(SeededRandomness(bytes(32))) for _ in range(2))
    again = enrolment if defended else forgetful
    return _asked_twice(enrolment, again, between=2 * _CAPACITY)


@Attack(13, "12.13")
@told(
    "announces a model in two rounds, the second time with a bit changed and without one device",
    gain=_ANSWER,
    defence="none: models are remembered byte for byte, and every step of training changes them",
)
def almost_one_model_in_two_rounds(_defended: bool) -> Loot:
    """The change is too small to change a loss by a tick."""
    return _asked_twice(new_enrolment(), model=NEARLY_MODEL)


# --- what one search says -----------------------------------------------------------------------

_PIVOT: Final = 16 * 40
"""A pivot with three of five devices above it."""
_IN_TAIL: Final = 3
"""Position of one of them."""


@Attack(13, "12.3")
@told(
    "declares a device dropped out between the search and the update",
    gain="whether the device is in the tail, and its weight if so",
    defence="none for the update, or one device could cost all the round; queries' slots are whole",
)
def lost_after_the_search(_defended: bool) -> Loot:
    """The search tells how much is in the tail, and the update how much without the device."""
    devices = make_devices(_CONFIG)
    steering = Steering(RoundDevices(_CONFIG, devices))
    below = _CONFIG.search_layout.decode(steering.ask(0, _QUERY))
    left, threshold = steering.evil.everyone - {_IN_TAIL}, Threshold(2 * _PIVOT, 0)
    summed = steering.ask(_CONFIG.update_slot, threshold, survivors=left)
    tail = _CONFIG.update_layout.decode(summed)
    place = _QUERY.pivots.index(_PIVOT)
    taken = [below[a][0] - below[f"{a}_below"][place] - tail[a][0] for a in ("count", "weight")]
    return Loot(
        np.array(taken),
        np.array([1, steering.devices[_IN_TAIL].weight]),
        _RING_BITS,
        tuple(steering.evil.refusals.values()),
        note="the number of devices that the tail lacks, and their weight",
    )


@Attack(14, "12.4")
@told(
    "reads the sums of one honest histogram query over five devices",
    gain="every device's weight, and its loss to within a bucket, without names",
    defence="larger cohorts, `bracketed`, and settings (`deltafl audit leakage` measures them)",
)
def search_in_a_small_cohort(_defended: bool) -> Loot:
    """There is at most one device between two pivots, so that each rank is a device."""
    devices = make_devices(_CONFIG)
    steering = Steering(RoundDevices(_CONFIG, devices))
    sums = _CONFIG.search_layout.decode(steering.ask(0, _QUERY))
    weights = np.diff(sums["weight_below"], append=sums["weight"])
    found = [(_QUERY.pivots[i], weights[i]) for i in np.flatnonzero(weights)]
    own = [device.measured(_CONFIG) for device in devices.values()]
    wanted = [(max(p for p in _QUERY.pivots if p <= one.tick), one.weight) for one in own]
    return Loot(
        np.array(found, dtype=np.uint64).ravel(),
        np.array(sorted(wanted), dtype=np.uint64).ravel(),
        _RING_BITS,
        tuple(steering.evil.refusals.values()),
        note="for every device, the lower end of its bucket, in ticks of 1/256 nat, and its weight",
    )


@Attack(15, "12.4", Left.NOISE)
@told(
    "reads the losses that devices report in the published Δ-FL (Algorithm 2)",
    gain="every device's loss and weight, by name",
    defence="Algorithm 3: devices mask their answers to queries, and the server gets sums only",
)
def losses_in_clear(defended: bool) -> Loot:
    """The comparison is by the devices' answers to a query, which follow from their losses."""
    devices = make_devices(_CONFIG)
    if defended:
        steering = Steering(RoundDevices(_CONFIG, devices))
        steering.ask(0, _QUERY)
        heard = list(steering.evil.inputs[0].values())
    else:
        heard = _in_clear(devices)
    wanted = [device.measured(_CONFIG).answer(_QUERY) for device in devices.values()]
    return Loot(
        np.array(heard, dtype=np.uint64).ravel(),
        np.stack(wanted).ravel(),
        _RING_BITS,
        note=f"the server is told {'masked words' if defended else 'losses and weights'}",
    )


def _in_clear(devices: Mapping[ClientId, Device]) -> list[Vector]:
    """What a server of Algorithm 2 is told of each device, as its answer to a query."""
    from deltafl.fl.strategies.aggregation import measure_losses  # loads torch, which takes seconds
    from deltafl.sim.cohort.simulated import cohort_of

    reporting: list[Any] = [
        SimpleNamespace(id=client, weight=one.weight, loss=lambda _, own=one: own.loss)
        for client, one in devices.items()
    ]
    cohort = cohort_of(reporting)
    losses = measure_losses(cohort, np.zeros(_CONFIG.update_length, np.float32))
    return [
        DeviceRound.measured(_CONFIG, loss, weight).answer(_QUERY)
        for loss, weight in zip(losses, cohort.weights.values(), strict=True)
    ]
