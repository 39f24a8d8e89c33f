"""Made-up data: stand-ins for where the real ones may not or cannot be had.

`synthetic-emnist` and `synthetic-sent140` have the devices, classes, shapes and sizes of Table 1 of
arXiv 2002.11223, and nothing else in common with EMNIST and Sent140: results on them say how the
algorithms behave, not what the paper measured. A fifth of their devices is a minority that a model
for the mean neglects; `heterogeneity` in [0, 1] says how far the minority is from the others and
how far the devices' labels differ.

`synthetic` is Synthetic(α, β) of Li et al. 2020, "Federated Optimization in Heterogeneous Networks"
(arXiv 1812.06127), Section 5.1.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.ndimage import zoom

from deltafl.fl.data.federated import DeviceData, FederatedDataset, Samples, Split
from deltafl.fl.data.lazy import LazyDevices, federate_lazily
from deltafl.fl.data.registry import BY_SAMPLES, EMNIST_ROW, SENT140_ROW, Format

MADE_UP: Final = "made up by this package from a seed"
MAX_DEVICES: Final = 100_000
EMNIST_DEVICES: Final = 865 + 865
SENT140_DEVICES: Final = 438 + 439
SYNTHETIC_DEVICES: Final = 30
MINORITY_EVERY: Final = 5
"""Each fifth device is of the minority, on both sides of the split."""

_EMNIST_CLASSES: Final = 62
_SIDE: Final = 28
_SMEARS: Final = 512
_SMEAR: Final = 0.9  # with it a linear model errs on a few per cent of the majority's images
_NOISE: Final = 0.15
_TWEET: Final = 20
_DIMENSION: Final = 50
_VOCABULARY: Final = 2_000
_FEATURES: Final = 60
_CLASSES: Final = 10
_SLICE: Final = 512  # samples drawn at once, in float64: the largest devices have 100,000 and more


_Drawn: TypeAlias = tuple[Samples, npt.NDArray[np.int64]]
_Draw: TypeAlias = Callable[[int, int], _Drawn]
"""From the number and the size of a device to its inputs and labels."""

EMNIST_SIZES: Final = (101, 179, 447)
SENT140_SIZES: Final = (51, 69, 549)
"""How large devices are: the smallest, the median and the largest of Table 1."""


def spread(sizes: tuple[int, int, int], num_devices: int) -> npt.NDArray[np.int64]:
    """Sizes in ascending order, int64 [num_devices], whose statistics are exactly these.

    Between them they are geometric, and bent towards the median above it, as in natural data.

    Args:
        sizes: the smallest, the median and the largest.
        num_devices: at least 3.
    """
    smallest, median, largest = sizes
    place = np.linspace(-1, 1, num_devices)
    below = median * (smallest / median) ** -np.minimum(place, 0)
    above = (largest / median) ** np.maximum(place, 0) ** 1.5
    found = np.rint(below * above).astype(np.int64)
    found[(num_devices - 1) // 2 : num_devices // 2 + 1] = median
    return found


def load_synthetic_emnist(
    split: Split, *, num_devices: int = EMNIST_DEVICES, heterogeneity: float = 0.5
) -> FederatedDataset:
    """Make up images of 62 classes, uint8 [n, 28, 28], dark ink on white.

    A class is a smooth random figure; a writer shifts it and a sample smears it. The minority
    writes it mirrored along the diagonal, the more so the larger `heterogeneity`.

    Args:
        split: the rule for small devices, and who trains; its seed also makes up the data.
        num_devices: in [6, 100,000].
        heterogeneity: in [0, 1]; at 0 all devices are alike.

    Raises:
        ValueError: an argument is out of range.
        DataError: the rule of `split` leaves too few devices.
    """
    _check(num_devices, heterogeneity)
    generator = np.random.default_rng([split.seed, 0])
    smooth = zoom(np.eye(7), (_SIDE / 7, 1), order=3)  # a spline is linear in what it joins
    waves = smooth @ generator.standard_normal((_EMNIST_CLASSES + _SMEARS, 7, 7)) @ smooth.T
    waves, smears = np.split(waves.astype(np.float32), [_EMNIST_CLASSES])
    ink = 1 / (1 + np.exp(-6 * (waves - 0.5)))
    mirrored = (1 - heterogeneity) * ink + heterogeneity * ink.transpose(0, 2, 1)
    figures = np.stack([ink, mirrored]).astype(np.float32)

    def draw(number: int, size: int) -> _Drawn:
        rng = np.random.default_rng([split.seed, 1, number])
        y = _labels(rng, size, _EMNIST_CLASSES, heterogeneity)
        own = figures[int(_is_minority(number))]
        reach = round(2 * heterogeneity)
        own = np.roll(own, rng.integers(-reach, reach + 1, 2), axis=(1, 2))
        shades = 1 - own[y] + _SMEAR * smears[rng.integers(_SMEARS, size=size)]
        shades += _NOISE * rng.standard_normal(shades.shape, dtype=np.float32)
        return np.rint(255 * np.clip(shades, 0, 1)).astype(np.uint8), y

    name, told = "synthetic-emnist (stand-in)", f"{heterogeneity=!r}"
    return _stand_in(name, draw, split, EMNIST_SIZES, num_devices, _EMNIST_CLASSES, told)


def load_synthetic_sent140(
    split: Split,
    *,
    num_devices: int = SENT140_DEVICES,
    heterogeneity: float = 0.5,
    features: str = "mean",
) -> FederatedDataset:
    """Make up short texts of two classes, with vectors for their words.

    Words are drawn from Zipf's law, tilted towards the class; a word's vector carries its tilt. By
    its words the minority means something else: its tilt is turned away from the majority's, by an
    angle of 150° times `heterogeneity`, so that one model serves both groups only in part.

    Args:
        split: the rule for small devices, and who trains; its seed also makes up the data.
        num_devices: in [6, 100,000].
        heterogeneity: in [0, 1]; at 0 all devices are alike.
        features: "mean" gives the mean of the vectors of a text's words, float32 [n, 50];
            "tokens" gives the words, int16 [n, 20], and the data set has their `embedding`
            [2001, 50], whose last row is zero and stands for the end of the text.

    Raises:
        ValueError: an argument is out of range.
        DataError: the rule of `split` leaves too few devices.
    """
    _check(num_devices, heterogeneity)
    if features not in ("mean", "tokens"):
        raise ValueError(f"features={features!r} is not 'mean' or 'tokens'")
    generator = np.random.default_rng([split.seed, 2])
    meanings = generator.standard_normal((2, _VOCABULARY))
    angle = np.array([0, 5 / 6 * np.pi * heterogeneity])
    tilts = np.outer(np.cos(angle), meanings[0]) + np.outer(np.sin(angle), meanings[1])
    vectors = 0.4 * generator.standard_normal((_VOCABULARY + 1, _DIMENSION))
    vectors[:-1] += meanings.T @ generator.standard_normal((2, _DIMENSION)) / 7
    vectors[-1] = 0
    embedding = vectors.astype(np.float32)
    zipf = 1 / np.arange(1, _VOCABULARY + 1)
    weights = zipf * np.exp(0.25 * np.stack([-tilts, tilts], axis=1))  # [group, class, word]
    cumulative = np.cumsum(weights / weights.sum(axis=-1, keepdims=True), axis=-1)
    cumulative[:, :, -1] = 1

    def draw(number: int, size: int) -> _Drawn:
        rng = np.random.default_rng([split.seed, 3, number])
        y = _labels(rng, size, 2, heterogeneity)
        negative, positive = cumulative[int(_is_minority(number))]
        draws = rng.random((size, _TWEET))
        found = (np.searchsorted(side, draws, side="right") for side in (positive, negative))
        tokens = np.where(y[:, None] == 1, *found)
        lengths = rng.integers(5, _TWEET + 1, size)
        tokens[np.arange(_TWEET) >= lengths[:, None]] = _VOCABULARY
        if features == "tokens":
            return tokens.astype(np.int16), y
        means = embedding[tokens].sum(axis=1) / lengths[:, None]
        return means.astype(np.float32), y

    name, told = "synthetic-sent140 (stand-in)", f"{heterogeneity=!r} features={features}"
    dataset = _stand_in(name, draw, split, SENT140_SIZES, num_devices, 2, told)
    return replace(dataset, embedding=embedding) if features == "tokens" else dataset


def load_synthetic(
    split: Split, *, num_devices: int = SYNTHETIC_DEVICES, alpha: float = 1.0, beta: float = 1.0
) -> FederatedDataset:
    """Make up Synthetic(α, β): 10 classes, float32 [n, 60].

    Device k labels x by argmax(W x + b) with W, b ~ N(u, 1) and u ~ N(0, α), and draws x from
    N(v, Σ) with v ~ N(B, 1), B ~ N(0, β) and Σ diagonal, Σ_jj = j^(-1.2). α and β are standard
    deviations, as in the published code. It has 50 + ⌊e^z⌋ samples, z ~ N(4, 2²).

    By this definition α changes no label: u adds u·(Σ x_j + 1) to every class alike. The devices'
    models differ all the same, for W and b are drawn anew for each.

    Args:
        split: the rule for small devices, and who trains; its seed also makes up the data.
        num_devices: in [6, 100,000].
        alpha: deviation of the mean of a device's model, at least 0.
        beta: how far their inputs differ, at least 0.

    Raises:
        ValueError: an argument is out of range.
        DataError: the rule of `split` leaves too few devices.
    """
    _check(num_devices, 0.0)
    for name, value in {"alpha": alpha, "beta": beta}.items():
        if not 0 <= value < np.inf:
            raise ValueError(f"{name}={value} is not a number from 0 on")
    logs = np.random.default_rng([split.seed, 4]).normal(4, 2, num_devices)
    sizes = 50 + np.floor(np.exp(logs)).astype(np.int64)
    deviations = np.sqrt(np.arange(1, _FEATURES + 1) ** -1.2)

    def draw(number: int, size: int) -> _Drawn:
        rng = np.random.default_rng([split.seed, 5, number])
        u, centre = rng.normal(0, alpha), rng.normal(0, beta)
        w, b = rng.normal(u, 1, (_FEATURES, _CLASSES)), rng.normal(u, 1, _CLASSES)
        mean = rng.normal(centre, 1, _FEATURES)
        x, y = np.empty((size, _FEATURES), np.float32), np.empty(size, np.int64)
        for start in range(0, size, _SLICE):
            rows = slice(start, min(size, start + _SLICE))
            drawn = rng.standard_normal((rows.stop - start, _FEATURES))
            drawn *= deviations
            drawn += mean
            x[rows], y[rows] = drawn, np.argmax(drawn @ w + b, axis=1)
        return x, y

    ids = [f"{number:06}" for number in range(num_devices)]
    told = f"synthetic/1 seed={split.seed} devices={num_devices} alpha={alpha!r} beta={beta!r}"
    devices = _drawn(draw, ids, sizes, told)
    return federate_lazily(f"synthetic({alpha:g}, {beta:g})", devices, split, num_classes=_CLASSES)


def _stand_in(
    name: str,
    draw: _Draw,
    split: Split,
    sizes: tuple[int, int, int],
    num_devices: int,
    num_classes: int,
    told: str,
) -> FederatedDataset:
    """Give both sides of the split the sizes of the table, in an order by the seed."""
    generator = np.random.default_rng([split.seed, 6])
    num_train = max(3, int(num_devices * split.train_fraction))
    sides = num_train, num_devices - num_train
    all_sizes = np.concatenate([generator.permutation(spread(sizes, side)) for side in sides])
    groups = ("majority", "minority")
    ids = [f"{number:06}-{groups[_is_minority(number)]}" for number in range(num_devices)]
    told = f"{name}/1 seed={split.seed} train={sides[0]} test={sides[1]} {told}"
    devices = _drawn(draw, ids, all_sizes, told)
    return federate_lazily(name, devices, split, num_classes=num_classes)


def _drawn(
    draw: _Draw, ids: Sequence[str], sizes: npt.NDArray[np.int64], identity: str
) -> LazyDevices:
    def make(number: int) -> DeviceData:
        return DeviceData(ids[number], *draw(number, int(sizes[number])))

    return LazyDevices(ids, sizes, make, identity)


def _is_minority(number: int) -> bool:
    return number % MINORITY_EVERY == MINORITY_EVERY - 1


def _labels(
    rng: np.random.Generator, size: int, num_classes: int, heterogeneity: float
) -> npt.NDArray[np.int64]:
    """Draw labels from the device's own proportions, between equal ones and Dir(1/2, …, 1/2)."""
    own = rng.dirichlet(np.full(num_classes, 0.5))
    proportions = (1 - heterogeneity) / num_classes + heterogeneity * own
    return rng.choice(num_classes, size, p=proportions / proportions.sum()).astype(np.int64)


