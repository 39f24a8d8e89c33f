"""Attacks on what sums of updates say: of samples that a model has learnt from, and with noise.

Devices train a model of the project on samples of their own, in a round with every defence: the
session is signed, and the sum is over five devices that expect an active server. The server
announces whatever model it likes and follows the protocol, so that nobody can refuse anything.

Secure aggregation hides which device has which part of a sum. It promises nothing else: a sum of
what was learnt from samples still says something about them. If only one sample in the cohort has
any part in some of its elements, these elements are that sample's, and the server chooses the model
that decides which sample has a part in what. All devices are shown the same model.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.vectors import Vector
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.update_noise import Sizes, UpdateNoise
from deltafl.secagg import ClientId, Refusal, ring
from deltafl.secagg.errors import present
from deltafl.secagg.ring import Vector as Words
from deltafl.sim.inspect.attacks.attack import Attack, Loot, harm, presuppose, signed, told
from deltafl.sim.inspect.attacks.own_round import (
    POLICY,
    UPDATE_ROUND,
    VERIFIED_ROUND,
    Device,
    RoundDevices,
    make_devices,
    noise_of,
    with_an_honest_server,
)

if TYPE_CHECKING:
    from deltafl.fl.local import Learner, LocalTraining

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.floating[Any]]

NUM_DEVICES: Final = VERIFIED_ROUND.cohort_size
"""In a round."""
_UPDATE: Final = UpdateParams(clip=4.0, resolution_bits=16, max_weight=1000)
_UNIT: Final = 2.0**-_UPDATE.resolution_bits
_RING_BITS: Final = 32
"""Of a sum of updates."""


@dataclass(frozen=True, eq=False)
class Learnt:
    """What the server has after a round.

    Attributes:
        words: Σ n_k·Δ_k in units of 2^-resolution_bits, as the session revealed it; words of a
            ring of 32 bits.
        own: For comparison, the same words of each device alone, [devices, words].
        weight: Σ n_k of the devices that trained.
        count: How many they are.
    """

    words: Words
    own: npt.NDArray[np.uint64]
    weight: int
    count: int

    @property
    def update(self) -> _Floats:
        """Σ n_k·Δ_k."""
        return signed(self.words, _RING_BITS) * _UNIT


def learnt(
    name: str,
    x: npt.NDArray[np.generic],
    y: npt.NDArray[np.int64],
    model: Vector | None = None,
    *,
    num_classes: int = 4,
    batch_size: int = 500,
    epochs: int = 1,
    rate: float = 1.0,
    theta: Fraction = Fraction(1),
) -> Learnt:
    """Play a round.

    Args:
        name: What devices train, as in `deltafl.fl.registry.MODELS`.
        x: Samples, [devices, samples, *input_shape].
        y: Their labels.
        model: Its weights, as the server announces them; by default, as training begins.
        num_classes: Labels are below it.
        batch_size: Samples in a step; the default makes all of a device's one batch.
        epochs: Passes over the samples.
        rate: The learning rate.
        theta: Which share of the devices trains; there is no search if it is 1.
    """
    from deltafl.fl.local import Learner, LocalTraining  # loads torch, which takes seconds
    from deltafl.fl.models import build_model
    from deltafl.fl.parameters import to_vector

    module = build_model(name, input_shape=x.shape[2:], num_classes=num_classes, seed=0)
    model = to_vector(module) if model is None else model
    learner, training = Learner(module), LocalTraining(rate, batch_size, epochs)
    data = [DeviceData(str(k), *samples) for k, samples in enumerate(zip(x, y, strict=True))]
    own = [_trained(learner, model, one, training) for one in data]
    config = replace(VERIFIED_ROUND, theta=theta, update=_UPDATE, update_length=len(model))
    devices = {ClientId(3 + 7 * rank): device for rank, device in enumerate(own)}
    network = RoundDevices(config, devices, model=model.astype("<f4").tobytes())
    _, sums = with_an_honest_server(network)
    presuppose(len(sums[-1].contributors) == len(data), "nobody was lost")
    presuppose(config.update_layout.ring_bits == _RING_BITS, "the ring is that of 32 bits")
    others = config.update_layout.decode(sums[-1].vector)
    return Learnt(
        sums[-1].vector[: len(model)],
        np.array([one.measured(config).contribution(one.update)[: len(model)] for one in own]),
        int(others["weight"][0]),
        int(others["count"][0]),
    )


def _trained(
    learner: "Learner", model: Vector, data: DeviceData, training: "LocalTraining"
) -> Device:
    """What a device answers with that has measured and trained a model."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small tensors on many threads mostly wait for each other
    try:
        update = learner.train(model, data, training, torch.Generator().manual_seed(0))
        return Device(learner.mean_loss(model, data), data.num_samples, update)
    finally:
        torch.set_num_threads(threads)


