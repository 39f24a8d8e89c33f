"""The leakage of searches over cohorts of many sizes, by method and mitigation.

Cohorts are drawn from the prior. They are the same for every method and mitigation, so that rows
can be compared. The attacker knows the prior. Whether it knows the devices' weights depends on the
scenario, and mitigations are measured against an attacker that does.

A search by `noisy` uses equal weights in all scenarios, because noise cannot hide other weights.
Only the sums of the update then contain the devices' own weights. These sums are exact, and the
attacker sees them as with every method. What the noisy answer alone gives away is measured as well.
The noise is exactly as much as promised. Shares of additional devices would only add to it.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from deltafl.fl.superquantile import weighted_quantile
from deltafl.protocol.configuration import UpdateParams
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.noisy import NoisyHistogram
from deltafl.protocol.quantile.registry import NOISY, QUANTILE_METHODS, default_max_queries
from deltafl.protocol.quantile.search import Ended, SearchConfig, SearchParams, SearchResult
from deltafl.protocol.weighting import Weighting
from deltafl.secagg.randomness import Randomness, SeededRandomness, system_randomness
from deltafl.sim.inspect.leakage.measure import Belief, bits_of_counts, measure, of_algorithm_two
from deltafl.sim.inspect.leakage.observations import (
    Prior,
    Simulated,
    simulate,
    without_search,
)
from deltafl.sim.inspect.leakage.reconstruction import reconstruct
from deltafl.sim.run.accounting import rho_of

Record: TypeAlias = dict[str, str | int | float | None]
"""A row of a table by its columns."""

Columns: TypeAlias = dict[str, float | None]
"""Those that are measured."""

PLAIN: Final = "plain"
"""Algorithm 2, in which every device reports its loss."""

METHODS: Final = (PLAIN, *QUANTILE_METHODS, NOISY)
"""Every way to find the threshold, from Algorithm 2 on."""

_WARM_START_ERROR: Final = 0.03
_EQUAL_WEIGHT: Final = 256
_REPEATS: Final = ((5, 20), (10, 12), (30, 6))
"""Cohorts of a size, up to so many devices; larger ones take longer and scatter less."""
_LEAST_NOISY: Final = 8
"""Noisy searches of a cell, at least; several over each cohort differ by their noise."""


@dataclass(frozen=True, slots=True)
class Mitigation:
    """One way to search more discreetly, or several at once.

    Attributes:
        name: Its name on the command line and in tables.
        text: What it does, for help and legends.
        warm_start: Start near the last round's threshold, which is a few per cent off.
        max_queries: Most queries; None for as many as certify any search.
        epsilon: ε of `mm` in nats; 0 never acts.
        weighting: What a device weighs in the search.
        resolution_bits: Binary digits of the loss grid; None for those of the plan.
        min_cohort: Fewest devices to search over; with fewer nothing is asked.
    """

    name: str
    text: str
    warm_start: bool = False
    max_queries: int | None = None
    epsilon: float = 0.0
    weighting: Weighting = Weighting.SAMPLES
    resolution_bits: int | None = None
    min_cohort: int = 0

    def applies_to(self, method: str, cohort: int) -> bool:
        """Whether it changes anything about searches by this method over so many devices."""
        if self.name == "min-cohort" and cohort >= self.min_cohort:
            return False
        if method == PLAIN:
            return self.name == NONE
        if method == NOISY:
            return self.name in _ABOUT_NOISY
        return method == "mm" or not (self.epsilon and self.name.startswith("epsilon"))


NONE: Final = "none"
_ABOUT_NOISY: Final = (NONE, "warm-start", "combined")
"""Others change nothing about it, which has one query, equal weights and wide bins in any case, or
only whether it is asked at all."""

MITIGATIONS: Final = (
    Mitigation(NONE, "the protocol's defaults; a search stops as soon as its result is proved"),
    Mitigation("warm-start", "start near the last round's threshold, 3 % off", warm_start=True),
    Mitigation("early-stop", "at most 6 queries, then the nearest of their pivots", max_queries=6),
    Mitigation("epsilon-0.01", "β sees nothing nearer than 0.01 nats (mm)", epsilon=0.01),
    Mitigation("epsilon-0.05", "β sees nothing nearer than 0.05 nats (mm)", epsilon=0.05),
    Mitigation(
        "powers-of-two", "weights rounded down to powers of two", weighting=Weighting.POWERS_OF_TWO
    ),
    Mitigation("equal-weights", "every device weighs one in the search", weighting=Weighting.EQUAL),
    Mitigation("coarse-grid", "losses rounded to 1/256 nats", resolution_bits=8),
    Mitigation("min-cohort", "no search over fewer than 10 devices", min_cohort=10),
    Mitigation(
        "combined",
        "warm start, ε = 0.05 nats, equal weights, losses rounded to 1/256, at least 10 devices",
        warm_start=True,
        epsilon=0.05,
        weighting=Weighting.EQUAL,
        resolution_bits=8,
        min_cohort=10,
    ),
)
"""Every mitigation that is measured, the first of which is none."""


class Weights(StrEnum):
    """What the devices weigh, and what the server knows about it."""

    EQUAL = "equal"
    """All devices have the same number of samples, and the server knows it."""
    KNOWN = "known"
    """From 101 to 447 samples each; the server knows how many each device has."""
    UNKNOWN = "unknown"
    """From 101 to 447 samples each; the server knows only this range."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        methods: Some of `METHODS`.
        cohorts: Numbers of devices.
        mitigations: Which to try; none is always among them.
        weights: Scenarios.
        theta: Conformity level θ in (0, 1).
        seed: Of cohorts and starts.
        repeats: Cohorts of each size; by size if None.
        noise: σ of the noise in each count of `noisy`, in devices: those to try.
    """

    methods: tuple[str, ...] = METHODS
    cohorts: tuple[int, ...] = (3, 5, 10, 30, 100)
    mitigations: tuple[Mitigation, ...] = MITIGATIONS
    weights: tuple[Weights, ...] = tuple(Weights)
    theta: Fraction = Fraction(1, 2)
    seed: int = 1
    repeats: int | None = None
    noise: tuple[Fraction, ...] = (Fraction(1), Fraction(2), Fraction(4))

    def num_repeats(self, cohort: int) -> int:
        """Cohorts of this size."""
        if self.repeats is not None:
            return self.repeats
        return next((n for size, n in _REPEATS if cohort <= size), 4)

    def num_draws(self, cell: "Cell") -> int:
        """Searches over each cohort of a cell: by `noisy` as many as the noise asks for."""
        if cell.method != NOISY or cell.cohort < cell.mitigation.min_cohort:
            return 1
        return -(-_LEAST_NOISY // self.num_repeats(cell.cohort))

    def cells(self) -> Iterator["Cell"]:
        """Everything that is measured on its own, in the order of the table."""
        against = Weights.KNOWN if Weights.KNOWN in self.weights else self.weights[0]
        for cohort, weights, method in itertools.product(self.cohorts, self.weights, self.methods):
            noises = self.noise if method == NOISY else (None,)
            for noise, one in itertools.product(noises, MITIGATIONS):
                is_tried = one in self.mitigations and weights is against
                if (is_tried or one.name == NONE) and one.applies_to(method, cohort):
                    yield Cell(cohort, weights, method, one, noise)


@dataclass(frozen=True, slots=True)
class Cell:
    """One method with one mitigation in one scenario.

    Attributes:
        cohort: Devices.
        weights: What they weigh, and what is known of it.
        method: How the threshold is found.
        mitigation: What is done about the leakage.
        noise: σ of the noise in each count of `noisy`, in devices; None for other methods.
    """

    cohort: int
    weights: Weights
    method: str
    mitigation: Mitigation
    noise: Fraction | None = None

    @property
    def label(self) -> str:
        """The method with its noise, for people."""
        return self.method if self.noise is None else f"{self.method}, σ = {float(self.noise):g}"

    @property
    def sum_noise(self) -> Noise | None:
        """The noise of `noisy`, due from all devices; None for other methods."""
        return None if self.noise is None else Noise(self.noise**2, self.cohort)


class Cohort(NamedTuple):
    """Devices with losses and weights.

    Attributes:
        losses: F_k in nats.
        weights: n_k.
    """

    losses: tuple[float, ...]
    weights: tuple[int, ...]


def draw_cohort(plan: Plan, size: int, weights: Weights, repeat: int) -> Cohort:
    """Draw the cohort of a repeat: the same for every method and mitigation."""
    prior = Prior(LossGrid())
    equal = weights is Weights.EQUAL
    generator = np.random.default_rng([plan.seed, size, repeat])
    losses = generator.gamma(2, prior.scale, size)
    samples = generator.integers(prior.lightest, prior.heaviest + 1, size)
    drawn = [_EQUAL_WEIGHT] * size if equal else [int(count) for count in samples]
    return Cohort(tuple(map(float, losses)), tuple(drawn))


def noise_source(plan: Plan, size: int, repeat: int, draw: int = 0) -> Randomness:
    """Where the noise over a repeat's cohort comes from: the same for every σ and mitigation."""
    return SeededRandomness(np.random.default_rng([plan.seed, size, repeat, 3, draw]).bytes(32))


