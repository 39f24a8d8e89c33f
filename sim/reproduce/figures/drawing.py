"""How the figures of studies look: lines with a band over seeds, and numbers with a deviation."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from deltafl.sim.charts.chart import Numbers
from deltafl.sim.charts.files import line_style


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
    looks = line_style(number, marked=dotted)
    axes.plot(x, mean, label=label, markersize=3, **looks)
    if len(rows) > 1:
        low, high = (
            (values.min(axis=0), values.max(axis=0))
            if band == "range"
            else (mean - deviation(values), mean + deviation(values))
        )
        axes.fill_between(x, low, high, color=looks["color"], alpha=0.15, linewidth=0)


def deviation(rows: Numbers) -> Numbers:
    """Standard deviation over seeds, divisor n − 1; 0 for one seed."""
    return np.asarray(rows.std(axis=0, ddof=1 if len(rows) > 1 else 0))


def mean_and_deviation(values: Sequence[float] | Numbers, scale: float = 1.0) -> str:
    """One number per seed as a text: "12.34 ± 0.56", the mean alone for one seed."""
    numbers = np.asarray(values, dtype=np.float64) * scale
    if len(numbers) == 1:
        return f"{numbers[0]:.2f}"
    return f"{numbers.mean():.2f} ± {float(deviation(numbers)):.2f}"