def _check(num_devices: int, heterogeneity: float) -> None:
    if not 6 <= num_devices <= MAX_DEVICES:
        raise ValueError(f"num_devices={num_devices} is not in [6, {MAX_DEVICES:,}]")
    if not 0 <= heterogeneity <= 1:
        raise ValueError(f"heterogeneity={heterogeneity} is not in [0, 1]")


FORMAT: Final = Format(
    "synthetic",
    "Synthetic(α, β): 60 features, 10 classes, up to 100,000 devices",
    load_synthetic,
    replace(BY_SAMPLES, num_classes=_CLASSES),
    origin=f"Li et al. 2020, arXiv 1812.06127, Section 5.1; {MADE_UP}",
    licence="none needed",
)

EMNIST: Final = replace(
    FORMAT,
    name="synthetic-emnist",
    title="made-up characters of 62 classes, 28×28",
    load=load_synthetic_emnist,
    split=Split(num_classes=_EMNIST_CLASSES),
    origin=MADE_UP,
    published=EMNIST_ROW,
    stands_for="EMNIST",
)

SENT140: Final = replace(
    EMNIST,
    name="synthetic-sent140",
    title="made-up short texts of two classes",
    load=load_synthetic_sent140,
    split=Split(num_classes=2),
    published=SENT140_ROW,
    stands_for="Sent140",
)