def play(
    plan: Plan,
    cell: Cell,
    cohort: Cohort,
    generator: np.random.Generator,
    randomness: Randomness = system_randomness,
) -> Simulated:
    """Search over a cohort as the cell says; the view has all weights.

    Args:
        plan: What is measured.
        cell: Of it, what is played.
        cohort: Devices.
        generator: For the warm start.
        randomness: Source of the devices' noise, if they add any.
    """
    config = search_config(plan, cell)
    ticks = [config.search.grid.tick(loss)[0] for loss in cohort.losses]
    if cell.mitigation.warm_start:
        exact = _algorithm_two(cohort, plan.theta)
        near = exact * (1 + _WARM_START_ERROR * generator.standard_normal())
        config = search_config(plan, cell, warm_start=config.search.grid.tick(near)[0])
    if len(ticks) < cell.mitigation.min_cohort:
        return without_search(config, cell.method, ticks, cohort.weights)
    noise = cell.sum_noise
    return simulate(config, cell.method, ticks, cohort.weights, noise=noise, randomness=randomness)


def search_config(plan: Plan, cell: Cell, warm_start: int | None = None) -> SearchConfig:
    """The configuration of a cell's searches."""
    one = cell.mitigation
    grid = LossGrid() if one.resolution_bits is None else LossGrid(one.resolution_bits)
    epsilon = one.epsilon if cell.method == "mm" else 0.0
    search = SearchParams(
        max_queries=one.max_queries or default_max_queries(cell.method),
        grid=grid,
        weighting=Weighting.EQUAL if cell.method == NOISY else one.weighting,
        epsilon_ticks=round(epsilon * 2**grid.resolution_bits),
    )
    return SearchConfig(plan.theta, search, UpdateParams().max_weight, cell.cohort, warm_start)


