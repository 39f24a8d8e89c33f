"""Cohorts and their searches, for Hypothesis and for examples."""

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile.registry import quantile_method
from deltafl.protocol.quantile.search import SearchConfig, SearchParams
from deltafl.protocol.weighting import Weighting
from deltafl.sim.inspect.leakage.experiment import MITIGATIONS, Mitigation, measured
from deltafl.sim.inspect.leakage.observations import Prior, SearchView, simulate
from deltafl.sim.inspect.leakage.reconstruction import Reconstruction, reconstruct

GRID = LossGrid()
PRIOR = Prior(GRID)
MAX_WEIGHT = 512


def config_of(
    method: str,
    size: int,
    *,
    grid: LossGrid = GRID,
    theta: Fraction = Fraction(1, 2),
    warm_start: int | None = None,
    **options: object,
) -> SearchConfig:
    default = quantile_method(method).default_max_queries
    search = SearchParams(**{"max_queries": default, "grid": grid, **options})
    return SearchConfig(theta, search, MAX_WEIGHT, size, warm_start)


def mitigation(name: str) -> Mitigation:
    return next(one for one in MITIGATIONS if one.name == name)


def rows_of(plan):
    """What is measured of every cell of a plan."""
    return [measured(plan, cell) for cell in plan.cells()]


def drawn(size: int, seed: int, *, equal: int | None = None) -> tuple[list[int], list[int]]:
    """Ticks and weights of a cohort as the prior has them."""
    generator = np.random.default_rng([size, seed])
    losses = generator.gamma(PRIOR.shape, PRIOR.scale, size)
    ticks = [PRIOR.grid.tick(loss)[0] for loss in losses]
    weights = generator.integers(PRIOR.lightest, PRIOR.heaviest + 1, size).tolist()
    return ticks, weights if equal is None else [equal] * size


def attacked(view: SearchView, seed: int = 0, *, starts: int = 60) -> Reconstruction:
    return reconstruct(
        view, Prior(view.config.search.grid), np.random.default_rng(seed), starts=starts
    )


@st.composite
def searched(draw, methods=("mm", "bracketed", "histogram"), smallest=1, largest=9):
    """A view of a search over any cohort, ties, zero weights and clipped losses included.

    Draws (view, ticks, weights).
    """
    method = draw(st.sampled_from(methods))
    grid = LossGrid(resolution_bits=draw(st.sampled_from([2, 6, 16])), bound=4)
    ticks = draw(
        st.lists(
            st.one_of(st.integers(0, grid.max_tick), st.sampled_from([0, 5, grid.max_tick])),
            min_size=smallest,
            max_size=largest,
        )
    )
    weight = st.one_of(st.integers(0, MAX_WEIGHT), st.sampled_from([0, 1, 64]))
    weights = draw(st.lists(weight, min_size=len(ticks), max_size=len(ticks)))
    most = draw(st.one_of(st.none(), st.integers(1, 6)))
    config = config_of(
        method,
        len(ticks),
        grid=grid,
        theta=draw(st.sampled_from([Fraction(1, 2), Fraction(1, 10), Fraction(4, 5)])),
        weighting=draw(st.sampled_from(list(Weighting))),
        epsilon_ticks=draw(st.sampled_from([0, 1, 7])) if method == "mm" else 0,
        warm_start=draw(st.one_of(st.none(), st.integers(0, grid.max_tick))),
        **({} if most is None else {"max_queries": most}),
    )
    played = simulate(config, method, ticks, weights, with_update=draw(st.booleans()))
    return played.view, ticks, weights
