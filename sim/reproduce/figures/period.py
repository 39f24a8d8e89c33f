"""Figures 17 and 18: the effect of updating the threshold η only every T_η rounds.

Source: arXiv 2002.11223, Appendix C.3: between updates the threshold stays, so T_η rounds make up
one w-step of Algorithm 1. The text names neither the periods nor θ; these are our choice. T_η = 1
is Algorithm 2 as it stands.
"""

from typing import Final

from deltafl.sim.reproduce.figures.curves import Curves
from deltafl.sim.reproduce.figures.runs import Selection
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG, Method

PERIODS: Final = (1, 5, 10)
"""T_η, in rounds."""

_NOTE: Final = "The paper's text names neither the periods T_η of this figure nor θ: our choice."


def every(period: int) -> Method:
    """Δ-FL at θ = 0.5 whose threshold is updated every `period` rounds."""
    base = DELTA_FL[1]
    if period == 1:
        return base  # the same run as in every other figure
    strategy = {**base.layer.get("strategy", {}), "eta_every": period}
    return Method(
        f"{base.key}-every-{period}",
        f"{base.label}, T_η={period}",
        {**base.layer, "strategy": strategy},
        base.by_task,
    )


def _figure(number: int, task: str, title: str) -> Curves:
    return Curves(
        f"fig{number}",
        f"Period of the update of η, {title}",
        f"arXiv 2002.11223, Figure {number}",
        Selection((task,), (FEDAVG, *(every(period) for period in PERIODS))),
        statistics=("mean", "p90"),
        further_notes=(_NOTE,),
    )


PERIOD_FIGURES: Final = (
    _figure(17, "emnist-linear", "EMNIST, linear"),
    _figure(18, "sent140-linear", "Sent140, linear"),
)
"""Figures 17 and 18."""