_DEFENCE: Final = (
    "none: devices do not judge models, and whatever they looked for, a server could miss by a "
    "little; what helps is noise that devices add to their updates, in rounds that have it"
)

# --- one label ----------------------------------------------------------------------------------

_PIXELS: Final = 64
_RARE: Final = 3
"""A label that one sample of the cohort has."""


@Attack(9, "14.7")
@told(
    "announces a model so sure of one label that only rare labels have a part in their weights",
    gain="the sample with that label, if the cohort has only one, though not its owner's name",
    defence=_DEFENCE,
)
def only_owner_of_a_label(_defended: bool, seed: int = 0) -> Loot:
    """The model is `logistic-bias`. Devices train for two epochs, on two samples at a time."""
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 256, (NUM_DEVICES, 6, _PIXELS), dtype=np.uint8)
    y = generator.integers(0, _RARE, (NUM_DEVICES, 6))
    y[3, 4] = _RARE
    model = np.zeros((_PIXELS + 1) * 4, dtype=np.float32)
    model[-4] = 200  # the bias of label 0: the probability of all others is 0, to the last digit
    update = learnt("logistic-bias", x, y, model, batch_size=2, epochs=2).update
    weights, biases = update[:-4].reshape(4, _PIXELS), update[-4:]
    return _pictures([weights[_RARE] / biases[_RARE]], [x[3, 4]])


def _pictures(
    taken: list[_Floats], wanted: list[_Bytes], note: str = "the sample's pixels"
) -> Loot:
    numbers = np.clip(np.rint(np.array(taken) * 255), 0, 255)
    return Loot(numbers.astype(np.uint8).ravel(), np.array(wanted).ravel(), 8, note=note)


# --- bins of brightness -------------------------------------------------------------------------

_SIDE: Final = 16
_FILTERS, _TAPS, _BINS = 32, 5, 64
_MIDDLE: Final = 12
"""The filter that takes the middle of its 25 pixels; each of the first 25 takes one of them."""
_SCALE: Final = 0.002
"""Keeps the model unsure of every label, so that all samples have a part of about one size."""
_SIGNS: Final = np.array([1, 1, -1, -1])
_SEEN: Final = 13
"""Rows and columns of a picture that come out."""


def _separating_model() -> npt.NDArray[np.float32]:
    """A ConvNet whose 64 units are on from one brightness on each, in steps of 1/64."""
    brightness = np.zeros((_BINS, _FILTERS, _TAPS, _TAPS))
    brightness[:, _MIDDLE] = _SCALE / _TAPS**2
    layers = (
        (np.eye(_FILTERS, _TAPS**2), np.zeros(_FILTERS)),
        (brightness, -_SCALE * np.arange(_BINS) / _BINS),
        (np.repeat(_SIGNS, _BINS), np.zeros(len(_SIGNS))),
    )
    return np.concatenate([part.ravel() for layer in layers for part in layer]).astype(np.float32)


def _brightest(picture: _Bytes) -> tuple[float, _Bytes]:
    """What the units see of a picture: the brightness of its brightest window, and that window.

    Each of its pixels is the largest of a block of two by two.
    """
    blocks = np.maximum(picture[1:], picture[:-1])
    blocks = np.maximum(blocks[:, 1:], blocks[:, :-1])
    middles = blocks[2::2, 2::2]
    windows = [
        (float(middles[u : u + _TAPS, v : v + _TAPS].mean()) / 255, u, v)
        for u in range(2)
        for v in range(2)
    ]
    brightness, u, v = max(windows)
    return brightness, blocks[2 * u : 2 * u + _SEEN, 2 * v : 2 * v + _SEEN]


