"""Figures 3 to 18 of arXiv 2002.11223, one file per kind. Figures 1 and 2 are diagrams."""

from typing import Final

from sim.reproduce.experiment import Experiment
from sim.reproduce.figures.curves import CURVES
from sim.reproduce.figures.histograms import HISTOGRAMS
from sim.reproduce.figures.kept import KEPT
from sim.reproduce.figures.mixture import MixtureFigure
from sim.reproduce.figures.period import PERIOD_FIGURES
from sim.reproduce.figures.scatter import SCATTERS

FIGURES: Final[tuple[Experiment, ...]] = tuple(
    sorted(
        (MixtureFigure(), *HISTOGRAMS, *SCATTERS, *CURVES, KEPT, *PERIOD_FIGURES),
        key=lambda figure: int(figure.name.removeprefix("fig")),
    )
)
"""All figures, in their order."""

__all__ = ["FIGURES"]
