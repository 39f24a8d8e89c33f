"""Strategies under attack: errors of honest devices, the attackers' share, and who breaks when.

No table of the papers: they have no attackers. Every attacked run has a clean one with the same
seed, cohorts and first model beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from deltafl.sim.errors import ConfigError
from deltafl.sim.reproduce.experiment import Cell, Finished, Report, Request, Table
from deltafl.sim.reproduce.figures.drawing import draw_line, new_figure
from deltafl.sim.reproduce.grid import make_cells
from deltafl.sim.reproduce.lies import Attack, choose_attacks
from deltafl.sim.reproduce.methods import (
    CLIPPED,
    DELTA_FL,
    FEDAVG,
    MEDIANS,
    PRIVATE_DELTA_FL,
    PRIVATE_FEDAVG,
    Method,
    choose_methods,
)
from deltafl.sim.reproduce.notes import notes_of
from deltafl.sim.reproduce.robust_results import (
    BREAKS,
    Case,
    Measured,
    Results,
    breaking,
    percent,
    results_of,
    rise,
)
from deltafl.sim.reproduce.tasks import Chosen, Task, choose_tasks

COMPARED: Final = (FEDAVG, DELTA_FL[1], PRIVATE_FEDAVG, PRIVATE_DELTA_FL, *MEDIANS, *CLIPPED)
"""The rows of the tables. A robust strategy that is added to `methods` belongs here too."""

_NONE: Final = "–"
_OF_THE_ATTACKS: Final = ("share", "kind", "loss", "weight")


@dataclass(frozen=True, slots=True)
class RobustTable:
    """Attacks × strategies, and at which share of attackers each breaks.

    Attributes:
        name: of the experiment.
        title: what it shows.
        tasks: a table of each.
        methods: which strategies.
        attacks: under which attacks, unless --attacks names others.
        shares: of the training devices, ascending.
    """

    name: str
    title: str
    tasks: tuple[Task, ...]
    methods: tuple[Method, ...]
    attacks: tuple[Attack, ...]
    shares: tuple[Fraction, ...]

    @property
    def source(self) -> str:
        """The papers have no attackers."""
        return "ours; docs/how-to/test-against-lying-devices.md"

    def cells(self, request: Request) -> Sequence[Cell]:
        """Every method without attackers, and under every attack by every share of the devices.

        Raises:
            ConfigError: an attack is unknown, or a setting is given that the attacks differ in.
        """
        for name in request.overrides.get("attackers", {}):
            if name in _OF_THE_ATTACKS:
                raise ConfigError(
                    f"attackers.{name}: the rows of {self.name} differ in it, and some have no "
                    f"attackers: choose attacks by --attacks"
                )
        chosen, methods = self._chosen(request)
        cells = list(make_cells(request, chosen, methods))
        for attack, share in self._grid(request):
            attacked = replace(request, overrides=_merged(attack.layer(share), request.overrides))
            for cell in make_cells(attacked, chosen, methods):
                cells.append(replace(cell, method=str(Case(cell.method, attack.label, share))))
        return cells

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """A table and a figure per task, and a table of who breaks when."""
        chosen, methods = self._chosen(request)
        grid = self._grid(request)
        cases = [Case(method.label) for method in methods]
        cases += [
            Case(method.label, attack.label, share) for attack, share in grid for method in methods
        ]
        results = results_of(finished, cases)
        tables = [self._table(one, cases, results) for one in chosen]
        attacks = choose_attacks(request.attacks, self.attacks)
        tables += [self._breaks(one, methods, attacks, results) for one in chosen]
        figures = {}
        if len(self.shares) > 1:
            figures = {
                f"{self.name}-{one.task.name}": self._figure(one, methods, attacks, results)
                for one in chosen
            }
        return Report(tuple(tables), figures, (*notes_of(request, chosen, methods), *_NOTES))

    def _chosen(self, request: Request) -> tuple[tuple[Chosen, ...], tuple[Method, ...]]:
        return choose_tasks(request, self.tasks), choose_methods(request.methods, self.methods)

    def _grid(self, request: Request) -> list[tuple[Attack, Fraction]]:
        attacks = choose_attacks(request.attacks, self.attacks)
        return [(attack, share) for attack in attacks for share in self.shares]

    def _table(self, one: Chosen, cases: Sequence[Case], results: Results) -> Table:
        rows, records = [], []
        for case in cases:
            found = results.get((one.task.name, case))
            clean = results.get((one.task.name, Case(case.method)))
            higher = rise(found, clean)
            texts = [_NONE] * 4
            if found is not None:
                numbers = (found.tail, found.mean, found.corrupted, found.backdoor)
                texts = [_NONE if number is None else str(number) for number in numbers]
            texts.insert(1, _NONE if higher is None else f"{higher:+.1%}")
            rows.append((case.attack, percent(case.share), case.method, *texts))
            records.append(
                {
                    "task": one.task.name,
                    "data": one.data.name,
                    "method": case.method,
                    "attack": case.attack,
                    "share": float(case.share),
                    "seeds": len(found.seeds) if found else 0,
                    "p90_relative_rise": higher,
                    **_record(found),
                }
            )
        return Table(
            name=f"{self.name}-{one.task.name}",
            title=f"{self.title}, {one.label} (%)",
            columns=(
                "attack",
                "attackers",
                "method",
                "90th percentile",
                "against clean",
                "mean",
                "corrupted share",
                "backdoor success",
            ),
            rows=tuple(rows),
            records=tuple(records),
        )

    def _breaks(
        self,
        one: Chosen,
        methods: Sequence[Method],
        attacks: Sequence[Attack],
        results: Results,
    ) -> Table:
        rows, records = [], []
        for attack in attacks:
            row = [attack.label]
            for method in methods:
                rises = {
                    share: rise(
                        results.get((one.task.name, Case(method.label, attack.label, share))),
                        results.get((one.task.name, Case(method.label))),
                    )
                    for share in self.shares
                }
                found = breaking(rises)
                row.append(str(found))
                records.append(
                    {
                        "task": one.task.name,
                        "method": method.label,
                        "attack": attack.label,
                        "breaks_at": None if found.at is None else float(found.at),
                        "is_bound": found.is_bound,
                        "not_at": None if found.not_at is None else float(found.not_at),
                    }
                )
            rows.append(tuple(row))
        tried = ", ".join(map(percent, self.shares))
        return Table(
            name=f"{self.name}-{one.task.name}-breaks",
            title=f"Share of attackers at which each breaks, {one.label} (tried: {tried})",
            columns=("attack", *(method.label for method in methods)),
            rows=tuple(rows),
            records=tuple(records),
        )

    def _figure(
        self,
        one: Chosen,
        methods: Sequence[Method],
        attacks: Sequence[Attack],
        results: Results,
    ) -> Figure:
        columns = min(3, len(attacks))
        figure, panels = new_figure(-(-len(attacks) // columns), columns)
        flat = [panel for row in panels for panel in row]
        x = np.array([0.0, *map(float, self.shares)])
        for panel, attack in zip(flat, attacks, strict=False):
            for number, method in enumerate(methods):
                cases = [Case(method.label)]
                cases += [Case(method.label, attack.label, share) for share in self.shares]
                found = [results.get((one.task.name, case)) for case in cases]
                seeds = max((len(each.tail.values) for each in found if each), default=0)
                rows = np.full((seeds, len(x)), np.nan)
                for point, each in enumerate(found):
                    if each is not None:
                        rows[: len(each.tail.values), point] = np.array(each.tail.values) / 100
                if seeds:
                    draw_line(
                        panel,
                        x,
                        rows,
                        number=number,
                        label=method.label,
                        band="deviation",
                        dotted=True,
                    )
            panel.set_title(attack.label, fontsize="medium")
            panel.set_xlabel("share of attackers")
            panel.xaxis.set_major_formatter(PercentFormatter(1.0))
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        for panel in flat[len(attacks) :]:
            panel.set_visible(False)
        flat[0].set_ylabel("90th percentile of the test error")
        flat[0].legend(frameon=False, fontsize="small")
        figure.suptitle(one.label, fontsize="medium")
        return figure


_NOTES: Final = (
    "Errors are of honest devices' test data; the attackers' share is of the weight of the devices "
    "kept, by claimed numbers of samples, averaged over rounds. A geometric median gives a device "
    "far from the others less than that.",
    f"A method breaks at the smallest share tried at which its 90th percentile is more than "
    f"{BREAKS:.0%} above that of its own clean runs (relative, averages over the seeds that both "
    "have). A share that was not tried, or whose runs are missing, says nothing.",
)


def _merged(
    first: Mapping[str, Mapping[str, object]], then: Mapping[str, Mapping[str, object]]
) -> dict[str, dict[str, object]]:
    return {
        section: {**first.get(section, {}), **then.get(section, {})}
        for section in {**first, **then}
    }


def _record(found: Measured | None) -> Mapping[str, object]:
    return dict(_numbers(found)) if found else {}


def _numbers(found: Measured) -> Iterator[tuple[str, float | None]]:
    for name, number in (
        ("p90", found.tail),
        ("mean", found.mean),
        ("corrupted_share", found.corrupted),
        ("backdoor_success", found.backdoor),
    ):
        yield f"{name}_mean", number.mean if number else None
        yield f"{name}_std", number.std if number else None
