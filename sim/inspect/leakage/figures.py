"""Figures of the measurements, each as PNG and SVG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from deltafl.protocol.quantile.registry import NOISY
from deltafl.sim.inspect.leakage.experiment import METHODS, Row, Weights
from deltafl.sim.inspect.leakage.mitigations import NONE

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES: Final = ("-", "--", "-.", ":")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
_TITLES: Final = {
    Weights.EQUAL: "equal weights",
    Weights.KNOWN: "weights known to the server",
    Weights.UNKNOWN: "weights unknown",
}


def write_figures(folder: Path, rows: Sequence[Row]) -> None:
    """Draw `leakage` and, where mitigations were measured, `mitigations` into a folder."""
    figures = {"leakage": _by_cohort(rows), "mitigations": _by_mitigation(rows)}
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "deltafl"}):
        for name, figure in figures.items():
            if figure is not None:
                figure.savefig(folder / f"{name}.png", dpi=150)
                figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def _by_cohort(rows: Sequence[Row]) -> Figure:
    """Bits per device over the size of the cohort; thin lines are about device k, named."""
    scenarios = [one for one in Weights if any(row.cell.weights is one for row in rows)]
    figure, panels = _figure(len(scenarios))
    for panel, weights in zip(panels, scenarios, strict=True):
        for number, label in _numbered(rows):
            chosen = [
                row
                for row in rows
                if (row.cell.weights, row.cell.label, row.cell.mitigation.name)
                == (weights, label, NONE)
            ]
            if not chosen:
                continue
            sizes = [row.cell.cohort for row in chosen]
            for values, name, width, size in (
                ([row.leakage.bits for row in chosen], label, 1.5, 6),
                ([row.leakage.labelled_bits for row in chosen], None, 0.7, 3),
            ):
                panel.plot(
                    sizes,
                    values,
                    _STYLES[number % len(_STYLES)],
                    color=_COLOURS[number % len(_COLOURS)],
                    marker=_MARKERS[number % len(_MARKERS)],
                    label=name,
                    linewidth=width,
                    markersize=size,
                )
        panel.set_title(_TITLES[weights], fontsize="medium")
        panel.set_xscale("log")
        panel.set_xticks(sorted({row.cell.cohort for row in rows}))
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel("devices in the cohort")
        panel.set_ylim(bottom=min(0, panel.get_ylim()[0]))
    panels[0].set_ylabel("bits lost per device (thin: about a named device)")
    panels[0].legend(frameon=False)
    return figure


def _by_mitigation(rows: Sequence[Row]) -> Figure | None:
    """Labelled bits of every mitigation, one panel for each cohort."""
    measured = [
        row
        for row in rows
        if row.cell.method != METHODS[0]
        and any(
            other.cell.mitigation.name != NONE and other.cell.weights is row.cell.weights
            for other in rows
        )
    ]
    if not measured:
        return None
    names = list(dict.fromkeys(row.cell.mitigation.name for row in measured))
    sizes = sorted({row.cell.cohort for row in measured})
    methods = _numbered(measured)
    figure, panels = _figure(
        len(sizes), width=3.0, height=0.14 * max(len(methods), 3) * len(names) + 1.2
    )
    thickness = 0.75 / max(len(methods), 3)
    for panel, size in zip(panels, sizes, strict=True):
        for order, (number, label) in enumerate(methods):
            bars = {
                row.cell.mitigation.name: row.leakage.labelled_bits
                for row in measured
                if (row.cell.cohort, row.cell.label) == (size, label)
            }
            offset = (order - (len(methods) - 1) / 2) * thickness
            panel.barh(
                [names.index(name) + offset for name in bars],
                list(bars.values()),
                height=0.92 * thickness,
                color=_COLOURS[number % len(_COLOURS)],
                label=label,
            )
        panel.set_title(f"{size} devices", fontsize="medium")
        panel.set_yticks(range(len(names)), names if panel is panels[0] else [""] * len(names))
        panel.invert_yaxis()
        panel.set_xlabel("bits about a named device")
    panels[-1].legend(frameon=False, fontsize="small")
    return figure


def _numbered(rows: Sequence[Row]) -> list[tuple[int, str]]:
    """The methods of these rows with the numbers of their colours; one for each noise."""
    labels = dict.fromkeys(row.cell.label for row in rows)
    exact = [name for name in METHODS if name != NOISY]
    noisy = [label for label in labels if label not in exact]
    return [(n, label) for n, label in enumerate((*exact, *noisy)) if label in labels]


def _figure(ncols: int, width: float = 4.2, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """A figure without pyplot, which would keep it in a global list and look for a display."""
    figure = Figure(figsize=(width * ncols + 0.8, height), layout="constrained")
    axes = [figure.add_subplot(1, ncols, number + 1) for number in range(ncols)]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    return figure, axes
