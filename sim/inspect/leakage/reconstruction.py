"""The attack: which losses give these sums?

Between two pivots a sum of `mm`, Σ n/|F - μ|, is a smooth function of the losses, and every query
gives one more equation. The attack places the devices in their buckets at random from the prior,
fits the sums by least squares from many such starts, and looks for what all solutions have in
common. Losses are whole ticks and sums are integers, so a solution can be checked at the end: the
true losses reproduce every released integer, and other losses usually do not.

If there are fewer equations than devices, the solutions form a surface. Starts drawn from the prior
and moved to the nearest point of the surface are then roughly a sample of the posterior. Their
spread shows which losses are nevertheless known.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from deltafl.protocol.quantile.registry import NOISY
from deltafl.protocol.weighting import Weighting
from deltafl.sim.inspect.leakage.consequences import Bucket, ranks
from deltafl.sim.inspect.leakage.counts import BucketCounts, infer_counts
from deltafl.sim.inspect.leakage.equations import Equations, set_up, solve
from deltafl.sim.inspect.leakage.labels import assignments, puzzles
from deltafl.sim.inspect.leakage.observations import Numbers, Prior, SearchView

_MANY_FITS: Final = 24
_ENOUGH_FITS: Final = 8  # to say what they have in common
_FEW_FITS: Final = 4  # where all agree to the tick
_NEARLY: Final = 30.0  # a misfit from which the nearest whole ticks are tried
_TELLING: Final = 0.35  # of what the ranks leave open: a claim that is no narrower is none
_SHARP: Final = 200.0  # ticks within which the linear estimate of an error is trusted
_SEARCHED: Final = 4  # solutions of a batch around which whole ticks are looked for
_STARTS_FOR_ONE_SUM: Final = 32
_MOST_IN_ONE_SUM: Final = 10  # one sum of more losses tells next to nothing of any
_DRAWS: Final = 200  # of numbers of devices, where they are noisy
_BATCH_SIZE: Final = 12_000  # unknowns at once


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """What the attack learns from a search.

    Attributes:
        sorted_ticks: The estimated losses of the cohort from the smallest to the largest, in ticks
            and fractions, shape (m,).
        sorted_radius: Within how many ticks the attack claims each to be; infinite where it claims
            nothing.
        ticks: The estimated loss of every device; None where the attack can not tell devices apart.
        radius: Within how many ticks it claims each of them to be.
        exact: Whether whole ticks were found that reproduce every released integer of `mm`, and are
            the only ones: all that rounding allows near the solutions found were tried.
    """

    sorted_ticks: Numbers
    sorted_radius: Numbers
    ticks: Numbers | None = None
    radius: Numbers | None = None
    exact: bool = False


def reconstruct(
    view: SearchView,
    prior: Prior,
    generator: np.random.Generator,
    *,
    starts: int | None = None,
    time_limit: float = 60.0,
) -> Reconstruction:
    """Attack a search.

    Args:
        view: What the server saw.
        prior: What it knew before.
        generator: For the starts.
        starts: From how many starts to solve at most; by the size of the cohort if None. The same
            starts give the same result on every machine.
        time_limit: Seconds after which no new batch of starts is begun; what is found then depends
            on the machine.

    Raises:
        SearchError: The sums contradict each other.
    """
    counts = infer_counts(view, prior)
    if starts is None:
        starts = max(4_000 // view.devices, 48)  # a second's work or so
        if view.method == NOISY:
            starts = min(starts, _STARTS_FOR_ONE_SUM)  # the tail's weighted loss is all there is
    ranked, rank_spread = from_ranks(counts, prior)
    if view.method == NOISY:
        ranked, rank_spread = from_draws(counts, prior, generator)
        if view.tail is None or view.tail.count > _MOST_IN_ONE_SUM:
            return ranked
    if not ranks(view)[-1].weight:
        return ranked  # devices without weight leave no trace in any sum
    placer = _Placer(view, counts)
    one = placer.equations(generator, 1)
    if not len(one.sums):
        return ranked
    collected = _Solutions(view, ranked, rank_spread, placer.labelled)
    central = _in_buckets(one, ranked.sorted_ticks)
    collected.add_central(one, solve(one, one.unknowns(central))[1])
    begun = time.monotonic()
    size = max(_BATCH_SIZE // (view.devices * max(len(view.answers), view.devices)), 8)
    size = min(size, starts)
    for tried in itertools.count(size, size):
        equations = placer.equations(generator, size)
        low, high = equations.low + 0.5, equations.low + equations.width + 0.5
        start = prior.between(low, high, generator.uniform(size=low.shape))
        collected.add(*solve(equations, equations.unknowns(start)))
        late = time.monotonic() - begun > time_limit
        if collected.is_enough or tried >= starts or late:
            break
    return collected.summary()


def _in_buckets(equations: Equations, in_order: Numbers) -> Numbers:
    """Give every device of one way a place of its bucket, shape (1, m)."""
    places = np.empty_like(equations.low)
    places[0, np.argsort(equations.low[0], kind="stable")] = in_order
    return np.clip(places, equations.low, equations.low + equations.width)


class _Placer:
    """Puts devices, or nameless ones, into buckets in ways that agree with the ranks."""

    def __init__(self, view: SearchView, counts: BucketCounts) -> None:
        self._view = view
        self._counts = counts
        self._weights = view.search_weights
        self._ways: tuple[tuple[int, ...], ...] = ()
        self._equal = None
        if self._weights is not None and len(set(self._weights)) == 1:
            self._equal = float(self._weights[0])
        elif self._weights is not None:
            self._ways = assignments(puzzles(view)[0]) or ()
        self.labelled = bool(self._ways)

    def equations(self, generator: np.random.Generator, size: int) -> Equations:
        """The equations of so many ways."""
        view, found = self._view, self._counts.buckets
        shape = (size, view.devices)
        own = None
        if view.weights is not None:
            own = np.broadcast_to(np.array(view.weights, float), shape)
        if self._ways:
            chosen = generator.integers(len(self._ways), size=size)
            ways = [self._with_twins_exchanged(self._ways[index], generator) for index in chosen]
            weights = np.broadcast_to(np.array(self._weights, float), shape)
            return set_up(view, _places(ways, found), weights, own, free_weights=False)
        draws = [self._counts.likeliest()]
        for _ in range(0 if self._counts.are_known else size - 1):
            draws.append(tuple(self._counts.draws(generator, 1)[0].tolist()))
        ways = [
            [index for index, count in enumerate(counts) for _ in range(count)]
            for counts in itertools.islice(itertools.cycle(draws), size)
        ]
        places = _places(ways, found)
        if view.method == NOISY and view.tail is not None and len(set(view.weights or ())) != 1:
            # who is in the tail is not known, and what it weighs is: they share that
            in_tail = np.array(places)[:, :, 0] >= view.tail.pivot
            weights = np.where(in_tail, float(view.tail.weight), 1.0)
            return set_up(view, places, weights, None, free_weights=True)
        if self._equal is not None:
            same_own = own if view.weights is not None and len(set(view.weights)) == 1 else None
            return set_up(view, places, np.full(shape, self._equal), same_own, free_weights=False)
        weights = np.array([[float(found[index].weight) for index in way] for way in ways])
        return set_up(view, places, weights, None, free_weights=True)

    def _with_twins_exchanged(
        self, way: Sequence[int], generator: np.random.Generator
    ) -> Sequence[int]:
        """Devices of the same weight in the search may differ in the update."""
        if self._view.config.search.weighting is Weighting.SAMPLES:
            return way
        exchanged = np.array(way)
        for weight in set(self._weights or ()):
            twins = [k for k, other in enumerate(self._weights or ()) if other == weight]
            exchanged[twins] = generator.permutation(exchanged[twins])
        return list(exchanged.tolist())


@dataclass(slots=True, eq=False)
class _Solutions:
    """What the starts have led to so far."""

    view: SearchView
    ranked: Reconstruction
    rank_spread: Numbers
    labelled: bool
    central: Numbers | None = None
    positions: list[Numbers] = field(default_factory=list)
    all_misfits: list[Numbers] = field(default_factory=list)
    exact: set[tuple[int, ...]] = field(default_factory=set)
    best: float = np.inf
    radius: Numbers | None = None

    @property
    def is_enough(self) -> bool:
        """Whether more starts would not tell more."""
        fitting = sum(int((misfits <= 1).sum()) for misfits in self.all_misfits)
        return fitting >= (_FEW_FITS if self.exact else _MANY_FITS)

    def add_central(self, equations: Equations, unknowns: Numbers) -> None:
        """Take what the solution nearest to the guess from the ranks is."""
        if equations.misfits(unknowns)[0] <= 1:
            self.central = np.sort(equations.positions(unknowns)[0])

    def add(self, equations: Equations, unknowns: Numbers) -> None:
        """Take the ends of a batch of starts."""
        misfits = equations.misfits(unknowns)
        self.positions.append(equations.positions(unknowns))
        self.all_misfits.append(misfits)
        best = int(np.argmin(misfits))
        if misfits[best] < self.best:
            self.best = float(misfits[best])
            self.radius = equations.region_around(unknowns, best).radius
        if equations.shares is not None or not len(equations.points):
            return
        for row in np.argsort(misfits)[:_SEARCHED]:
            if misfits[row] <= _NEARLY:
                region = equations.region_around(unknowns, int(row))
                found, are_all = region.whole_solutions(self.view, equations.weight[row])
                if are_all:
                    self.exact.update(found)

    def summary(self) -> Reconstruction:
        """The estimate, and how far it can be trusted."""
        positions, misfits = np.concatenate(self.positions), np.concatenate(self.all_misfits)
        fitting = misfits <= 1
        size = positions.shape[1]
        linear = np.full(size, np.inf)
        if self.exact:
            positions = np.array(sorted(self.exact), dtype=float)
            linear = np.zeros(size)
        elif fitting.any():
            positions = positions[fitting]
            linear = linear if self.radius is None else self.radius
        else:
            positions = positions[np.argsort(misfits)[: max(len(misfits) // 8, 1)]]
        known = bool(self.exact) or int(fitting.sum()) >= _ENOUGH_FITS
        in_order = np.sort(positions, axis=1)
        order = np.argsort(np.median(positions, axis=0), kind="stable")
        sorted_radius = _spread(in_order, linear[order], known=known)
        dull = sorted_radius > _TELLING * self.rank_spread
        guess = self.ranked.sorted_ticks
        if self.central is not None:
            guess = self.central
        elif known:
            guess = np.median(in_order, axis=0)
        radius = _spread(positions, linear, known=known)
        dull_device = np.empty_like(dull)
        dull_device[order] = dull | (radius[order] > _TELLING * self.rank_spread)
        radius = np.where(dull_device, np.inf, radius)
        return Reconstruction(
            sorted_ticks=np.sort(np.where(dull, guess, np.median(in_order, axis=0))),
            sorted_radius=np.where(dull, np.inf, sorted_radius),
            ticks=np.median(positions, axis=0) if self.labelled else None,
            radius=self._without_twins(radius) if self.labelled else None,
            exact=bool(self.exact) and bool((sorted_radius < 0.5).all()),
        )

    def _without_twins(self, radius: Numbers) -> Numbers:
        """Devices of the same weight can be told apart by nothing."""
        weights = self.view.search_weights or ()
        twins = np.array([weights.count(weight) > 1 for weight in weights])
        return np.where(twins, np.inf, radius)


def _spread(positions: Numbers, linear: Numbers, *, known: bool) -> Numbers:
    """What all solutions have in common; a little more than that where they form a surface."""
    if not known:
        return np.full(positions.shape[1], np.inf)
    spread = (positions.max(axis=0) - positions.min(axis=0)) / 2
    by_spread = 2 * spread + 0.5
    sharp = linear <= _SHARP
    return np.asarray(np.where(sharp, np.maximum(spread, linear), np.minimum(linear, by_spread)))


def _places(ways: Sequence[Sequence[int]], found: Sequence[Bucket]) -> list[list[tuple[int, int]]]:
    return [[(found[index].low, found[index].high) for index in way] for way in ways]


def from_ranks(counts: BucketCounts, prior: Prior) -> tuple[Reconstruction, Numbers]:
    """The guess without any equation: the devices of a bucket are spread in it by the prior.

    Returns:
        It, and how far off the i-th smallest loss is, standard deviations in ticks, shape (m,).
    """
    rows = [
        (bucket.low, bucket.high, (rank + 0.5) / count, count)
        for bucket, count in zip(counts.buckets, counts.likeliest(), strict=True)
        for rank in range(count)
    ]
    lows, highs, shares, sizes = np.array(rows, dtype=float).reshape(-1, 4).T
    deviation, margin = np.sqrt(shares * (1 - shares) / (sizes + 2)), 0.1 / sizes
    above = prior.between(lows, highs, np.minimum(shares + deviation, 1 - margin))
    below = prior.between(lows, highs, np.maximum(shares - deviation, margin))
    spread = np.asarray(np.maximum((above - below) / 2, 0.5))
    return _without_claims(prior.between(lows, highs, shares)), spread


def from_draws(
    counts: BucketCounts, prior: Prior, generator: np.random.Generator
) -> tuple[Reconstruction, Numbers]:
    """The same, and how far off it is, where it is open how many devices are in each bucket.

    Numbers are drawn from their posterior, and places by the prior.

    Returns:
        The medians of the sorted losses, and their standard deviations in ticks, shape (m,).
    """
    lows = np.array([bucket.low for bucket in counts.buckets])
    highs = np.array([bucket.high for bucket in counts.buckets])
    drawn = counts.draws(generator, _DRAWS)
    inside = np.array([np.repeat(np.arange(len(lows)), row) for row in drawn])
    shares = generator.uniform(size=inside.shape)
    in_order = np.sort(prior.between(lows[inside], highs[inside], shares), axis=1)
    spread = np.maximum(in_order.std(axis=0), 0.5)
    return _without_claims(np.median(in_order, axis=0)), np.asarray(spread)


def _without_claims(sorted_ticks: Numbers) -> Reconstruction:
    return Reconstruction(sorted_ticks, np.full(len(sorted_ticks), np.inf))
