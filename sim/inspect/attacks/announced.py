"""Attacks by what is announced: numbers of a round under which a sum is about single devices."""

from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig, UpdateParams, binding
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import ClientId, Refusal, SlotSum
from deltafl.sim.inspect.attacks.attack import Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.evil_server import EvilServer
from deltafl.sim.inspect.attacks.own_round import (
    POLICY,
    UPDATE_ROUND,
    WHOLE_ROUND,
    Device,
    RoundDevices,
    context_of,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.rounds import as_update

_MANY: Final = 100
_TICK_BITS: Final = 12
_LENGTH: Final = UPDATE_ROUND.update_length
_HEAVY: Final = 500

_CUTS: Final = replace(
    UPDATE_ROUND,
    cohort_size=_MANY,
    theta=Fraction(1, 2),
    method="histogram",
    num_pivots=UPDATE_ROUND.search.grid.max_tick,
    update_length=1,
    min_tail=RoundPolicy().min_tail(_MANY),
)
"""A search with a pivot at every tick but the lowest."""


def _of_known_weights() -> dict[ClientId, Device]:
    """A hundred devices of different weights and losses."""
    generator = np.random.default_rng(0)
    grid, heaviest = _CUTS.search.grid, _CUTS.update.max_weight
    ticks = generator.choice(grid.max_tick, _MANY, replace=False)
    weights = 1 + generator.choice(heaviest, _MANY, replace=False)
    return {
        ClientId(index): Device(grid.value(int(tick)), int(weight), np.zeros(1, np.float32))
        for index, (tick, weight) in enumerate(zip(ticks, weights, strict=True))
    }


@attack(
    "many-cuts",
    14,
    "asks one query with a pivot at every tick, of a hundred devices whose weights it knows",
    power=Power.SERVER,
    gain="every device's loss, by its name and to the tick",
    defence="the device's own limits on the pivots of a query and of a search",
    spec="12.14",
    end=Refusal.POLICY,
    saying="above max_query_pivots=64",
)
def many_cuts(defended: bool) -> Loot:
    """Between two neighbouring pivots there is one device or none, and its weight is its name."""
    policy, every_tick = RoundPolicy(), _CUTS.search.grid.max_tick
    if not defended:
        policy = replace(policy, max_query_pivots=every_tick, max_pivots=every_tick)
    devices = RoundDevices(_CUTS, _of_known_weights(), policy=policy, threshold=_MANY // 2)
    ids, pivots = sorted(devices.devices), tuple(range(1, 1 + every_tick))
    query = Query(_CUTS.method, pivots)
    devices.questions = dict.fromkeys(ids, query)
    bound = binding(context_of(_CUTS), query)
    evil = EvilServer(devices.params, ids, devices.carry, binding_of=lambda _: bound)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, evil.everyone)
    sums = _CUTS.search_layout.decode(evil.sum_over(0, evil.everyone).astype(np.uint64))
    below = np.concatenate([[0], sums["weight_below"], sums["weight"]])
    tick_of = {int(weight): tick for tick, weight in enumerate(np.diff(below)) if weight}
    taken = [tick_of.get(devices.devices[client].weight, -1) for client in ids]
    wanted = [devices.devices[client].measured(_CUTS).tick for client in ids]
    note = f"of {_MANY} devices, {sum(map(int.__eq__, taken, wanted))} are named, to the tick"
    return Loot(np.array(taken, np.uint64), np.array(wanted, np.uint64), _TICK_BITS, note=note)


def _one_heavy(light: float, heavy: float) -> dict[ClientId, Device]:
    """One device with many samples among devices with one; their updates are up to so large."""
    generator = np.random.default_rng(0)
    *others, last = sorted(make_devices(UPDATE_ROUND))
    weights = dict.fromkeys(others, 1) | {last: _HEAVY}
    return {
        client: Device(
            1.0,
            weight,
            generator.uniform(-1, 1, _LENGTH).astype(np.float32)
            * np.float32(heavy if client == last else light),
        )
        for client, weight in weights.items()
    }


def _sum_of_updates(
    update: UpdateParams, devices: dict[ClientId, Device], policy: RoundPolicy
) -> tuple[RoundDevices, SlotSum]:
    """An honest round of such numbers in which everybody trains, and the sum of its updates."""
    config, learnt = replace(UPDATE_ROUND, update=update), list[SlotSum]()
    network = RoundDevices(config, devices, policy=policy)
    with_an_honest_server(network, _as_it_is, learnt)
    presuppose(len(learnt) == 1, "the updates have a sum")
    return network, learnt[-1]


def _as_it_is(_step: object, _client: ClientId, data: bytes) -> bytes:
    return data


def _signs(network: RoundDevices, revealed: SlotSum) -> Loot:
    """The signs of the numbers of the sum, and those of the last device's update."""
    victim = network.devices[max(network.devices)]
    summed = network.config.update_layout.decode(revealed.vector.astype(np.uint64))["update"]
    return Loot(summed < 0, victim.update < 0, 1)


@attack(
    "coarse-updates",
    19,
    "announces so coarse a resolution that all updates but the heaviest device's round to zero",
    power=Power.SERVER,
    gain="that device's update",
    defence="the device's own limit on the resolution of updates",
    spec="12.14",
    end=Refusal.POLICY,
    saying="update_resolution_bits=0 is below",
)
def coarse_updates(defended: bool) -> Loot:
    """One device has 500 samples and the others have one; updates are summed in whole numbers."""
    policy = POLICY if defended else replace(POLICY, min_update_resolution_bits=0)
    update = replace(UPDATE_ROUND.update, resolution_bits=0)
    network, revealed = _sum_of_updates(update, _one_heavy(0.25, 0.25), policy)
    victim = network.devices[max(network.devices)]
    wanted = victim.measured(network.config).contribution(victim.update).astype(np.uint64)
    taken = revealed.vector.astype(np.uint64)
    bits = network.config.update_layout.ring_bits
    return Loot(taken[:_LENGTH], wanted[:_LENGTH], bits, note="in whole multiples of Δ·500")


@attack(
    "clip-below-the-resolution",
    19,
    "announces so small a clip that all updates but the heaviest device's round to zero",
    power=Power.SERVER,
    gain="the sign of every number of that device's update",
    defence="the device's own limits on the clip of updates",
    spec="12.14",
    end=Refusal.POLICY,
    saying="update_clip=6.10352e-05 is below",
)
def clip_below_the_resolution(defended: bool) -> Loot:
    """The clip is a quarter of a step: a device with one sample contributes zeros."""
    clip = 2.0 ** -(UPDATE_ROUND.update.resolution_bits + 2)
    policy = POLICY if defended else replace(POLICY, min_update_clip=clip)
    update = replace(UPDATE_ROUND.update, clip=clip)
    return _signs(*_sum_of_updates(update, _one_heavy(1.0, 1.0), policy))


@attack(
    "clip-beyond-the-others",
    19,
    "announces a large clip and a model under which one device's update is far larger than others",
    power=Power.SERVER,
    gain="the sign of every number of that device's update",
    defence="the device's own limits on the clip of updates",
    spec="12.14",
    end=Refusal.POLICY,
    saying="update_clip=1.04858e+06 is above",
)
def clip_beyond_the_others(defended: bool) -> Loot:
    """One update is a million times as large as the others."""
    clip = 2.0**20
    policy = POLICY if defended else replace(POLICY, max_update_clip=clip)
    update = replace(UPDATE_ROUND.update, clip=clip)
    return _signs(*_sum_of_updates(update, _one_heavy(1.0, clip), policy))


@attack(
    "tail-of-one-by-a-small-level",
    4,
    "announces so small a θ that the true threshold of an unverified search keeps a single device",
    power=Power.SERVER,
    gain="the update of the device with the largest loss, though not its name",
    defence="a device works out how many devices θ can keep, and insists on two that do not "
    "collude",
    spec="12.14",
    end=Refusal.POLICY,
    saying="fewer than min_honest_tail=2",
)
def tail_of_one_by_a_small_level(defended: bool) -> Loot:
    """All parties follow the protocol."""
    fewest = 2 if defended else 0
    config = replace(WHOLE_ROUND, theta=Fraction(1, 10_000), min_tail=fewest)
    policy = replace(POLICY, min_honest_tail=fewest)
    network, learnt = RoundDevices(config, policy=policy), list[SlotSum]()
    with_an_honest_server(network, _as_it_is, learnt)
    return _alone_in_the_tail(network, config, learnt[-1])


@attack(
    "little-noise",
    14,
    "announces a search by `noisy` with hardly any noise",
    power=Power.SERVER,
    gain="how many devices are between any two pivots, exactly",
    defence="a device that expects noise insists on its own smallest σ",
    spec="12.14",
    end=Refusal.POLICY,
    saying="below that of min_noise=1",
)
def little_noise(defended: bool) -> Loot:
    """The noise has a σ of 2^-20 devices, so that counts are right when they are rounded."""
    config = replace(
        WHOLE_ROUND,
        method="noisy",
        noise=Noise(Fraction(1, 2**40), 3),
        search=replace(WHOLE_ROUND.search, max_queries=1, weighting=Weighting.EQUAL),
    )
    policy = replace(POLICY, min_noise=Fraction(1)) if defended else POLICY
    (pivots,) = {query.pivots} if (query := config.start_search().query) else {()}
    network, learnt = RoundDevices(config, policy=policy), list[SlotSum]()
    with_an_honest_server(network, _as_it_is, learnt)
    sums = config.search_layout.decode(learnt[0].vector.astype(np.uint64))
    counts = np.rint(config.search_layout.to_float("bins", sums["bins"]))
    ticks = [device.measured(config).tick for device in network.devices.values()]
    places = np.searchsorted(np.array(pivots), ticks, side="right")
    wanted = np.bincount(places, minlength=len(counts))
    return Loot(counts.astype(np.int64).astype(np.uint64), wanted.astype(np.uint64), 8)


def _alone_in_the_tail(network: RoundDevices, config: RoundConfig, total: SlotSum) -> Loot:
    """The sum of the updates, beside what the device with the largest loss put into it."""
    victim = network.devices[max(network.devices)]
    return Loot(
        total.vector.astype(np.uint64),
        victim.measured(config).contribution(victim.update),
        config.update_layout.ring_bits,
        read=as_update(victim),
    )
