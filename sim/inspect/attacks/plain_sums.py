"""Attacks on what honest sums say: the server follows the protocol, and thinks about what it gets.

Secure aggregation promises a sum and nothing else. A sum of what was learnt from samples still says
something about them.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData
from deltafl.secagg.errors import present
from deltafl.sim.inspect.attacks.attack import Loot, attack, presuppose
from deltafl.sim.inspect.attacks.learning import (
    NUM_DEVICES,
    RING_BITS,
    Architecture,
    Steps,
    as_numbers,
    learnt,
)
from deltafl.sim.inspect.attacks.own_round import (
    WHOLE_ROUND,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)

_Floats = npt.NDArray[np.float64]

_NOISE: Final = "; what would help is noise that devices add, in rounds that have it"

# --- words that one device has ------------------------------------------------------------------

_COMMON, _OWN_WORDS, _LABELS = 20, 4, 3
_BAG: Final = Architecture("linear", (_COMMON + NUM_DEVICES * _OWN_WORDS,), _LABELS)


@attack(
    10,
    "reads the elements of the sum that belong to rare words (SRATTA)",
    gain="that part of the update of each device that alone has these words, though not its name",
    defence="none: the sum over a cohort is no sum where only one device has a part" + _NOISE,
    spec="14.7",
)
def words_of_one_device(_defended: bool) -> Loot:
    """The model is `linear`, on counts of words, and devices train for two epochs.

    Each device has four words that no other has.
    """
    generator = np.random.default_rng(0)
    x = np.zeros((NUM_DEVICES, 6, *_BAG.input_shape), dtype=np.float32)
    x[..., :_COMMON] = generator.integers(0, 3, (NUM_DEVICES, 6, _COMMON))
    rare = np.arange(_COMMON, _BAG.input_shape[0]).reshape(NUM_DEVICES, _OWN_WORDS)
    for own, words in zip(x, rare, strict=True):
        own[:, words] = generator.integers(1, 3, (6, _OWN_WORDS))
    y = generator.integers(0, _LABELS, (NUM_DEVICES, 6))
    data = [DeviceData(str(k), x[k], y[k]) for k in range(NUM_DEVICES)]
    found = learnt(_BAG, _BAG.first(), data, Steps(batch_size=2, epochs=2, rate=0.1))
    wanted = [
        vector.reshape(_LABELS, -1)[:, words] for vector, words in zip(found.own, rare, strict=True)
    ]
    return Loot(
        found.words.reshape(_LABELS, -1)[:, _COMMON:].ravel().astype(np.uint32),
        np.concatenate(wanted, axis=1).ravel().astype(np.uint32),
        RING_BITS,
        note=f"{rare.size} of {len(x[0, 0])} words belong to one device each",
        read=as_numbers,
    )


# --- labels and members -------------------------------------------------------------------------

_WITH_BIAS: Final = Architecture("logistic-bias", (8,), 4)


@attack(
    18,
    "announces the model that training begins with, and reads the sum of the last layer's biases",
    gain="how many samples of each label the devices that trained have together",
    defence="none: the biases' gradient is the labels' count, less what the model expects" + _NOISE,
    spec="14.7",
)
def labels_counted(_defended: bool) -> Loot:
    """The model is `logistic-bias`. Devices take one step, on all of their samples."""
    generator = np.random.default_rng(0)
    x = generator.random((NUM_DEVICES, 30, 8), dtype=np.float32)
    y = generator.integers(0, generator.integers(1, 5, (NUM_DEVICES, 1)), (NUM_DEVICES, 30))
    data = [DeviceData(str(k), x[k], y[k]) for k in range(NUM_DEVICES)]
    found = learnt(_WITH_BIAS, _WITH_BIAS.first(), data)
    counts = np.rint(found.update[-4:] + found.weight / 4)
    return Loot(
        counts.astype(np.uint32),
        np.bincount(y.ravel(), minlength=4).astype(np.uint32),
        RING_BITS,
        note=f"the samples of {NUM_DEVICES} devices by label",
    )


_NUMBERS, _PER_DEVICE = 1024, 4
_WIDE: Final = Architecture("linear", (_NUMBERS,), 4)


@attack(
    18,
    "compares the sum with the gradients of samples that it has itself",
    gain="which of these samples some device trained on (membership), though not which device",
    defence="none: larger cohorts hide a sample among others, and models with more weights than "
    "there are samples undo that" + _NOISE,
    spec="14.7",
)
def members_of_the_cohort(_defended: bool, seed: int = 0) -> Loot:
    """The model is `linear`, with 4,096 weights, and the devices have 20 samples together.

    Of the 40 samples that the server has, they have the first 20.
    """
    generator = np.random.default_rng(seed)
    num = NUM_DEVICES * _PER_DEVICE
    x = generator.choice(np.array([-1, 1], dtype=np.float32), (2 * num, _NUMBERS))
    y = generator.integers(0, 4, 2 * num)
    data = [
        DeviceData(str(k), x[k::NUM_DEVICES][:_PER_DEVICE], y[k::NUM_DEVICES][:_PER_DEVICE])
        for k in range(NUM_DEVICES)
    ]
    update = learnt(_WIDE, _WIDE.first(), data, Steps(batch_size=2, rate=0.001)).update
    directions = (np.eye(4)[y] - 1 / 4)[:, :, None] * x[:, None, :]  # the gradients, turned around
    parts = directions.reshape(len(x), -1) @ update
    own = np.square(directions).sum((1, 2)) * 0.001 * _PER_DEVICE / 2  # of a member, by itself
    return Loot(
        parts > own / 2,
        np.arange(len(x)) < num,
        ring_bits=1,
        note="which of 40 samples were trained on",
    )


_PROPERTY: Final = 0
"""A feature that is 1 in some samples of some devices."""
_STEEP: Final = 50.0


@attack(
    18,
    "announces a model whose loss is large on samples with a certain property",
    gain="how many devices own such a sample, and the sum of the updates of these devices alone",
    defence="none: the tail is where the model is worst, and the server chooses the model; what "
    "helps is a large min_honest_tail",
    spec="14.7",
)
def tail_of_owners(_defended: bool) -> Loot:
    """The model is `logistic-bias`; the search is honest and verified, and asks for θ = 1/2."""
    generator = np.random.default_rng(0)
    x = generator.random((NUM_DEVICES, 4, 8), dtype=np.float32)
    x[..., _PROPERTY] = 0
    owners = (1, 2, 3)
    for owner in owners:
        x[owner, 2, _PROPERTY] = 1
    y = generator.integers(0, 3, (NUM_DEVICES, 4))
    data = [DeviceData(str(k), x[k], y[k]) for k in range(NUM_DEVICES)]
    model = np.zeros((4, 8), dtype=np.float32)
    model[3, _PROPERTY] = _STEEP  # a label that no sample has
    vector = np.append(model, np.zeros(4, dtype=np.float32)).astype(np.float32)
    found = learnt(_WITH_BIAS, vector, data, theta=Fraction(1, 2))
    wanted = np.sum([found.own[owner] for owner in owners], axis=0, dtype=np.uint32)
    return Loot(
        np.append(found.words, found.count).astype(np.uint32),
        np.append(wanted, len(owners)).astype(np.uint32),
        RING_BITS,
        note="the sum of the owners' updates, and how many they are",
    )


# --- tails from counts --------------------------------------------------------------------------

_ROUNDS, _PERIOD = 12, 3


@attack(
    12,
    "learns beside the protocol how often each device has trained, every three rounds of twelve, "
    "and solves for the tails (Lam et al. 2021)",
    gain="which devices were in the tail of which round, and every update that stays the same",
    defence="none: counts that devices report elsewhere are no part of the protocol; do not "
    "collect them",
    spec="9.5",
)
def tails_from_counts(_defended: bool, seed: int = 0) -> Loot:
    """One cohort, and honest searches; losses change from round to round, updates do not."""
    generator = np.random.default_rng(seed)
    devices = make_devices(WHOLE_ROUND)
    sums, trained = [], []
    for index in range(_ROUNDS):
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
    length, layout = WHOLE_ROUND.update_length, WHOLE_ROUND.update_layout
    own = [d.measured(WHOLE_ROUND).contribution(d.update)[:length] for d in devices.values()]
    words = updates.astype(np.int64).astype(np.uint64) & np.uint64(2**layout.ring_bits - 1)
    return Loot(
        np.concatenate([found.astype(np.uint64).ravel(), words.ravel()]),
        np.concatenate([np.array(trained, dtype=np.uint64).ravel(), *own]),
        layout.ring_bits,
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
