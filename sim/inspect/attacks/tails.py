"""Attacks on the tail: all follow the protocol, but for what some devices claim of their data.

The server pools what it learns with its own devices. Without the defence, neither it nor any device
counts the tail (`min_tail` = 0, `min_honest_tail` = 0).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import ClientId, Refusal, Stage, Step
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Harm, Left, attack, presuppose
from deltafl.sim.inspect.attacks.own_round import (
    ACTIVE,
    MODEL,
    POLICY,
    WHOLE_ROUND,
    Device,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)

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
_TWO_MODELS: Final = b"model Amodel B"
Gone = Mapping[ClientId, Step]
"""Who drops out, and before which of its messages."""
_NOBODY: Final[Gone] = {}


def _devices(loss: float = _LARGEST, weight: int = _WEIGHT) -> dict[ClientId, Device]:
    """Ten devices, of which the first two collude: they claim this loss and weight."""
    devices = _honest([_WEIGHT] * _SIZE)
    for client in _colluders(devices):
        devices[client] = replace(devices[client], loss=loss, weight=weight)
    return devices


def _honest(weights: Sequence[int]) -> dict[ClientId, Device]:
    """Ten devices, whose losses rise with their ids and stay below the bound."""
    made = sorted(make_devices(_ROUND).items())
    return {
        client: replace(one, loss=0.7 * (rank + 1), weight=weight)
        for rank, ((client, one), weight) in enumerate(zip(made, weights, strict=True))
    }


def _colluders(devices: Collection[ClientId]) -> list[ClientId]:
    return sorted(devices)[:2]


def _sums_of_updates(
    config: RoundConfig,
    policy: RoundPolicy,
    devices: Mapping[ClientId, Device],
    *,
    defended: bool,
    gone: Gone = _NOBODY,
    thetas: Sequence[Fraction] = (),
) -> list[Vector]:
    """What the server learns of the updates, level by level, as far as the round goes.

    Raises:
        PeerError: a device refuses.
    """
    if not defended:
        policy = replace(policy, min_honest_tail=0)
    config = replace(config, min_tail=policy.min_tail(_SIZE))
    network = RoundDevices(
        config,
        devices,
        policy=policy,
        threshold=_QUORUM,
        model=_TWO_MODELS if thetas else MODEL,
        thetas=thetas,
    )
    levels = network.levels
    _, learnt = with_an_honest_server(network, gone=gone, keeps_cohort=policy.expects_active)
    last = [levels.first_slot(n) + one.update_slot for n, one in enumerate(levels.rounds)]
    return [one.vector.astype(np.uint64) for one in learnt if one.slot in last]


def _outcome(
    sums: Sequence[Vector],
    config: RoundConfig,
    devices: Mapping[ClientId, Device],
    own: Collection[ClientId] | None = None,
) -> Harm:
    """Whether the last of the sums is one device's, with or without what the server's own added.

    Args:
        sums: What was learnt.
        config: Of the round.
        devices: Who took part.
        own: The server's devices; by default, those that collude.
    """
    own = _colluders(devices) if own is None else own
    ring = np.uint64(2**config.update_layout.ring_bits - 1)
    each = {i: one.measured(config).contribution(one.update) for i, one in devices.items()}
    known = sum((each[client].astype(np.uint64) for client in own), np.uint64(0))
    taken = [left for words in sums[-1:] for left in (words, (words - known) & ring)]
    others = [vector for client, vector in each.items() if client not in own]
    return Harm(done=any(np.array_equal(words, one) for words in taken for one in others))


def _by_claimed_weights(config: RoundConfig, policy: RoundPolicy, *, defended: bool) -> Harm:
    devices = _devices(weight=380)
    sums = _sums_of_updates(config, policy, devices, defended=defended)
    return _outcome(sums, config, devices)


@attack(
    4,
    "has the devices that may collude claim the largest loss, in a round of so small a θ that one "
    "other device is in the tail",
    gain="the update and the weight of that device, once its own devices' are subtracted",
    defence="a device works out how many devices θ keeps besides those that may collude",
    spec="12.14",
    end=Refusal.POLICY,
    saying="2 of 10 may collude, which leaves fewer than min_honest_tail=2",
)
def tail_of_one_by_claimed_losses(defended: bool) -> Harm:
    """A fifth of ten devices is kept, which are three: two of the server's, and the worst."""
    config, devices = replace(_ROUND, theta=Fraction(1, 5)), _devices()
    return _outcome(_sums_of_updates(config, _CURIOUS, devices, defended=defended), config, devices)


