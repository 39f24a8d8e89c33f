"""How the figures look: colours, panels, lines with a band.

Colours, dashes and markers are those of `deltafl.sim.run.strokes`. Figures are made without pyplot,
which would keep them in a global list and look for a display.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deltafl.sim.run.strokes import Stroke

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
    stroke = Stroke(number)
    axes.plot(
        x,
        mean,
        linestyle=stroke.style,
        color=stroke.colour,
        label=label,
        marker=stroke.marker if dotted else None,
        markersize=3,
    )
    if len(rows) > 1:
        low, high = (
            (values.min(axis=0), values.max(axis=0))
            if band == "range"
            else (mean - deviation(values), mean + deviation(values))
        )
        axes.fill_between(x, low, high, color=stroke.colour, alpha=0.15, linewidth=0)


def deviation(rows: Numbers) -> Numbers:
    """Standard deviation over seeds, divisor n − 1; 0 for one seed."""
    return np.asarray(rows.std(axis=0, ddof=1 if len(rows) > 1 else 0))


def mean_and_deviation(values: Sequence[float] | Numbers, scale: float = 1.0) -> str:
    """One number per seed as a text: "12.34 ± 0.56", the mean alone for one seed."""
    numbers = np.asarray(values, dtype=np.float64) * scale
    if len(numbers) == 1:
        return f"{numbers[0]:.2f}"
    return f"{numbers.mean():.2f} ± {float(deviation(numbers)):.2f}"