def _laid_out(taps: _Floats) -> _Floats:
    """A picture from what 25 filters saw of it, each in 5 by 5 places that are two pixels apart."""
    each = taps.reshape(_TAPS, _TAPS, _TAPS, _TAPS)
    place = np.minimum(np.arange(_SEEN) // 2, _TAPS - 1)
    tap = np.arange(_SEEN) - 2 * place
    picture: _Floats = each[tap[:, None], tap[None, :], place[:, None], place[None, :]]
    return picture


@Attack(9, "14.7")
@told(
    "announces a ConvNet whose units are on from one brightness on each, so that two neighbouring "
    "units differ only by the samples between (Robbing the Fed, LOKI)",
    gain="every picture alone between two brightnesses, to the pixel's block, without its owner",
    defence=_DEFENCE,
)
def one_sample_in_each_bin(_defended: bool) -> Loot:
    """The model is `convnet`. Devices take one step, on all of their three samples."""
    generator = np.random.default_rng(0)
    base = generator.integers(0, 180, (NUM_DEVICES, 3, 1, 1))
    noise = generator.integers(0, 76, (NUM_DEVICES, 3, _SIDE, _SIDE))
    x = (base + noise).astype(np.uint8)
    y = generator.integers(0, 4, (NUM_DEVICES, 3))
    update = learnt("convnet", x, y, _separating_model()).update
    first = _FILTERS * (_TAPS**2 + 1)
    last = first + _BINS * _FILTERS * _TAPS**2
    weights = update[first:last].reshape(_BINS, _FILTERS, _TAPS**2)[:, : _TAPS**2]
    between = weights - np.append(weights[1:], 0 * weights[:1], axis=0)
    parts = update[last : last + _BINS] - np.append(update[last + 1 : last + _BINS], 0)
    # a sample's part is about 1 or −1, by its label
    alone = np.flatnonzero(np.abs(np.abs(parts) - 1) < 0.2)
    taken = [_laid_out(between[i] / parts[i]) for i in alone]
    seen = sorted(map(_brightest, x.reshape(-1, _SIDE, _SIDE)), key=lambda each: each[0])
    bins = [int(brightness * _BINS) for brightness, _ in seen]
    wanted = [window for (_, window), i in zip(seen, bins, strict=True) if bins.count(i) == 1]
    presuppose(len(wanted) == len(taken) > 0, "as many bins hold one sample as seem to")
    note = f"the pixels of {len(wanted)} of the cohort's {len(seen)} pictures"
    return _pictures(taken, wanted, note)


_NOISE: Final = "; what would help is noise that devices add, in rounds that have it"

# --- words that one device has ------------------------------------------------------------------

_COMMON, _OWN_WORDS, _LABELS = 20, 4, 3
_WORDS: Final = _COMMON + NUM_DEVICES * _OWN_WORDS


@Attack(10, "14.7")
@told(
    "reads the elements of the sum that belong to rare words (SRATTA)",
    gain="that part of the update of each device that alone has these words, though not its name",
    defence="none: the sum over a cohort is no sum where only one device has a part" + _NOISE,
)
def words_of_one_device(_defended: bool) -> Loot:
    """The model is `linear`, on counts of words, and devices train for two epochs.

    Each device has four words that no other has.
    """
    generator = np.random.default_rng(0)
    x = np.zeros((NUM_DEVICES, 6, _WORDS), dtype=np.float32)
    x[..., :_COMMON] = generator.integers(0, 3, (NUM_DEVICES, 6, _COMMON))
    rare = np.arange(_COMMON, _WORDS).reshape(NUM_DEVICES, _OWN_WORDS)
    for k, words in enumerate(rare):
        x[k][:, words] = generator.integers(1, 3, (6, _OWN_WORDS))
    y = generator.integers(0, _LABELS, (NUM_DEVICES, 6))
    found = learnt("linear", x, y, num_classes=_LABELS, batch_size=2, epochs=2, rate=0.1)
    own = found.own.reshape(NUM_DEVICES, _LABELS, _WORDS)
    wanted = np.concatenate([own[k][:, words] for k, words in enumerate(rare)], axis=1)
    return Loot(
        found.words.reshape(_LABELS, -1)[:, _COMMON:].ravel(),
        wanted.ravel(),
        note=f"{rare.size} of {_WORDS} words belong to one device each",
        unit=_UNIT,
    )


# --- labels and members -------------------------------------------------------------------------


@Attack(18, "14.7")
@told(
    "announces the model that training begins with, and reads the sum of the last layer's biases",
    gain="how many samples of each label the devices that trained have together",
    defence="none: the biases' gradient is the labels' count, less what the model expects" + _NOISE,
)
def labels_counted(_defended: bool) -> Loot:
    """The model is `logistic-bias`. Devices take one step, on all of their samples."""
    generator = np.random.default_rng(0)
    x = generator.random((NUM_DEVICES, 30, 8), dtype=np.float32)
    y = generator.integers(0, generator.integers(1, 5, (NUM_DEVICES, 1)), (NUM_DEVICES, 30))
    found = learnt("logistic-bias", x, y)
    counts = np.rint(found.update[-4:] + found.weight / 4)
    return Loot(
        counts.astype(np.int64),
        np.bincount(y.ravel(), minlength=4),
        note=f"the samples of {NUM_DEVICES} devices by label",
    )


_NUMBERS, _PER_DEVICE = 1024, 4


@Attack(18, "14.7")
@told(
    "compares the sum with the gradients of samples that it has itself",
    gain="which of these samples some device trained on (membership), though not which device",
    defence="none: larger cohorts hide a sample among others, and models with more weights than "
    "there are samples undo that" + _NOISE,
)
def members_of_the_cohort(_defended: bool, seed: int = 0) -> Loot:
    """The model is `linear`, with 4,096 weights, and the devices have 20 samples together.

    Of the 40 samples that the server has, they have the first 20.
    """
    generator = np.random.default_rng(seed)
    num = NUM_DEVICES * _PER_DEVICE
    x = generator.choice(np.array([-1, 1], dtype=np.float32), (2 * num, _NUMBERS))
    y = generator.integers(0, 4, 2 * num)
    own_x, own_y = (  # every fifth sample is of the same device
        own[:num].reshape(_PER_DEVICE, NUM_DEVICES, -1).swapaxes(0, 1) for own in (x, y)
    )
    update = learnt("linear", own_x, own_y[..., 0], batch_size=2, rate=0.001).update
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


@Attack(18, "14.7")
@told(
    "announces a model whose loss is large on samples with a certain property",
    gain="how many devices own such a sample, and the sum of the updates of these devices alone",
    defence="none: the tail is where the model is worst; what helps is a large min_honest_tail",
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
    model = np.zeros((4, 8), dtype=np.float32)
    model[3, _PROPERTY] = _STEEP  # a label that no sample has
    vector = np.append(model, np.zeros(4, dtype=np.float32)).astype(np.float32)
    found = learnt("logistic-bias", x, y, vector, theta=Fraction(1, 2))
    wanted = found.own[[*owners]].sum(axis=0)
    return Loot(
        np.append(found.words, found.count),
        np.append(wanted, len(owners)),
        note="the sum of the owners' updates, and how many they are",
    )


# --- sums with noise ----------------------------------------------------------------------------

_LENGTH: Final = 1024


def _noisy(multiplier: Fraction) -> RoundConfig:
    """A round with noise from as many devices as are certain to be in its sum."""
    sizes = Sizes.of(_LENGTH, UPDATE_ROUND.cohort_size)
    noise = UpdateNoise.at_least(multiplier, 1.0, POLICY.min_cohort, sizes)
    update = UpdateParams(clip=4.0, resolution_bits=16, max_weight=1, aggregation=noise)
    return replace(UPDATE_ROUND, update=update, update_length=_LENGTH)


def _alike() -> dict[ClientId, Device]:
    """Devices with one update, of a norm of 1 and numbers of one size."""
    size = np.float32(1 / math.sqrt(_LENGTH) * (1 - 1e-6))
    update = np.random.default_rng(0).choice((-size, size), _LENGTH).astype(np.float32)
    made = make_devices(UPDATE_ROUND)
    return {client: replace(one, weight=1, update=update) for client, one in made.items()}


@Attack(18, "12.16", Refusal.POLICY, saying="is below min_update_noise=1")
@told(
    "announces a sum of updates with hardly any noise",
    gain="the sum as if there were none: the signs of the update that all devices have",
    defence="a device works out the announced noise multiplier, and insists on its own smallest",
)
def little_noise_in_updates(defended: bool) -> Loot:
    """The noise has a thousandth of what one device can change."""
    policy = replace(POLICY, min_update_noise=Fraction(1)) if defended else POLICY
    devices, config = _alike(), _noisy(Fraction(1, 1000))
    outcome, _ = with_an_honest_server(RoundDevices(config, devices, policy=policy))
    return Loot(present(outcome.update) < 0, devices[min(devices)].update < 0, 1)


@Attack(18, "14.13")
@told(
    "has more devices of its own in the cohort than the others expect, and takes off what they add",
    gain="a sum with less noise than the devices insist on",
    defence="none beyond γ, for which the noise is made; what helps is who admits devices",
)
def noise_of_colluding_devices(_defended: bool) -> Loot:
    """Noise is enough from three of five devices, and three are the server's own."""
    config, devices = _noisy(Fraction(1)), _alike()
    policy = replace(POLICY, min_update_noise=Fraction(1))
    _, learnt = with_an_honest_server(RoundDevices(config, devices, policy=policy))
    own, layout = sorted(devices)[-3:], config.update_layout
    total = learnt[-1].vector.astype(np.uint64)
    for client in own:
        one = devices[client]
        total -= one.measured(config).contribution(one.update, noise_of(client))
    ring.reduce(total, layout.ring_bits)
    num_left, sizes = len(devices) - len(own), Sizes.of(_LENGTH, len(devices))
    noisy = present(config.noisy_updates)
    read = noisy.read(layout.decode(total), Fraction(1), num_left)
    left = present(read.update) - devices[own[0]].update
    steps = left * num_left * sizes.clip / noisy.noise.norm
    multiplier = float(np.std(steps)) / math.sqrt(sizes.square_sensitivity)
    return harm(
        multiplier < 0.9 * float(policy.min_update_noise),
        f"the noise has a multiplier of {multiplier:.2f}, and devices insist on "
        f"{policy.min_update_noise}",
    )