def price(plan: Plan, cohort: Cohort, result: SearchResult) -> Columns:
    """What a search cost, and how good its result was.

    Returns:
        Secure sums; whether the kept devices are proved to be the right ones; whether they are
        those that Algorithm 2 keeps; and how far the weight below the threshold is from 1 - θ of
        all, beyond the one device on the boundary, a share of the weight.
    """
    losses, weights = np.array(cohort.losses), np.array(cohort.weights)
    kept = np.array([result.passes(result.grid.tick(loss)[0]) for loss in cohort.losses])
    total, below = int(weights.sum()), int(weights[~kept].sum())
    wanted = (1 - plan.theta) * total
    lowest = losses[kept].min(initial=np.inf)
    boundary = int(weights[kept & (losses <= lowest)].sum())
    beyond = max(below - wanted, wanted - below - boundary, Fraction(0))
    return {
        "queries": result.num_queries,
        "certified": result.certified,
        "same_kept": np.array_equal(kept, losses >= _algorithm_two(cohort, plan.theta)),
        "rank_error": float(beyond / total),
    }


def measured(plan: Plan, cell: Cell) -> Record:
    """Measure a cell: the means over its searches.

    Columns: what is searched; those of `Leakage`; "exact", the share of the searches from which
    every loss of the cohort was recovered exactly; those of `price`. Those from "search_bits" on
    are None but for `noisy`: bits, unlabelled and labelled, that its answer gives away without the
    sums of the update, which the first columns include; and ρ in zero-concentrated differential
    privacy (`deltafl.sim.run.accounting`), for which other methods have no bound.
    """
    repeats, draws = plan.num_repeats(cell.cohort), plan.num_draws(cell)
    searches = itertools.product(range(repeats), range(draws))
    return {
        "devices": cell.cohort,
        "weights": cell.weights.value,
        "method": cell.method,
        "noise": None if cell.noise is None else float(cell.noise),
        "mitigation": cell.mitigation.name,
        "repeats": repeats,
        **_means([_search(plan, cell, *one) for one in searches]),
        "rho": _rho(cell),
    }


