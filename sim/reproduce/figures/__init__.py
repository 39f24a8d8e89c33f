"""Figures 3 to 18 of arXiv 2002.11223, one file per kind. Figures 1 and 2 are diagrams."""

from typing import Final

from deltafl.sim.reproduce.experiment import Experiment
from deltafl.sim.reproduce.figures.curves import CURVES
from deltafl.sim.reproduce.figures.histograms import HISTOGRAMS
from deltafl.sim.reproduce.figures.kept import KEPT
from deltafl.sim.reproduce.figures.mixture import MixtureFigure
from deltafl.sim.reproduce.figures.period import PERIOD_FIGURES
from deltafl.sim.reproduce.figures.scatter import SCATTERS

FIGURES: Final[tuple[Experiment, ...]] = tuple(
    sorted(
        (MixtureFigure(), *HISTOGRAMS, *SCATTERS, *CURVES, KEPT, *PERIOD_FIGURES),
        key=lambda figure: int(figure.name.removeprefix("fig")),
    )
)
"""All figures, in their order."""

__all__ = ["FIGURES"]
