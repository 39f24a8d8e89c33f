"""How many honest devices are in the tail, in cohorts of many kinds: `python FILE` prints a table.

A cell is a number of devices, a level, how weights are spread, and whether devices collude: then as
many as a session of these withstands claim the largest loss and the largest weight. The threshold
is worked out from exact sums, without masks; test_counted_tails.py plays some of the cohorts by
server and devices.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
import numpy.typing as npt
from flat_configs import round_of

from deltafl.protocol.anonymity import expected_tail, least_tail
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile.search import Ended, SearchResult
from deltafl.secagg.threat import at_most

MIN_HONEST = 2
RATE = 0.1
MAX_WEIGHT = 8192
SIZES = (10, 20, 30, 100)
THETAS = tuple(map(Fraction, ("4/5", "1/2", "1/5", "1/10")))
SPREADS = (0.0, 1.0, 2.0)


@dataclass(frozen=True)
class Cell:
    """A kind of cohort."""

    size: int
    theta: Fraction
    spread: float
    claims: bool

    @property
    def num_colluding(self) -> int:
        """As many as a default session has, or as this level withstands; below 0 if none does."""
        room = expected_tail(self.theta, self.size) - MIN_HONEST
        return min(at_most(RATE, self.size), room)

    def config(self) -> RoundConfig:
        """The round, whose search is over all devices."""
        rate = max(self.num_colluding, 0) / self.size
        return round_of(
            round_index=0,
            cohort_size=self.size,
            theta=self.theta,
            method="bracketed",
            max_queries=26,
            grid=LossGrid(),
            max_weight=MAX_WEIGHT,
            update_length=1,
            min_search_cohort=self.size,
            min_tail=least_tail(at_most(rate, self.size), MIN_HONEST),
        )


CELLS = tuple(Cell(*one) for one in product(SIZES, THETAS, SPREADS, (False, True)))


@dataclass(frozen=True, eq=False)
class Cohort:
    """Devices, of which the first ones collude."""

    losses: npt.NDArray[np.float64]
    weights: npt.NDArray[np.int64]
    num_colluding: int


def cohorts_of(cell: Cell, number: int) -> Iterator[Cohort]:
    """Losses are Gamma(2); weights are log-normal about a hundred, and independent."""
    generator = np.random.default_rng([CELLS.index(cell), 7])
    for _ in range(number):
        losses = generator.gamma(2, size=cell.size)
        spread = generator.normal(0, cell.spread, cell.size)
        weights = np.clip(np.rint(100 * np.exp(spread)), 1, MAX_WEIGHT).astype(np.int64)
        if cell.claims:
            losses[: cell.num_colluding] = 1e9
            weights[: cell.num_colluding] = weights.max()
        yield Cohort(losses, weights, max(cell.num_colluding, 0))


def searched(config: RoundConfig, cohort: Cohort) -> SearchResult:
    """What the search comes to."""
    ticks = np.array([config.search.grid.tick(loss)[0] for loss in cohort.losses])
    search = config.start_search()
    while (query := search.query) is not None:
        below = ticks < query.pivots[0]
        sums = {
            "weight": cohort.weights.sum(),
            "count": len(ticks),
            "weight_below": cohort.weights[below].sum(),
            "count_below": below.sum(),
        }
        search = search.update({name: np.array([value]) for name, value in sums.items()})
    return search.result()


def num_honest(config: RoundConfig, cohort: Cohort, found: SearchResult) -> int:
    """Devices of the tail that do not collude."""
    honest = cohort.losses[cohort.num_colluding :]
    return sum(found.passes(config.search.grid.tick(loss)[0]) for loss in honest)


def verdicts(cell: Cell, number: int) -> Counter[str]:
    """How often a round was widened, ended or refused, and over how few honest devices."""
    if cell.num_colluding < 0:
        return Counter(refused=number)
    config, counted = cell.config(), Counter[str]()
    fewest = cell.size
    for cohort in cohorts_of(cell, number):
        found = searched(config, cohort)
        if found.tail is None or found.tail.fewest < config.min_tail:
            counted["ended"] += 1
            continue
        counted["widened"] += found.ended is Ended.WIDENED
        fewest = min(fewest, num_honest(config, cohort, found))
    counted["fewest"] = fewest
    return counted


def main(number: int) -> None:
    """Print the table."""
    print("| n | θ | colluding | weights | widened | ended | refused | fewest honest |")
    print("|---|---|---|---|---|---|---|---|")
    for cell in CELLS:
        found = verdicts(cell, number)
        shares = (f"{found[name] / number:.1%}" for name in ("widened", "ended", "refused"))
        colluding = max(cell.num_colluding, 0) if cell.claims else 0
        spread = f"s = {cell.spread:g}" if cell.spread else "equal"
        fewest = "–" if found["refused"] else str(found["fewest"])
        row = (cell.size, cell.theta, colluding, spread, *shares, fewest)
        print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