@attack(
    4,
    "has the devices that may collude claim the largest loss and much weight, so that half of the "
    "weight is theirs and one other device's",
    gain="the update and the weight of that device, once its own devices' are subtracted",
    defence="the search keeps more devices than θ does where too few are left",
    spec="12.9",
    end=Left.BOUNDED,
)
def tail_of_one_by_claimed_weights(defended: bool) -> Harm:
    """The search is not verified, and the server an honest one."""
    return _by_claimed_weights(_ROUND, _CURIOUS, defended=defended)


@attack(
    4,
    "does the same in a verified search, which every device follows",
    gain="the update and the weight of that device, once its own devices' are subtracted",
    defence="the search keeps more devices than θ does, and devices count them",
    spec="12.12",
    end=Left.BOUNDED,
)
def verified_tail_of_one_by_claimed_weights(defended: bool) -> Harm:
    """All that the colluding devices say is what a device may say."""
    return _by_claimed_weights(_VERIFIED, _ACTIVE, defended=defended)


@attack(
    4,
    "does the same in a verified search with proved votes",
    gain="the update and the weight of that device, once its own devices' are subtracted",
    defence="the search keeps more devices than θ does, and devices count them",
    spec="12.12",
    end=Left.BOUNDED,
)
def proved_tail_of_one_by_claimed_weights(defended: bool) -> Harm:
    """The votes are valid: a proof does not say that a loss is true."""
    return _by_claimed_weights(_PROVED, _ACTIVE, defended=defended)


@attack(
    4,
    "takes the sum of a tail that is a single device: one with half of all samples, and the "
    "largest loss; nobody lies",
    gain="the update and the weight of that device",
    defence="the search keeps more devices than θ does where too few are left",
    spec="12.9",
    end=Left.BOUNDED,
)
def tail_of_one_heavy_device(defended: bool) -> Harm:
    """Weights are numbers of samples, as by default."""
    devices = _honest([40] * (_SIZE - 1) + [500])
    sums = _sums_of_updates(_ROUND, _CURIOUS, devices, defended=defended)
    return _outcome(sums, _ROUND, devices, own=())


@attack(
    4,
    "goes on with the update after one of two honest devices of the tail has dropped out, where "
    "its own devices are the rest",
    gain="the update and the weight of the other, once its own devices' are subtracted",
    defence="a round ends if too few are left, should all that were lost have been in the tail",
    spec="12.9",
    end=Left.BOUNDED,
)
def tail_shrunk_by_drop_outs(defended: bool) -> Harm:
    """The search is not verified, and the server an honest one, whose round is lost."""
    devices = _devices(weight=300)
    gone = {sorted(devices)[-2]: Step(Stage.MASK, _ROUND.update_slot)}
    sums = _sums_of_updates(_ROUND, _CURIOUS, devices, defended=defended, gone=gone)
    return _outcome(sums, _ROUND, devices)


@attack(
    13,
    "has the devices that may collude claim the smallest loss and much weight, so that they and "
    "one other device are in the tail of one level and not of the next",
    gain="that device's update, as the difference of the sums, if the levels' models hardly differ",
    defence="a level ends if too few devices are in the difference besides those that may collude",
    spec="12.11",
    end=Left.BOUNDED,
)
def difference_of_one_by_claimed_weights(defended: bool) -> Harm:
    """The searches are not verified, and the server an honest one."""
    devices = _devices(loss=0.1, weight=250)
    thetas = Fraction(1), _HALF
    sums = _sums_of_updates(_ROUND, _CURIOUS, devices, defended=defended, thetas=thetas)
    return _outcome(_differences(sums, _ROUND), _ROUND, devices)


@attack(
    13,
    "plays two levels of nearly one model whose tails differ by one device, and loses a device "
    "that was in neither, so that the number of the first tail is not known",
    gain="that device's update, as the difference of the sums",
    defence="the first tail is counted with all that were lost, and without them",
    spec="12.12",
    end=Left.BOUNDED,
)
def difference_of_one_by_a_drop_out(defended: bool) -> Harm:
    """The searches are verified; nobody lies, and nobody colludes.

    The device is lost with its answer to the second query of the first level.
    """
    devices = _honest([10, 100, 500] + [50] * 7)
    gone = {min(devices): Step(Stage.MASK, 1)}
    policy = replace(_ACTIVE, colluding_rate=0.0)
    sums = _sums_of_updates(
        _VERIFIED, policy, devices, defended=defended, gone=gone, thetas=(Fraction(4, 5), _HALF)
    )
    return _outcome(_differences(sums, _VERIFIED), _VERIFIED, devices, own=())


def _differences(sums: Sequence[Vector], config: RoundConfig) -> list[Vector]:
    """The first level's sum less each other."""
    presuppose(len(sums) >= 1, "the first level has a sum of updates")
    ring = np.uint64(2**config.update_layout.ring_bits - 1)
    return [(sums[0] - one) & ring for one in sums[1:]]
