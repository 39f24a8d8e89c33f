"""What the server saw of one search: public pivots, and sums over the whole cohort.

The sums are exact, except those of `noisy`, whose devices add their noise as in the protocol.

There is no cryptography here. Masked sums decode to the same integers as plain sums, and these
integers are all that an attacker in the server's place has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deltafl.protocol.configuration import RoundConfig, UpdateParams
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

PLAIN = "plain"
"""Name of Algorithm 2, in which every device reports its loss."""


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
        method: Name of the quantile method, or `PLAIN`.
        config: The search's public configuration.
        devices: Devices in every sum, m; the server knows whose messages it summed.
        answers: Queries and their sums, in the order asked.
        weights: Every device's own weight n_k, where the server knows them; else None.
        tail: What the update slot released; None where nothing did.
        losses: Every device's tick, where the method sends them in clear; else None.
        noise: Of the sums of `noisy`, public as all of the configuration; else None.
    """

    method: str
    config: SearchConfig
    devices: int
    answers: tuple[Answer, ...]
    weights: tuple[int, ...] | None = None
    tail: Tail | None = None
    losses: tuple[int, ...] | None = None
    noise: Noise | None = None

    @property
    def search_weights(self) -> tuple[int, ...] | None:
        """Every device's weight in the search, where its own is known; 1 each for `noisy`."""
        if self.method == NOISY:
            return (1,) * self.devices
        if self.weights is None:
            return None
        return tuple(self.config.search.weighting.of(weight) for weight in self.weights)

    @property
    def num_pivots(self) -> int:
        """Pivots in a query; 1 where none was asked."""
        return len(self.answers[0].pivots) if self.answers else 1

    def anonymous(self) -> "SearchView":
        """The view of a server that does not know the devices' weights."""
        return replace(self, weights=None)


@dataclass(frozen=True, slots=True)
class Simulated:
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
    stop_after: int | None = None,
    with_update: bool = True,
    noise: Noise | None = None,
    randomness: Randomness = system_randomness,
) -> Simulated:
    """Play a search over a cohort.

    Args:
        config: Configuration of the search, with its warm start if there is one.
        method: A quantile method, or `PLAIN`.
        ticks: Every device's loss on the grid.
        weights: Every device's own weight n_k, at most max_weight.
        num_pivots: Pivots in a query of `histogram` or `noisy`; None for their defaults and for
            other methods.
        stop_after: Stop after so many answers, as when a device vanishes; None for never.
        with_update: Whether the view has the sums of the update slot too.
        noise: Of the sums of `noisy`; None for other methods.
        randomness: Where the devices' noise comes from, one device after the other.

    Raises:
        ConfigurationError: The configuration is not one of this method's.
        EncodingError: A tick or weight is out of its range.
    """
    if method == PLAIN:
        return _simulate_in_clear(config, ticks, weights)
    asked = quantile_method(method, num_pivots=num_pivots, noise=noise)
    search = asked.start(config)
    answers: list[Answer] = []
    while (query := search.query) is not None and len(answers) != stop_after:
        answer = Answer(query.pivots, _summed(asked, config, query, ticks, weights, randomness))
        answers.append(answer)
        search = search.update({name: np.array(sums) for name, sums in answer.sums.items()})
    shrank = stop_after is not None and len(answers) == stop_after
    result = search.result(shrank=shrank)
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


def answer_of(
    config: SearchConfig, query: Query, ticks: Sequence[int], weights: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """The exact sums that devices of these ticks and own weights give, as they are decoded."""
    pivots = len(query.pivots) if query.method == "histogram" else None
    method = quantile_method(query.method, num_pivots=pivots)
    return _summed(method, config, query, ticks, weights, system_randomness)


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
    weight = weighted_loss = count = 0
    for tick, own in zip(ticks, weights, strict=True):
        if threshold.passes(tick):
            weight += own
            weighted_loss += round(
                own * config.search.grid.value(tick) * (1 << loss.resolution_bits)
            )
            count += 1
    lowest = -((threshold.half_width_half_ticks - threshold.eta_half_ticks) // 2)
    pivot = min(max(lowest, 0), config.search.grid.top_pivot)
    return Tail(pivot, weight, weighted_loss, loss.resolution_bits, count)


def _simulate_in_clear(
    config: SearchConfig, ticks: Sequence[int], weights: Sequence[int]
) -> Simulated:
    """Algorithm 2: the server is told every loss and computes the quantile itself."""
    total = sum(weights)
    below, eta = 0, 0
    for tick, weight in sorted(zip(ticks, weights, strict=True)):
        below += weight
        if total and below >= (1 - config.theta) * total:
            eta = tick
            break
    ended = Ended.EXACT if total else Ended.NO_WEIGHT
    result = SearchResult(config.search.grid, 2 * eta, 0, total > 0, ended, 1)
    tail = tail_of(config, result.threshold, ticks, weights)
    view = SearchView(PLAIN, config, len(ticks), (), tuple(weights), tail, tuple(ticks))
    return Simulated(view, result)


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
