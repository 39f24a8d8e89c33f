"""Attacks on verified searches, and what these do not prevent: a server that wants a small tail."""

from dataclasses import replace
from fractions import Fraction
from typing import Final

from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import Refusal, ring, wire
from deltafl.secagg.messages import SumOpening
from deltafl.sim.inspect.attacks.attack import Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import (
    ACTIVE,
    MODEL,
    QUORUM,
    VERIFIED_ROUND,
    as_update,
    make_devices,
)
from deltafl.sim.inspect.attacks.steering import Shown, Steering, ring_sum

_UPDATE: Final = "the update of the device with the largest loss, though not its name"


@attack(
    4,
    "announces to all devices one threshold that only a single device passes (a tail of one)",
    gain=_UPDATE,
    defence="verified searches: a device works out the threshold itself, from sums that are proved",
    spec="12.12",
    end=Refusal.NOT_FOLLOWING,
    saying="where the sums give",
)
def tail_of_one_device(defended: bool) -> Loot:
    """All devices are shown the same threshold, so that the masks cancel.

    Without the defence, devices take the server's word for it, though they expect an active server.
    """
    if defended:
        steering = Steering()
        steering.run()
    else:
        search = replace(VERIFIED_ROUND.search, verified=False)
        policy = replace(ACTIVE, unverified_if_active=True)
        steering = Steering(replace(VERIFIED_ROUND, search=search), policy=policy, threshold=QUORUM)
    return steering.update(Threshold(2 * steering.highest, 0))


@attack(
    13,
    "announces a model twice, the second time with one bit changed and a smaller θ, so that the "
    "tails differ by one device",
    gain="that device's update, as the difference of the two",
    defence="none: each of the two tails is large enough, and devices cannot judge which change of "
    "a model is too small",
    spec="12.11",
)
def two_tails_of_almost_one_model(_defended: bool) -> Loot:
    """Both searches are honest and verified, and nobody drops out.

    Two levels of one session would do as well.
    """
    sums, enrolment = [], None
    almost = bytes([MODEL[0] ^ 1]) + MODEL[1:]
    devices = {i: replace(one, weight=100) for i, one in make_devices(VERIFIED_ROUND).items()}
    for model, theta in ((MODEL, Fraction(3, 4)), (almost, Fraction(1, 2))):
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
    4,
    "has its own device commit to false values, so that the sums show a tail of two with the "
    "largest loss where there is one",
    gain=_UPDATE,
    defence="none: nothing proves that what a device commits to is true or in range; what helps is "
    "who admits devices",
    spec="12.12",
)
def tail_of_one_with_a_colluder(_defended: bool) -> Loot:
    """The server waits for the sum of the others before its device commits to the difference."""
    steering = Steering(num_colluders=1)
    steering.run(_steer)
    tail = steering.search.result().tail
    presuppose(tail is not None and tail.fewest >= 2, "two devices seem to be in the tail")
    return steering.update()


@attack(
    4,
    "claims that a device has dropped out during a verified search, and goes on to the update",
    gain="the sum over a tail that is too large: all devices from the highest pivot that is known "
    "to be safe, less those that it calls lost",
    defence="none: nobody can tell whether a device is gone; the server cannot choose the "
    "threshold",
    spec="12.12",
)
def search_ended_early(_defended: bool) -> Loot:
    """Two queries are asked and proved, and the first device is called lost."""
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
    14,
    "follows a verified search, as every device of it does",
    power=Power.PEER,
    gain="the sums of all queries, which only the server learns in other searches",
    defence="none: devices check what they know; a search that is not verified tells them nothing",
    spec="12.12",
)
def sums_of_a_verified_search(_defended: bool) -> Loot:
    """The attacker is the device with the smallest loss, and the sum is that of the last query."""
    steering = Steering()
    steering.run()
    steering.update()
    layout, params = steering.config.search_layout, steering.network.params
    opening = wire.decode(steering.proofs[-1], params)
    presuppose(isinstance(opening, SumOpening), "the last sum was proved")
    packed = opening.packed if isinstance(opening, SumOpening) else b""
    spec = params.slots[len(steering.asked) - 1]
    proved = ring.unpack(packed, spec.wire_length, spec.ring_bits)[: spec.length]
    answers = [d.measured(steering.config).answer(steering.asked[-1]) for d in steering.devices]
    return Loot(
        proved,
        steering.total(answers),
        layout.ring_bits,
        note="the sum of the last query: weight, number, and both below the pivot",
    )