def _search(plan: Plan, cell: Cell, repeat: int, draw: int) -> Columns:
    """Play one search of a cell, attack it, and compare with the truth."""
    cohort = draw_cohort(plan, cell.cohort, cell.weights, repeat)
    if cell.method == PLAIN:
        return _in_clear(plan, cohort)
    generator = np.random.default_rng([plan.seed, cell.cohort, repeat, 1])
    played = play(plan, cell, cohort, generator, noise_source(plan, cell.cohort, repeat, draw))
    view = played.view
    if cell.weights is Weights.UNKNOWN:
        view = view.anonymous()
    grid = view.config.search.grid
    prior = Prior(grid)
    found = reconstruct(view, prior, generator)
    truth = [grid.tick(loss)[0] for loss in cohort.losses]
    bits, labelled_bits = None, None
    if cell.method == NOISY:
        bits, labelled_bits = bits_of_counts(replace(view, tail=None), prior, truth)
    return {
        **measure(Belief.of(view, prior, found), truth)._asdict(),
        "exact": found.exact and np.array_equal(np.rint(found.sorted_ticks), np.sort(truth)),
        **price(plan, cohort, played.result),
        "search_bits": bits,
        "search_labelled_bits": labelled_bits,
    }


def _in_clear(plan: Plan, cohort: Cohort) -> Columns:
    """What Algorithm 2 tells the server, and keeps."""
    grid = LossGrid()
    ticks = [grid.tick(loss)[0] for loss in cohort.losses]
    eta = grid.tick(_algorithm_two(cohort, plan.theta))[0]
    return {
        **of_algorithm_two(Prior(grid), ticks)._asdict(),
        "exact": True,
        **price(plan, cohort, SearchResult(grid, 2 * eta, 0, True, Ended.EXACT, 1)),
        "search_bits": None,
        "search_labelled_bits": None,
    }


def _rho(cell: Cell) -> float | None:
    """ρ of one search; 0 where the cohort is too small to be asked."""
    noise = cell.sum_noise
    if noise is None:
        return None
    if cell.cohort < cell.mitigation.min_cohort:
        return 0.0
    return round(rho_of(noise, NoisyHistogram(noise).num_bins), 6)


def _algorithm_two(cohort: Cohort, theta: Fraction) -> float:
    return weighted_quantile(cohort.losses, cohort.weights, theta)


def _means(measured: Sequence[Mapping[str, float | None]]) -> Columns:
    """The mean of each column, to six digits and never -0; None where there is no value."""
    means: Columns = {}
    for name in measured[0]:
        values = [value for one in measured if (value := one[name]) is not None]
        means[name] = round(float(np.mean(values)), 6) + 0.0 if values else None
    return means
