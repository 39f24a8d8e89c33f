"""Attacks on the tail, and what is not prevented: a server that wants the sum of a small one.

In the first ones all follow the protocol, but for what some devices claim of their data, and the
server pools what it learns with its own devices. Without the defence, neither it nor any device
counts the tail (`min_tail` = 0, `min_honest_tail` = 0). In the others, the server asks what it
likes in a search that devices follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.selection import Threshold
from deltafl.secagg import Adversary, ClientId, Refusal, Stage, Step, ring, wire
from deltafl.secagg.errors import present
from deltafl.secagg.messages import SumOpening
from deltafl.sim.inspect.attacks.attack import (
    Attack,
    Left,
    Loot,
    NotPlayed,
    Power,
    harm,
    presuppose,
    told,
)
from deltafl.sim.inspect.attacks.own_round import (
    ACTIVE,
    MODEL,
    NEARLY_MODEL,
    POLICY,
    QUORUM,
    VERIFIED_ROUND,
    WHOLE_ROUND,
    Device,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.own_session import new_enrolment
from deltafl.sim.inspect.attacks.steering import Steering

# --- what devices claim of their data -----------------------------------------------------------

_SIZE: Final = 10
_QUORUM: Final = 9
_WEIGHT: Final = 100
_LARGEST: Final = 7.9  # losses are told apart up to 8
_HALF: Final = Fraction(1, 2)
_ROUND: Final = replace(WHOLE_ROUND, cohort_size=_SIZE)
_SEARCH: Final = replace(WHOLE_ROUND.search, min_cohort=_QUORUM, verified=True)
_VERIFIED: Final = replace(_ROUND, search=_SEARCH)
_PROVED: Final = replace(_ROUND, search=replace(_SEARCH, proved=True))
_CURIOUS: Final = replace(POLICY, colluding_rate=0.2, min_honest_tail=2)
_ACTIVE: Final = replace(ACTIVE, colluding_rate=0.2, min_honest_tail=2)
"""Of ten devices, two may collude, and two others are to be in every tail."""
_NOBODY: Final[Mapping[ClientId, Step]] = {}
_Floats = npt.NDArray[np.float64]
_UPDATE: Final = "the update and the weight of that device, once its own devices' are subtracted"


def _devices(weights: Sequence[int]) -> dict[ClientId, Device]:
    """Ten devices, whose losses rise with their ids and stay below the bound."""
    made = sorted(make_devices(_ROUND).items())
    return {
        client: replace(one, loss=0.7 * (rank + 1), weight=weight)
        for rank, ((client, one), weight) in enumerate(zip(made, weights, strict=True))
    }


def _claiming(loss: float, weight: int) -> dict[ClientId, Device]:
    """Ten devices, of which the first two collude: they claim this loss and weight."""
    devices = _devices([_WEIGHT] * _SIZE)
    for client in sorted(devices)[:2]:
        devices[client] = replace(devices[client], loss=loss, weight=weight)
    return devices


def _alone(
    defended: bool,
    devices: Mapping[ClientId, Device],
    config: RoundConfig = _ROUND,
    policy: RoundPolicy = _CURIOUS,
    *,
    num_own: int = 2,
    gone: Mapping[ClientId, Step] = _NOBODY,
    thetas: Sequence[Fraction] = (),
) -> Loot:
    """Whether a sum is one device's, or the difference of two levels', less the server's devices'.

    Args:
        defended: Whether the tail is counted.
        devices: Who takes part.
        config: Of the round.
        policy: Of the devices.
        num_own: How many devices are the server's: the first ones.
        gone: Who drops out, and before which of its messages.
        thetas: Of the levels, if there are two.
    """
    if not defended:
        policy = replace(policy, min_honest_tail=0)
    network = RoundDevices(
        replace(config, min_tail=policy.min_tail(_SIZE)),
        devices,
        policy=policy,
        threshold=_QUORUM,
        model=MODEL + NEARLY_MODEL if thetas else MODEL,
        thetas=thetas,
    )
    _, learnt = with_an_honest_server(network, gone=gone)
    layout = config.update_layout
    sums = [one.vector.astype(np.uint64) for one in learnt if len(one.vector) == layout.length]
    if thetas:
        presuppose(len(sums) >= 1, "the first level has a sum of updates")
        sums = [sums[0] - one for one in sums[1:]]
    each = [devices[i].measured(config).contribution(devices[i].update) for i in sorted(devices)]
    known = sum((one.astype(np.uint64) for one in each[:num_own]), np.uint64(0))
    ends = [words for last in sums[-1:] for words in (last, last - known)]
    found = [Loot(end, one, layout.ring_bits) for end in ends for one in each[num_own:]]
    return harm(any(loot.is_complete for loot in found))


@Attack(
    4,
    "12.14",
    Refusal.POLICY,
    saying="2 of 10 may collude, which leaves fewer than min_honest_tail=2",
)
@told(
    "has its devices claim the largest loss, where θ is so small that one other is in the tail",
    gain=_UPDATE,
    defence="a device works out how many devices θ keeps besides those that may collude",
)
def tail_of_one_by_claimed_losses(defended: bool) -> Loot:
    """A fifth of ten devices is kept, which are three: two of the server's, and the worst."""
    config = replace(_ROUND, theta=Fraction(1, 5))
    return _alone(defended, _claiming(_LARGEST, _WEIGHT), config)


