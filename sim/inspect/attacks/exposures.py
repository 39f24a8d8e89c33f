"""Attacks that succeed in spite of all defences: limits of the method (docs/limitations.md).

Nobody refuses anything here. Playing these attacks shows what the protocol does not promise.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol.configuration import binding
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ring
from deltafl.secagg.errors import present
from deltafl.sim.inspect.attacks.attack import Left, Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.evil_server import EvilServer, Survivors
from deltafl.sim.inspect.attacks.own_round import (
    MODEL,
    VERIFIED_ROUND,
    RoundDevices,
    context_of,
    make_devices,
)
from deltafl.sim.inspect.attacks.own_session import RING_BITS, Devices, make_params
from deltafl.sim.inspect.attacks.rounds import as_update
from deltafl.sim.inspect.attacks.searches import CONFIG, LOST, QUERY, Searches
from deltafl.sim.inspect.attacks.steering import Shown, Steering, ring_sum
from deltafl.sim.inspect.attacks.verified import UPDATE

_ALMOST: Final = bytes([MODEL[0] ^ 1]) + MODEL[1:]
"""The model with one bit changed."""
_PIVOT: Final = 16 * 40
"""A pivot with three of five devices above it."""
_IN_TAIL: Final = 3
"""Position of one of them."""


@attack(
    "lost-after-the-search",
    13,
    "declares a device dropped out between the search and the update",
    power=Power.SERVER,
    gain="whether the device is in the tail, and its weight if so",
    defence="none for the update, because otherwise one device could cost everybody the round; "
    "slots of queries are whole",
    spec="12.3",
    end=Left.EXPOSED,
)
def lost_after_the_search(defended: bool) -> Loot:
    """The search tells how much is in the tail, and the update how much without the device."""
    del defended
    devices = make_devices(CONFIG)
    network = RoundDevices(CONFIG, devices, signed=True)
    question: Query | Threshold = QUERY

    def bound(_: int) -> bytes:
        return binding(context_of(CONFIG), question)

    evil = EvilServer(network.params, devices, network.carry, binding_of=bound)
    evil.set_up()
    network.questions = dict.fromkeys(devices, question)
    below = CONFIG.search_layout.decode(_sum(evil, 0, evil.everyone))
    question = Threshold(2 * _PIVOT, 0)
    network.questions = dict.fromkeys(devices, question)
    tail = CONFIG.update_layout.decode(_sum(evil, CONFIG.update_slot, evil.everyone - {_IN_TAIL}))
    place = QUERY.pivots.index(_PIVOT)
    taken = [
        int(below[whole][0] - below[f"{whole}_below"][place] - tail[whole][0])
        for whole in ("count", "weight")
    ]
    device = devices[sorted(devices)[_IN_TAIL]]
    return Loot(
        np.array(taken, dtype=np.uint64),
        np.array([1, device.weight], dtype=np.uint64),
        CONFIG.search_layout.ring_bits,
        tuple(evil.refusals.values()),
        note="the number of devices that the tail lacks, and their weight",
    )


@attack(
    "search-in-a-small-cohort",
    14,
    "reads the sums of one honest histogram query over five devices",
    power=Power.SERVER,
    gain="every device's weight, and its loss to within a bucket, without names",
    defence="larger cohorts, `bracketed`, and the settings of the search (deltafl audit leakage "
    "measures them)",
    spec="12.4",
    end=Left.EXPOSED,
)
def search_in_a_small_cohort(defended: bool) -> Loot:
    """There is at most one device between two pivots, so that each rank is a device."""
    del defended
    devices = make_devices(CONFIG)
    network = RoundDevices(CONFIG, devices, questions=dict.fromkeys(devices, QUERY), signed=True)
    bound = binding(context_of(CONFIG), QUERY)
    evil = EvilServer(network.params, devices, network.carry, binding_of=lambda _: bound)
    evil.set_up()
    sums = CONFIG.search_layout.decode(_sum(evil, 0, evil.everyone))
    weights = np.diff(sums["weight_below"], append=sums["weight"])
    found = [(QUERY.pivots[i], weights[i]) for i in np.flatnonzero(weights)]
    truth = [
        (
            max(pivot for pivot in QUERY.pivots if pivot <= device.measured(CONFIG).tick),
            device.weight,
        )
        for device in devices.values()
    ]
    return Loot(
        np.array(found, dtype=np.uint64).ravel(),
        np.array(sorted(truth), dtype=np.uint64).ravel(),
        CONFIG.search_layout.ring_bits,
        tuple(evil.refusals.values()),
        note="for every device, the lower end of its bucket, in ticks of 1/256 nat, and its weight",
    )


def _sum(evil: EvilServer, slot: int, survivors: Survivors) -> npt.NDArray[np.uint64]:
    evil.open_slot(slot)
    if not evil.params.slots[slot].whole:
        evil.unmask(slot, survivors)
    return evil.sum_over(slot, survivors).astype(np.uint64)


_ROUNDS: Final = 6


@attack(
    "many-rounds",
    11,
    "collects sums over overlapping cohorts, round after round, and solves for the devices",
    power=Power.SERVER,
    gain="every vector that stays the same over the rounds",
    defence="none: sums are exact; an audit of the transcript reports whose updates can be "
    "solved for",
    spec="9.5",
    end=Left.EXPOSED,
)
def many_rounds(defended: bool) -> Loot:
    """Six devices play six rounds. Each round lacks another device, so each sum is over five."""
    del defended
    sums, enrolment = [], None
    for index in range(_ROUNDS):
        context = index.to_bytes(32, "big")
        params = make_params(_ROUNDS, 4, context=context, signed=True)
        devices = Devices(params, enrolment=enrolment)
        enrolment = devices.enrolment
        ids = [client for position, client in enumerate(devices.roster) if position != index]
        evil = EvilServer(params, ids, devices.answer)
        evil.set_up()
        sums.append(_sum(evil, 0, evil.everyone).astype(np.uint32))
    # Every vector is in all sums but one: their total is five times that of the vectors.
    fifth = pow(_ROUNDS - 1, -1, 1 << RING_BITS)
    total = np.stack(sums).sum(axis=0, dtype=np.uint32)
    return Loot(total * np.uint32(fifth) - sums[0], devices.vector(0))


@attack(
    "almost-one-model-in-two-rounds",
    13,
    "announces a model in two rounds, the second time with one bit changed and without one of the "
    "devices",
    power=Power.SERVER,
    gain="that device's answer, as the difference of the sums: its weight and where its loss lies",
    defence="none: devices remember models byte for byte, and every step of training changes the "
    "model",
    spec="12.13",
    end=Left.EXPOSED,
)
def almost_one_model_in_two_rounds(defended: bool) -> Loot:
    """The change is too small to change a loss by a tick."""
    del defended
    searches = Searches()
    for model, lost in ((MODEL, None), (_ALMOST, LOST)):
        evil = searches.session(without=lost, model=model)
        searches.ask(evil, 0, evil.everyone, evil.everyone)
    return searches.loot()


@attack(
    "two-tails-of-almost-one-model",
    13,
    "announces a model twice, the second time with one bit changed and a smaller θ, so that the "
    "tails differ by one device",
    power=Power.SERVER,
    gain="that device's update, as the difference of the two",
    defence="none: each of the two tails is large enough, and devices cannot judge which change of "
    "a model is too small",
    spec="12.11",
    end=Left.EXPOSED,
)
def two_tails_of_almost_one_model(defended: bool) -> Loot:
    """Both searches are honest and verified, and nobody drops out.

    Two levels of one session would do as well.
    """
    del defended
    sums, enrolment = [], None
    devices = {i: replace(one, weight=100) for i, one in make_devices(VERIFIED_ROUND).items()}
    for model, theta in ((MODEL, Fraction(3, 4)), (_ALMOST, Fraction(1, 2))):
        config = replace(VERIFIED_ROUND, theta=theta)
        steering = Steering(config, devices=devices, model=model, enrolment=enrolment)
        enrolment = steering.network.enrolment
        steering.run()
        loot = steering.update()
        tail = steering.search.result().tail
        presuppose(tail is not None and tail.fewest >= 2, "the tail is large enough")
        sums.append(steering.evil.sum_over(config.update_slot, steering.evil.everyone))
    device = steering.devices[-4]
    taken = sums[0] - sums[1]
    ring.reduce(taken, config.update_layout.ring_bits)
    return Loot(
        taken,
        device.measured(config).contribution(device.update),
        config.update_layout.ring_bits,
        loot.refusals,
        read=as_update(device),
    )


def _steer(steering: Steering, query: Query, truth: Shown) -> Shown:
    return steering.with_colluder(truth, steering.total(steering.made_up(query)))


@attack(
    "tail-of-one-with-a-colluder",
    4,
    "has its own device commit to false values, so that the sums show a tail of two with the "
    "largest loss where there is one",
    power=Power.SERVER,
    gain=UPDATE,
    defence="none: nothing proves that what a device commits to is true or in range; what helps is "
    "who admits devices",
    spec="12.12",
    end=Left.EXPOSED,
)
def tail_of_one_with_a_colluder(defended: bool) -> Loot:
    """The server waits for the sum of the others before its device commits to the difference."""
    del defended
    steering = Steering(num_colluders=1)
    steering.run(_steer)
    tail = steering.search.result().tail
    presuppose(tail is not None and tail.fewest >= 2, "two devices seem to be in the tail")
    return steering.update()


@attack(
    "search-ended-early",
    4,
    "claims that a device has dropped out during a verified search, and goes on to the update",
    power=Power.SERVER,
    gain="the sum over a tail that is too large: all devices from the highest pivot that is known "
    "to be safe, less those that it calls lost",
    defence="none: nobody can tell whether a device is gone; `threshold-after-a-drop-out` shows "
    "that the server cannot choose the threshold",
    spec="12.12",
    end=Left.EXPOSED,
)
def search_ended_early(defended: bool) -> Loot:
    """Two queries are asked and proved, and the first device is called lost."""
    del defended
    steering = Steering()
    steering.run(most=2)
    left = steering.evil.everyone - {0}
    threshold = steering.search.result(shrank=True).threshold
    steering.update(threshold, cohort=left)
    config = steering.config
    total = steering.evil.sum_over(config.update_slot, left)
    kept = [
        steering.devices[p]
        for p in sorted(left)
        if steering.devices[p].measured(config).passes(threshold)
    ]
    presuppose(len(kept) > 2, "the tail is larger than that of the whole search")
    vectors = [device.measured(config).contribution(device.update) for device in kept]
    return Loot(
        total,
        ring_sum(vectors, config.update_layout.ring_bits),
        config.update_layout.ring_bits,
        tuple(steering.evil.refusals.values()),
        note=f"{len(kept)} devices are in the tail, from {threshold.eta_half_ticks // 2} ticks on",
    )


@attack(
    "sums-of-a-verified-search",
    14,
    "follows a verified search, as every device of it does",
    power=Power.PEER,
    gain="the sums of all queries, which only the server learns in other searches",
    defence="none: devices check what they know; a search that is not verified tells them nothing",
    spec="12.12",
    end=Left.EXPOSED,
)
def sums_of_a_verified_search(defended: bool) -> Loot:
    """The attacker is the device with the smallest loss, and the sum is that of the last query."""
    del defended
    steering = Steering()
    steering.run()
    steering.update()
    mine = steering.network.clients[steering.ids[0]]
    layout = steering.config.search_layout
    proved = present(mine._session.proved)
    answers = [d.measured(steering.config).answer(steering.asked[-1]) for d in steering.devices]
    return Loot(
        proved.vector,
        steering.total(answers),
        layout.ring_bits,
        note="the sum of the last query: weight, number, and both below the pivot",
    )
