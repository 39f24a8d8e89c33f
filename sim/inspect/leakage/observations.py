"""What the server knows before a search, and what it saw of it: public pivots, and sums.

The sums are over the whole cohort. They are exact, except those of `noisy`, whose devices add their
noise as in the protocol.

There is no cryptography here. Masked sums decode to the same integers as plain sums, and these
integers are all that an attacker in the server's place has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.noisy import NoisyHistogram
from deltafl.protocol.quantile.registry import NOISY, quantile_method
from deltafl.protocol.quantile.search import (
    Ended,
    QuantileMethod,
    Query,
    SearchConfig,
    SearchResult,
)
from deltafl.protocol.selection import Threshold
from deltafl.protocol.weighting import Weighting
from deltafl.secagg.randomness import Randomness, system_randomness

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prior:
    """Losses are drawn from a Gamma distribution, weights evenly from an interval.

    Losses are rounded to the grid and clipped to its bound. Everything is in ticks here, and a
    position may be a fraction: tick t stands for [t - ½, t + ½), pivot c for the point c - ½.

    Attributes:
        grid: The loss grid.
        scale: Scale of the Gamma distribution, in nats; its mean is `shape` times that.
        shape: Its shape.
        lightest: Smallest weight n_k that a device may have.
        heaviest: Largest weight n_k.
    """

    HEAVIEST: ClassVar[int] = 1 << 14
    """The largest weight to reckon with: the laws of sums of weights are worked out in full."""

    grid: LossGrid
    scale: float = 0.5
    lightest: int = 101
    heaviest: int = 447
    shape: float = 2.0

    def survival(self, pivots: npt.ArrayLike) -> Numbers:
        """Probability that a loss lies above these pivots; any shape."""
        from scipy import special  # not for the help of the command

        position = np.asarray(pivots, dtype=np.float64)
        above = special.gammaincc(self.shape, np.maximum(position - 0.5, 0) / self._ticks)
        inside = np.where(position > self.grid.max_tick, 0.0, above)
        return np.asarray(np.where(position <= 0, 1.0, inside), dtype=np.float64)

    @property
    def _ticks(self) -> float:
        """The scale of the Gamma distribution, in ticks."""
        return self.scale * 2.0**self.grid.resolution_bits

    def mass(self, low: npt.ArrayLike, high: npt.ArrayLike) -> Numbers:
        """Probability of the ticks in [low, high); never quite 0 where there is one."""
        first, last = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        difference = self.survival(first) - self.survival(last)
        mass: Numbers = np.where(last > first, np.maximum(difference, 1e-30), 0.0)
        return mass

    def between(self, low: npt.ArrayLike, high: npt.ArrayLike, share: npt.ArrayLike) -> Numbers:
        """The positions below which these shares of the probability of [low, high) lie."""
        from scipy import special

        first, last, part = (np.asarray(one, np.float64) for one in (low, high, share))
        mass = self.survival(first) - self.survival(last)
        above = self.survival(first) - part * mass
        inverse = special.gammainccinv(self.shape, above) * self._ticks + 0.5
        # where all is far out in the tail, evenly
        pivot = np.where(mass < 1e-13, first + part * (last - first), inverse)
        clipped: Numbers = np.clip(pivot - 0.5, first - 0.5, last - 0.5)
        return clipped


@dataclass(frozen=True, slots=True)
class Answer:
    """One query and its sums.

    Attributes:
        pivots: The public pivots that were asked for, never decreasing.
        sums: The sums over the cohort, by field of the method's layout, in units of the field's
            resolution; exact, but for the bins of `noisy`.
    """

    pivots: tuple[int, ...]
    sums: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Tail:
    """What the update slot says about the devices that passed the threshold.

    Attributes:
        pivot: Lowest tick that passes, a pivot: devices below it did not pass.
        weight: Σ n over those that passed, their own weights.
        weighted_loss: Σ n·F over them, in units of 2^-loss_bits nats, rounded on each device.
        loss_bits: Binary digits of `weighted_loss` after the point.
        count: How many passed.
    """

    pivot: int
    weight: int
    weighted_loss: int
    loss_bits: int
    count: int


@dataclass(frozen=True, slots=True)
class SearchView:
    """What the server knows after a search.

    Attributes:
        method: Name of the quantile method.
        config: The search's public configuration.
        devices: Devices in every sum, m; the server knows whose messages it summed.
        answers: Queries and their sums, in the order asked.
        weights: Every device's own weight n_k, where the server knows them; else None.
        tail: What the update slot released; None where nothing did.
        noise: Of the sums of `noisy`, public as all of the configuration; else None.
    """

    method: str
    config: SearchConfig
    devices: int
    answers: tuple[Answer, ...]
    weights: tuple[int, ...] | None = None
    tail: Tail | None = None
    noise: Noise | None = None

    @property
    def search_weights(self) -> tuple[int, ...] | None:
        """Every device's weight in the search, where its own is known; 1 each for `noisy`."""
        if self.method == NOISY:
            return (1,) * self.devices
        if self.weights is None:
            return None
        return tuple(self.config.search.weighting.of(weight) for weight in self.weights)

    def anonymous(self) -> "SearchView":
        """The view of a server that does not know the devices' weights."""
        return replace(self, weights=None)


