"""How the figures look: colours, panels, lines with a band.

The colours are those of Okabe and Ito, which people with any colour vision can tell apart; line
styles and markers differ as well. Figures are made without pyplot, which would keep them in a
global list and look for a display.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES: Final = ("-", "--", "-.", ":")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")

Numbers = npt.NDArray[np.float64]


def new_figure(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of panels, by row and column."""
    figure = Figure(figsize=(4.6 * columns, 3.6 * rows), layout="constrained")
    panels = [
        [figure.add_subplot(rows, columns, row * columns + column + 1) for column in range(columns)]
        for row in range(rows)
    ]
    for row in panels:
        for panel in row:
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(alpha=0.25)
    return figure, panels


def colour(number: int) -> str:
    """The colour of the line with this number."""
    return COLOURS[number % len(COLOURS)]


def style(number: int) -> str:
    """Its line style."""
    return STYLES[number % len(STYLES)]


def marker(number: int) -> str:
    """Its marker."""
    return MARKERS[number % len(MARKERS)]


def draw_line(
    axes: Axes, x: Numbers, rows: Numbers, *, number: int, label: str, band: str, dotted: bool
) -> None:
    """Draw a mean over seeds with a band.

    Args:
        axes: where.
        x: shape (points,).
        rows: one row per seed, shape (seeds, points); NaN where a seed has no value.
        number: of the line, which decides how it looks.
        label: its name in the legend.
        band: "deviation" (one standard deviation to each side) or "range" (lowest to highest).
        dotted: whether to mark the points.
    """
    known = np.isfinite(rows).any(axis=0)
    x, values = x[known], np.ma.masked_invalid(rows[:, known])
    mean = values.mean(axis=0)
    axes.plot(
        x,
        mean,
        linestyle=style(number),
        color=colour(number),
        label=label,
        marker=marker(number) if dotted else None,
        markersize=3,
    )
    if len(rows) > 1:
        low, high = (
            (values.min(axis=0), values.max(axis=0))
            if band == "range"
            else (mean - deviation(values), mean + deviation(values))
        )
        axes.fill_between(x, low, high, color=colour(number), alpha=0.15, linewidth=0)


def deviation(rows: Numbers) -> Numbers:
    """Standard deviation over seeds, divisor n − 1; 0 for one seed."""
    return np.asarray(rows.std(axis=0, ddof=1 if len(rows) > 1 else 0))


def mean_and_deviation(values: Sequence[float] | Numbers, scale: float = 1.0) -> str:
    """One number per seed as a text: "12.34 ± 0.56", the mean alone for one seed."""
    numbers = np.asarray(values, dtype=np.float64) * scale
    if len(numbers) == 1:
        return f"{numbers[0]:.2f}"
    return f"{numbers.mean():.2f} ± {float(deviation(numbers)):.2f}"
