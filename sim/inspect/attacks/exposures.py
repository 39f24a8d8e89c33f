"""Attacks that succeed in spite of all defences: limits of the method (docs/limitations.md).

Nobody refuses anything here. Playing these attacks shows what the protocol does not promise.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol.configuration import binding
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.sim.inspect.attacks.attack import Left, Loot, Power, attack
from deltafl.sim.inspect.attacks.evil_server import EvilServer, Survivors
from deltafl.sim.inspect.attacks.own_round import RoundDevices, context_of, make_devices
from deltafl.sim.inspect.attacks.own_session import RING_BITS, Devices, make_params
from deltafl.sim.inspect.attacks.searches import CONFIG, QUERY

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