@Attack(4, "12.9", Left.BOUNDED)
@told(
    "has its devices claim the largest loss and, with one other device, half of the weight",
    gain=_UPDATE,
    defence="the search keeps more devices than θ does where too few are left",
)
def tail_of_one_by_claimed_weights(defended: bool) -> Loot:
    """The search is not verified, and the server an honest one."""
    return _alone(defended, _claiming(_LARGEST, 380))


@Attack(4, "12.12", Left.BOUNDED)
@told(
    "does the same in a verified search with proved votes, which every device follows",
    gain=_UPDATE,
    defence="the search keeps more devices than θ does, and devices count them",
)
def verified_tail_of_one_by_claimed_weights(defended: bool) -> Loot:
    """The votes are valid: a proof does not say that a loss is true."""
    return _alone(defended, _claiming(_LARGEST, 380), _PROVED, _ACTIVE)


@Attack(4, "12.9", Left.BOUNDED)
@told(
    "takes the sum of a tail of one device, with half of all samples and the largest loss",
    gain="the update and the weight of that device",
    defence="the search keeps more devices than θ does where too few are left",
)
def tail_of_one_heavy_device(defended: bool) -> Loot:
    """Weights are numbers of samples, as by default."""
    return _alone(defended, _devices([40] * (_SIZE - 1) + [500]), num_own=0)


@Attack(4, "12.9", Left.BOUNDED)
@told(
    "goes on after one of the tail's two honest devices has dropped out; its own are the rest",
    gain="the update and the weight of the other, once its own devices' are subtracted",
    defence="a round ends if too few are left, should all that were lost have been in the tail",
)
def tail_shrunk_by_drop_outs(defended: bool) -> Loot:
    """The search is not verified, and the server an honest one, whose round is lost."""
    devices = _claiming(_LARGEST, 300)
    gone = {sorted(devices)[-2]: Step(Stage.MASK, _ROUND.update_slot)}
    return _alone(defended, devices, gone=gone)


@Attack(13, "12.11", Left.BOUNDED)
@told(
    "has its devices claim the least loss and much weight, so that two tails differ by one other",
    gain="that device's update, as the difference of the sums, if the levels' models hardly differ",
    defence="a level ends if too few devices are in the difference besides those that may collude",
)
def difference_of_one_by_claimed_weights(defended: bool) -> Loot:
    """The searches are not verified, and the server an honest one."""
    return _alone(defended, _claiming(0.1, 250), thetas=(Fraction(1), _HALF))


@Attack(13, "12.12", Left.BOUNDED)
@told(
    "plays two levels of nearly one model that differ by one device, and loses one of neither",
    gain="that device's update, as the difference of the sums",
    defence="the first tail is counted with all that were lost, and without them",
)
def difference_of_one_by_a_drop_out(defended: bool) -> Loot:
    """The searches are verified; nobody lies, and nobody colludes.

    The device is lost with its answer to the second query of the first level.
    """
    devices = _devices([10, 100, 500] + [50] * 7)
    gone = {min(devices): Step(Stage.MASK, 1)}
    policy, thetas = replace(_ACTIVE, colluding_rate=0.0), (Fraction(4, 5), _HALF)
    return _alone(defended, devices, _VERIFIED, policy, num_own=0, gone=gone, thetas=thetas)


