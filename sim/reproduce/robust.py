"""Strategies under attack: errors of honest devices, the attackers' share, and who breaks when.

No table of the papers: they have no attackers. Every attacked run has a clean one with the same
seed, cohorts and first model beside it. A strategy breaks under an attack at the smallest share of
attackers at which its 90th percentile, averaged over seeds, is more than `BREAKS` above that of its
own clean runs, relative to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from deltafl.fl.metrics import summarise_test_error
from deltafl.sim.record.attacked import read_attacked
from deltafl.sim.record.evaluations import read_last_evaluation
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
from deltafl.sim.reproduce.tables import OverSeeds
from deltafl.sim.reproduce.tasks import Chosen, Task, choose_tasks

BREAKS: Final = 0.1
"""By which share of the clean 90th percentile an attacked one may be higher."""

COMPARED: Final = (FEDAVG, DELTA_FL[1], PRIVATE_FEDAVG, PRIVATE_DELTA_FL, *MEDIANS, *CLIPPED)
"""The rows of the tables. A robust strategy that is added to `methods` belongs here too."""

_NONE: Final = "–"
_CLEAN: Final = "no attack"


@dataclass(frozen=True, slots=True)
class Case:
    """A method under an attack by a share of the devices; of clean runs, without attack.

    Attributes:
        method: the label of the method.
        attack: the label of the attack.
        share: of the training devices.
    """

    method: str
    attack: str = _CLEAN
    share: Fraction = Fraction(0)

    def __str__(self) -> str:
        """What cells are called."""
        if not self.share:
            return self.method
        return f"{self.method}, {self.attack}, {_percent(self.share)}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a case came to, once per seed.

    Attributes:
        tail: 90th percentile of honest devices' test error, in percent.
        mean: its mean.
        corrupted: the attackers' share of the aggregate's weight, averaged over rounds, in percent;
            None without attackers, or where no round kept anybody.
        backdoor: share of samples with the trigger that get its label, in percent; None without.
    """

    tail: OverSeeds
    mean: OverSeeds
    corrupted: OverSeeds | None
    backdoor: OverSeeds | None


Results = Mapping[tuple[str, Case], Measured]
"""By task and case."""


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
        """Every method without attackers, and under every attack by every share of the devices."""
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
        results = _results(finished, cases)
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
            rise = _rise(found, clean)
            texts = [_NONE] * 4
            if found is not None:
                numbers = (found.tail, found.mean, found.corrupted, found.backdoor)
                texts = [_NONE if number is None else str(number) for number in numbers]
            texts.insert(1, _NONE if rise is None else f"{rise:+.1%}")
            rows.append((case.attack, _percent(case.share), case.method, *texts))
            records.append(
                {
                    "task": one.task.name,
                    "data": one.data.name,
                    "method": case.method,
                    "attack": case.attack,
                    "share": float(case.share),
                    "seeds": len(found.tail.values) if found else 0,
                    "p90_relative_rise": rise,
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
                    share: _rise(
                        results.get((one.task.name, Case(method.label, attack.label, share))),
                        results.get((one.task.name, Case(method.label))),
                    )
                    for share in self.shares
                }
                text, share = _breaking(rises)
                row.append(text)
                records.append(
                    {
                        "task": one.task.name,
                        "method": method.label,
                        "attack": attack.label,
                        "breaks_at": None if share is None else float(share),
                    }
                )
            rows.append(tuple(row))
        tried = ", ".join(map(_percent, self.shares))
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
    "kept, by claimed numbers of samples, averaged over rounds.",
    f"A method breaks at the smallest share tried at which its 90th percentile is more than "
    f"{BREAKS:.0%} above that of its own clean runs (relative, averages over seeds).",
)


def _merged(
    first: Mapping[str, Mapping[str, object]], then: Mapping[str, Mapping[str, object]]
) -> dict[str, dict[str, object]]:
    return {
        section: {**first.get(section, {}), **then.get(section, {})}
        for section in {**first, **then}
    }


def _results(finished: Sequence[Finished], cases: Sequence[Case]) -> Results:
    """What runs came to, over their seeds."""
    named = {str(case): case for case in cases}
    found: dict[tuple[str, Case], list[tuple[float, float, float | None, float | None]]] = {}
    for one in finished:
        evaluation = read_last_evaluation(one.directory.metrics)
        if evaluation is None:
            continue
        error = summarise_test_error(evaluation.test)
        case = named[one.cell.method]
        corrupted, backdoor = _attacked(one) if case.share else (None, None)
        found.setdefault((one.cell.task, case), []).append(
            (error.percentiles[90], error.mean, corrupted, backdoor)
        )
    return {key: _measured(values) for key, values in found.items()}


def _attacked(one: Finished) -> tuple[float | None, float | None]:
    noted = read_attacked(one.directory.attacked)
    shares = list(noted.shares.values())
    backdoor = noted.backdoor[max(noted.backdoor)] if noted.backdoor else None
    return (sum(shares) / len(shares) if shares else None), backdoor


def _measured(values: Sequence[tuple[float, float, float | None, float | None]]) -> Measured:
    tail, mean, corrupted, backdoor = (_over_seeds(column) for column in zip(*values, strict=True))
    if tail is None or mean is None:
        raise RuntimeError("an evaluation without an error: this is a bug")
    return Measured(tail, mean, corrupted, backdoor)


def _over_seeds(values: Sequence[float | None]) -> OverSeeds | None:
    known = tuple(100 * value for value in values if value is not None)
    return OverSeeds(known) if known else None


def _rise(found: Measured | None, clean: Measured | None) -> float | None:
    """How much higher a 90th percentile is than the clean one, relative to it."""
    if found is None or clean is None or found is clean or not clean.tail.mean:
        return None
    return found.tail.mean / clean.tail.mean - 1


def _breaking(rises: Mapping[Fraction, float | None]) -> tuple[str, Fraction | None]:
    """The smallest share at which a method breaks, in words and as a number."""
    if all(rise is None for rise in rises.values()):
        return _NONE, None
    for share, rise in rises.items():
        if rise is not None and rise > BREAKS:
            return _percent(share), share
    return f"not at {_percent(max(rises))}", None


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


def _percent(share: Fraction) -> str:
    return f"{float(share):.3g}" if share == 0 else f"{100 * float(share):g} %"