class Simulated(NamedTuple):
    """A search that was played.

    Attributes:
        view: What the server saw of it.
        result: What it found.
    """

    view: SearchView
    result: SearchResult


def simulate(
    config: SearchConfig,
    method: str,
    ticks: Sequence[int],
    weights: Sequence[int],
    *,
    num_pivots: int | None = None,
    with_update: bool = True,
    noise: Noise | None = None,
    randomness: Randomness = system_randomness,
) -> Simulated:
    """Play a search over a cohort.

    Args:
        config: Configuration of the search, with its warm start if there is one.
        method: A quantile method.
        ticks: Every device's loss on the grid.
        weights: Every device's own weight n_k, at most max_weight.
        num_pivots: Pivots in a query of `histogram` or `noisy`; None for their defaults and for
            other methods.
        with_update: Whether the view has the sums of the update slot too.
        noise: Of the sums of `noisy`; None for other methods.
        randomness: Where the devices' noise comes from, one device after the other.

    Raises:
        ConfigurationError: The configuration is not one of this method's.
        EncodingError: A tick or weight is out of its range.
    """
    asked = quantile_method(method, num_pivots=num_pivots, noise=noise)
    search = asked.start(config)
    answers: list[Answer] = []
    while (query := search.query) is not None:
        answer = Answer(query.pivots, _summed(asked, config, query, ticks, weights, randomness))
        answers.append(answer)
        search = search.update({name: np.array(sums) for name, sums in answer.sums.items()})
    result = search.result()
    tail = tail_of(config, result.threshold, ticks, weights) if with_update else None
    view = SearchView(method, config, len(ticks), tuple(answers), tuple(weights), tail, noise=noise)
    return Simulated(view, result)


def without_search(
    config: SearchConfig, method: str, ticks: Sequence[int], weights: Sequence[int]
) -> Simulated:
    """A round that asks nothing because its cohort is too small, and keeps all devices."""
    result = SearchResult(config.search.grid, 0, 0, False, Ended.TOO_FEW, 0)
    tail = tail_of(config, result.threshold, ticks, weights)
    return Simulated(SearchView(method, config, len(ticks), (), tuple(weights), tail), result)


def _summed(
    method: QuantileMethod,
    config: SearchConfig,
    query: Query,
    ticks: Sequence[int],
    weights: Sequence[int],
    randomness: Randomness,
) -> dict[str, tuple[int, ...]]:
    """The sums through encoding and decoding; only `noisy` takes anything from the randomness."""
    layout = method.layout(config)
    total = np.zeros(layout.length, dtype=np.uint64)
    for tick, weight in zip(ticks, weights, strict=True):
        values = method.contribution(config, query, tick, config.search.weighting.of(weight))
        if isinstance(method, NoisyHistogram):
            values = method.with_noise(config, values, randomness)
        total += layout.encode(values)[0]
    decoded = layout.decode(total & np.uint64((1 << layout.ring_bits) - 1))
    return {name: tuple(sums.tolist()) for name, sums in decoded.items()}


def beta_bits(config: SearchConfig) -> int:
    """Binary digits of β after the point in sums of `mm`."""
    fields = quantile_method("mm").layout(config).fields
    return next(field.resolution_bits for field in fields if field.name == "beta")


def tail_of(
    config: SearchConfig, threshold: Threshold, ticks: Sequence[int], weights: Sequence[int]
) -> Tail:
    """What the update slot releases at a threshold, beside the sum of the updates itself."""
    layout = _round_config(config).update_layout
    loss = next(field for field in layout.fields if field.name == "weighted_loss")
    passing = [pair for pair in zip(ticks, weights, strict=True) if threshold.passes(pair[0])]
    unit, grid = 1 << loss.resolution_bits, config.search.grid
    weighted_loss = sum(round(own * grid.value(tick) * unit) for tick, own in passing)
    lowest = -((threshold.half_width_half_ticks - threshold.eta_half_ticks) // 2)
    pivot, weight = min(max(lowest, 0), grid.top_pivot), sum(own for _, own in passing)
    return Tail(pivot, weight, weighted_loss, loss.resolution_bits, len(passing))


def _round_config(config: SearchConfig) -> RoundConfig:
    """A round with this search: only its layout of the update matters, as fine as by default."""
    return RoundConfig(
        round_index=0,
        cohort_size=config.cohort_size,
        theta=config.theta,
        method="bracketed",
        search=replace(config.search, weighting=Weighting.SAMPLES, epsilon_ticks=0),
        update=UpdateParams(max_weight=config.max_weight),
        update_length=1,
    )