# --- what a server asks -------------------------------------------------------------------------

_WORST: Final = "the update of the device with the largest loss, though not its name"


@Attack(4, "12.12", Refusal.NOT_FOLLOWING, saying="where the sums give")
@told(
    "announces to all devices one threshold that only a single device passes (a tail of one)",
    gain=_WORST,
    defence="verified searches: a device works out the threshold itself, from sums that are proved",
)
def tail_of_one_device(defended: bool) -> Loot:
    """All devices are shown the same threshold, so that the masks cancel.

    Without the defence, devices expect a curious server, and take its word for it.
    """
    if defended:
        steering = Steering(RoundDevices(VERIFIED_ROUND))
        steering.run()
    else:
        policy = replace(ACTIVE, adversary=Adversary.CURIOUS)
        config = replace(VERIFIED_ROUND, search=replace(VERIFIED_ROUND.search, verified=False))
        steering = Steering(RoundDevices(config, policy=policy, threshold=QUORUM))
    return steering.update(Threshold(2 * steering.highest, 0))


@Attack(13, "12.11")
@told(
    "announces a model twice, with a bit changed and a smaller θ: the tails differ by one device",
    gain="that device's update, as the difference of the two",
    defence="none: each tail is large enough, and no device can judge which change is too small",
)
def two_tails_of_almost_one_model(_defended: bool) -> Loot:
    """Both searches are honest and verified, and nobody drops out.

    Two levels of one session would do as well.
    """
    sums, enrolment = [], new_enrolment()
    devices = {i: replace(one, weight=100) for i, one in make_devices(VERIFIED_ROUND).items()}
    for model, theta in ((MODEL, Fraction(3, 4)), (NEARLY_MODEL, _HALF)):
        config = replace(VERIFIED_ROUND, theta=theta)
        steering = Steering(RoundDevices(config, devices, model=model, enrolment=enrolment))
        steering.run()
        sums.append(steering.update().taken)
        tail = steering.search.result().tail
        presuppose(tail is not None and tail.fewest >= 2, "the tail is large enough")
    return steering.loot(sums[0] - sums[1], steering.devices[1])


@Attack(4, "12.12")
@told(
    "has its own device commit to false values: sums show a tail of two where there is one",
    gain=_WORST,
    defence="none: nothing proves what a commitment is to; what helps is who admits devices",
)
def tail_of_one_with_a_colluder(_defended: bool) -> Loot:
    """The server waits for the sum of the others before its device commits to the difference."""
    steering = Steering(RoundDevices(VERIFIED_ROUND), num_colluders=1)
    steering.run()
    tail = steering.search.result().tail
    presuppose(tail is not None and tail.fewest >= 2, "two devices seem to be in the tail")
    return steering.update()


@Attack(4, "12.12")
@told(
    "claims that a device has dropped out during a verified search, and goes on to the update",
    gain="the sum over a tail that is too large, less the devices that it calls lost",
    defence="none: nobody can tell whether a device is gone; but the threshold is a safe one",
)
def search_ended_early(_defended: bool) -> Loot:
    """Two queries are asked and proved, and the first device is called lost."""
    steering = Steering(RoundDevices(VERIFIED_ROUND))
    steering.run(most=2)
    threshold = steering.search.result(shrank=True).threshold
    loot = steering.update(threshold, cohort=steering.evil.everyone - {0})
    own = [(one, one.measured(steering.config)) for one in steering.devices[1:]]
    kept = [part.contribution(one.update) for one, part in own if part.passes(threshold)]
    presuppose(len(kept) > 2, "the tail is larger than that of the whole search")
    note = f"{len(kept)} devices are in the tail, from {threshold.eta_half_ticks // 2} ticks on"
    return replace(loot, wanted=np.stack(kept).sum(axis=0, dtype=np.uint64), note=note, unit=0.0)


