"""Figure 16: how many devices a round keeps after filtering.

Source: arXiv 2002.11223, Appendix C.3: devices selected per round on EMNIST, shaded from the lowest
to the highest of the seeds. The filter keeps a share θ of the data and not of the devices, so the
number varies with who is in the cohort.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from deltafl.sim.charts.files import new_figure
from deltafl.sim.errors import damaged
from deltafl.sim.reproduce.figures.drawing import draw_line
from deltafl.sim.reproduce.figures.runs import (
    Drawn,
    Record,
    Row,
    Runs,
    Selection,
    TaskFigure,
    TaskRuns,
    events,
)
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG

Numbers = npt.NDArray[np.float64]


class Kept(TaskFigure):
    """Devices kept per round, as far as servers know: one that only sees sums need not."""

    __slots__ = ()

    numbers = "over all rounds and seeds"
    columns = ("task", "method", "mean", "fewest", "most")

    def of_task(self, task: TaskRuns) -> Drawn:
        """Draw the methods whose servers know."""
        found = {runs.method: (runs, kept_devices(runs)) for runs in task.methods}
        known = {name: one for name, one in found.items() if not np.isnan(one[1]).all()}
        drawn = {name: kept for name, (_, kept) in known.items()}
        return Drawn(
            {f"{self.name}-{task.chosen.task.name}": _draw(task, drawn)} if known else {},
            [_row(task, name, kept) for name, kept in drawn.items()],
            [record for one in known.values() for record in _records(task, *one)],
            [
                f"{name} is left out: its server does not learn the number."
                for name in found
                if name not in known
            ],
        )


def kept_devices(runs: Runs) -> Numbers:
    """Read how many devices were aggregated, shape (seeds, rounds); NaN where nobody knows.

    Raises:
        RunDirectoryError: the runs do not have the same rounds.
    """
    rows: list[list[object]] = []
    for directory, played in zip(runs.directories, events(runs), strict=True):
        rows.append([event.get("kept_devices") for event in played])
        if not played or len(played) != len(rows[0]):
            raise damaged(directory.events, f"it has {len(played)} rounds and not {len(rows[0])}")
    return np.array(rows, dtype=np.float64)


def _draw(task: TaskRuns, known: dict[str, Numbers]) -> Figure:
    figure, ((panel,),) = new_figure(1, 1)
    for number, (method, kept) in enumerate(known.items()):
        rounds = np.arange(1, kept.shape[1] + 1, dtype=np.float64)
        draw_line(
            panel, rounds, kept, number=number, label=method, band="range", dotted=len(rounds) <= 30
        )
    panel.set_xlabel("round")
    panel.set_ylabel("devices kept (band: lowest to highest seed)", fontsize="small")
    panel.set_ylim(bottom=0)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    # above the panel, where there are no lines
    panel.legend(
        frameon=False, fontsize="small", ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1)
    )
    figure.suptitle(task.heading, fontsize="medium")
    return figure


def _row(task: TaskRuns, method: str, kept: Numbers) -> Row:
    return (
        task.chosen.label,
        method,
        f"{np.nanmean(kept):.1f}",
        f"{np.nanmin(kept):.0f}",
        f"{np.nanmax(kept):.0f}",
    )


def _records(task: TaskRuns, runs: Runs, kept: Numbers) -> list[Record]:
    return [
        {
            "task": task.chosen.task.name,
            "data": task.chosen.data.name,
            "method": runs.method,
            "seed": seed,
            "round": index + 1,
            "kept_devices": None if np.isnan(number) else int(number),
        }
        for seed, row in zip(runs.seeds, kept, strict=True)
        for index, number in enumerate(row.tolist())
    ]


KEPT: Final = Kept(
    "fig16",
    "Devices kept per round, EMNIST",
    "arXiv 2002.11223, Figure 16",
    Selection(("emnist-linear", "emnist-convnet"), (FEDAVG, *DELTA_FL)),
)
"""Figure 16."""
