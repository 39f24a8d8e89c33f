"""Attacks by a model that separates samples, so that the sum over a cohort is that of one sample.

Secure aggregation hides which device has which part of a sum. It does not help if only one sample
in the cohort has any part in some of its elements, and the server chooses the model that decides
which sample has a part in what. All devices are shown the same model, in rounds with every defence.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData
from deltafl.sim.inspect.attacks.attack import Loot, attack, presuppose
from deltafl.sim.inspect.attacks.learning import NUM_DEVICES, Architecture, Steps, learnt

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float64]

_DEFENCE: Final = (
    "none: devices do not judge models, and whatever they looked for, a server could miss by a "
    "little; what helps is noise that devices add to their updates, in rounds that have it"
)

# --- one label ----------------------------------------------------------------------------------

_PIXELS: Final = 64
_LABELLED: Final = Architecture("logistic-bias", (_PIXELS,), 4)
_RARE: Final = 3
"""A label that one sample of the cohort has."""


@attack(
    9,
    "announces a model that is sure of one label, so that no other sample has a part in the "
    "gradient of a rare label's weights",
    gain="the sample with that label, if the cohort has only one, though not its owner's name",
    defence=_DEFENCE,
    spec="14.7",
)
def only_owner_of_a_label(_defended: bool, seed: int = 0) -> Loot:
    """The model is `logistic-bias`. Devices train for two epochs, on two samples at a time."""
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 256, (NUM_DEVICES, 6, _PIXELS), dtype=np.uint8)
    y = generator.integers(0, _RARE, (NUM_DEVICES, 6))
    y[3, 4] = _RARE
    model = np.zeros((_PIXELS + 1) * 4, dtype=np.float32)
    model[-4] = 200  # the bias of label 0: the probability of all others is 0, to the last digit
    data = [DeviceData(str(k), x[k], y[k]) for k in range(NUM_DEVICES)]
    update = learnt(_LABELLED, model, data, Steps(batch_size=2, epochs=2)).update
    weights, biases = update[:-4].reshape(4, _PIXELS), update[-4:]
    return _pictures([weights[_RARE] / biases[_RARE]], [x[3, 4]])


def _pictures(
    taken: list[_Floats], wanted: list[_Bytes], note: str = "the sample's pixels"
) -> Loot:
    shape = (len(taken), -1)
    bytes_ = np.clip(np.rint(np.array(taken) * 255), 0, 255).reshape(shape)
    return Loot(
        bytes_.astype(np.uint32).ravel(),
        np.array(wanted, dtype=np.uint32).ravel(),
        ring_bits=8,
        note=note,
    )


# --- bins of brightness -------------------------------------------------------------------------

_SIDE: Final = 16
_CONVNET: Final = Architecture("convnet", (_SIDE, _SIDE), 4)
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
    taps = np.zeros((_FILTERS, 1, _TAPS, _TAPS))
    for tap in range(_TAPS * _TAPS):
        taps[tap, 0, tap // _TAPS, tap % _TAPS] = 1
    brightness = np.zeros((_BINS, _FILTERS, _TAPS, _TAPS))
    brightness[:, _MIDDLE] = _SCALE / _TAPS**2
    layers = (
        (taps, np.zeros(_FILTERS)),
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
    windows = {
        (u, v): float(middles[u : u + _TAPS, v : v + _TAPS].mean()) / 255
        for u in range(2)
        for v in range(2)
    }
    (u, v), brightness = max(windows.items(), key=lambda item: item[1])
    return brightness, blocks[2 * u : 2 * u + _SEEN, 2 * v : 2 * v + _SEEN]


def _laid_out(taps: _Floats) -> _Floats:
    """A picture from what 25 filters saw of it, each in 5 by 5 places that are two pixels apart."""
    each = taps.reshape(_TAPS, _TAPS, _TAPS, _TAPS)
    place = np.minimum(np.arange(_SEEN) // 2, _TAPS - 1)
    tap = np.arange(_SEEN) - 2 * place
    picture: _Floats = each[tap[:, None], tap[None, :], place[:, None], place[None, :]]
    return picture


@attack(
    9,
    "announces a ConvNet whose units are on from one brightness on each, so that two neighbouring "
    "units differ only by the samples between (Robbing the Fed, LOKI)",
    gain="every picture that is alone between two brightnesses, each pixel as the largest of four, "
    "though not its owner's name",
    defence=_DEFENCE,
    spec="14.7",
)
def one_sample_in_each_bin(_defended: bool) -> Loot:
    """The model is `convnet`. Devices take one step, on all of their three samples."""
    generator = np.random.default_rng(0)
    base = generator.integers(0, 180, (NUM_DEVICES, 3, 1, 1))
    noise = generator.integers(0, 76, (NUM_DEVICES, 3, _SIDE, _SIDE))
    x = (base + noise).astype(np.uint8)
    y = generator.integers(0, 4, (NUM_DEVICES, 3))
    data = [DeviceData(str(k), x[k], y[k]) for k in range(NUM_DEVICES)]
    update = learnt(_CONVNET, _separating_model(), data).update
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