@Attack(14, "12.12", power=Power.PEER)
@told(
    "follows a verified search, as every device of it does",
    gain="the sums of all queries, which only the server learns in other searches",
    defence="none: devices check what they know; a search that is not verified tells them nothing",
)
def sums_of_a_verified_search(_defended: bool) -> Loot:
    """The attacker is the device with the smallest loss, and the sum is that of the last query."""
    steering = Steering(RoundDevices(VERIFIED_ROUND))
    steering.run()
    steering.update()
    params = steering.network.params
    opening, spec = wire.decode(steering.proof, params), params.slots[len(steering.asked) - 1]
    if not isinstance(opening, SumOpening):
        raise NotPlayed("the last sum was not proved")
    answers = [d.measured(steering.config).answer(steering.asked[-1]) for d in steering.devices]
    return Loot(
        ring.unpack(opening.packed, spec.wire_length, spec.ring_bits)[: spec.length],
        np.stack(answers).sum(axis=0),
        spec.ring_bits,
        note="the sum of the last query: weight, number, and both below the pivot",
    )


# --- tails from counts --------------------------------------------------------------------------

_NUM_ROUNDS, _PERIOD = 12, 3


@Attack(12, "9.5")
@told(
    "learns beside the protocol how often each device has trained, every three rounds of twelve, "
    "and solves for the tails (Lam et al. 2021)",
    gain="which devices were in the tail of which round, and every update that stays the same",
    defence="none: counts reported elsewhere are no part of the protocol; do not collect them",
)
def tails_from_counts(_defended: bool, seed: int = 0) -> Loot:
    """One cohort, and honest searches; losses change from round to round, updates do not."""
    generator = np.random.default_rng(seed)
    devices = make_devices(WHOLE_ROUND)
    sums, trained = [], []
    for index in range(_NUM_ROUNDS):
        config = replace(WHOLE_ROUND, round_index=index)
        losses = generator.permutation([device.loss for device in devices.values()])
        given = {
            client: replace(device, loss=float(loss))
            for (client, device), loss in zip(devices.items(), losses, strict=True)
        }
        parties = RoundDevices(config, given, model=index.to_bytes(4, "big"))
        outcome, learnt_sums = with_an_honest_server(parties)
        sums.append(config.update_layout.decode(learnt_sums[-1].vector)["update"])
        threshold = present(outcome.search).threshold
        trained.append([one.measured(config).passes(threshold) for one in given.values()])
    known = _by_period(np.array(trained, dtype=np.float64))
    found = _tails(np.array(sums, dtype=np.float64), known)
    updates = np.rint(np.linalg.lstsq(found, np.array(sums, dtype=np.float64), rcond=None)[0])
    length = WHOLE_ROUND.update_length
    own = [d.measured(WHOLE_ROUND).contribution(d.update)[:length] for d in devices.values()]
    return Loot(
        np.append(found, updates).astype(np.int64),
        np.concatenate([np.ravel(trained), *own]),
        WHOLE_ROUND.update_layout.ring_bits,
        note="who trained in which round, and the updates",
    )


def _by_period(columns: _Floats) -> _Floats:
    """How often each column has a one in each period."""
    counts: _Floats = columns.reshape(-1, _PERIOD, columns.shape[1]).sum(1)
    return counts


def _tails(sums: _Floats, counts: _Floats) -> _Floats:
    """Who trained when, [rounds, devices], from sums and counts.

    A device's column is a combination of the sums' columns. Of columns of zeros and ones, few are.

    Args:
        sums: Of the updates, [rounds, update_length].
        counts: How often each device trained in each period, [periods, devices].

    Raises:
        NotPlayed: no column fits a device's counts, or several do.
    """
    left, singular, _ = np.linalg.svd(sums, full_matrices=False)
    basis = left[:, singular > 1e-9 * singular[0]]
    possible = np.array(list(product((0.0, 1.0), repeat=len(sums)))).T
    apart = np.abs(possible - basis @ (basis.T @ possible)).max(0)
    combined = possible[:, apart < 1e-6]
    told, columns = _by_period(combined), []
    for count in counts.T:
        fitting = combined[:, (told == count[:, None]).all(0)]
        presuppose(fitting.shape[1] == 1, "one column fits the counts of a device")
        columns.append(fitting[:, 0])
    return np.array(columns).T
