"""The tables of the papers: our numbers beside the published ones.

Ours are mean ± standard deviation over seeds (divisor n − 1). "off by" is the difference, ours less
published, in standard deviations: √(s² + s'²) of the two over their seeds. The best of a column is
bold.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from deltafl.fl.data.federated import FederatedDataset
from deltafl.fl.fairness import Fairness, summarise_fairness
from deltafl.fl.metrics import PERCENTILES, summarise_test_error
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.record.evaluations import Evaluation, read_last_evaluation
from deltafl.sim.reproduce.experiment import Cell, Finished, Report, Request, Table
from deltafl.sim.reproduce.grid import config_of, make_cells
from deltafl.sim.reproduce.methods import FEDAVG, Method, choose_methods
from deltafl.sim.reproduce.notes import notes_of
from deltafl.sim.reproduce.published import TABLE_1, Column, Published
from deltafl.sim.reproduce.statistics import Comparison, compare_methods, comparison_table
from deltafl.sim.reproduce.tasks import Chosen, Task, choose_tasks
from deltafl.sim.run.algorithms import keeps_enough

_RESAMPLING_SEED: Final = 2002_11223
_NONE: Final = "–"
_EXPOSED: Final = "not private at this cohort"
_P_VALUES: Final = (
    "p-values are one-sided (small where the method is lower), and Holm's correction is for all "
    "methods of the task: over seeds a paired t test, over test devices a paired bootstrap."
)

Runs = Mapping[tuple[str, str], Sequence[tuple[int, Evaluation]]]
"""From task and label of a method to the final evaluation of each seed."""


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """A number that was measured once per seed.

    Attributes:
        values: one per seed.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(self.values))

    @property
    def std(self) -> float | None:
        """The standard deviation over the seeds, divisor n − 1; None of one seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    def __str__(self) -> str:
        """As in tables; a single seed has no spread to show."""
        return _plus_minus(self.mean, self.std)


def off_by(ours: OverSeeds, published: Published) -> float | None:
    """How far ours is from the published number, in standard deviations; None if both have none."""
    spread = math.hypot(ours.std or 0.0, published.std)
    return (ours.mean - published.mean) / spread if spread else None


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """A statistic of the test error over devices, methods × tasks.

    Attributes:
        name: of the experiment.
        title: what it shows.
        source: where it is in which paper.
        tasks: its columns.
        methods: its rows.
        published: the paper's numbers, from the task to the label of the method.
        percentile: the statistic, one of `deltafl.fl.metrics.PERCENTILES`; None is the mean.
    """

    name: str
    title: str
    source: str
    tasks: tuple[Task, ...]
    methods: tuple[Method, ...]
    published: Mapping[str, Column]
    percentile: int | None

    def __post_init__(self) -> None:
        if self.percentile is not None and self.percentile not in PERCENTILES:
            raise ValueError(f"percentile={self.percentile} is not one of {PERCENTILES}")

    def cells(self, request: Request) -> Sequence[Cell]:
        """Every method on every task, with every seed."""
        return make_cells(request, *self._chosen(request))

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """The table, and for each task the comparison of every method with FedAvg."""
        chosen, methods = self._chosen(request)
        runs = read_runs(finished)
        compared = {
            one.task.name: self._compared(_complete(runs, one.task, methods)) for one in chosen
        }
        return Report(
            tables=(
                self._table(request, chosen, methods, runs, compared),
                *(
                    comparison_table(
                        f"{self.name}-{one.task.name}-tests",
                        f"{self.title}, {one.label}: every method against {FEDAVG.label}",
                        compared[one.task.name],
                    )
                    for one in chosen
                    if compared[one.task.name]
                ),
            ),
            notes=(*notes_of(request, chosen, methods), _P_VALUES),
        )

    def _chosen(self, request: Request) -> tuple[tuple[Chosen, ...], tuple[Method, ...]]:
        return choose_tasks(request, self.tasks), choose_methods(request.methods, self.methods)

    def _table(
        self,
        request: Request,
        chosen: Sequence[Chosen],
        methods: Sequence[Method],
        runs: Runs,
        compared: Mapping[str, Sequence[Comparison]],
    ) -> Table:
        ours = {
            (one.task.name, method.label): number
            for one in chosen
            for method in methods
            if (number := self._measured(runs, one.task, method))
        }
        names = [one.task.name for one in chosen]
        exposed = {
            (one.task.name, method.label)
            for one in chosen
            for method in methods
            if not keeps_enough(config_of(request, one, method, 1))
        }
        best = {name: _lowest(ours, name) for name in names}
        rows = []
        for method in methods:
            row = [method.label]
            for name in names:
                number, printed = ours.get((name, method.label)), self._printed(name, method)
                shown = _NONE if (name, method.label) not in exposed else _EXPOSED
                if number:
                    shown = _bold(str(number), number is best[name])
                row += [shown, _shown(printed, self.published.get(name)), _off(number, printed)]
            rows.append(tuple(row))
        tests = {name: {one.method: one for one in compared[name]} for name in names}
        for method in methods:
            if _is_delta_fl(method) and any(method.label in tests[name] for name in names):
                row = [f"test: {method.label} lower than {FEDAVG.label}"]
                for name in names:
                    row += [_p_values(tests[name].get(method.label)), "", ""]
                rows.append(tuple(row))
        headings = [
            f"{one.label}: {word}" for one in chosen for word in ("ours", "paper", "off by")
        ]
        return Table(
            name=self.name,
            title=f"{self.title} (%)",
            columns=("method", *headings),
            rows=tuple(rows),
            records=tuple(self._records(chosen, methods, ours)),
        )

    def _records(
        self,
        chosen: Sequence[Chosen],
        methods: Sequence[Method],
        ours: Mapping[tuple[str, str], OverSeeds],
    ) -> Iterable[Mapping[str, object]]:
        for one in chosen:
            for method in methods:
                number = ours.get((one.task.name, method.label))
                printed = self._printed(one.task.name, method)
                yield {
                    "task": one.task.name,
                    "data": one.data.name,
                    "stand_in": one.data.is_stand_in,
                    "method": method.label,
                    "statistic": "mean" if self.percentile is None else f"p{self.percentile}",
                    "seeds": len(number.values) if number else 0,
                    "mean": number.mean if number else None,
                    "std": number.std if number else None,
                    "published_mean": printed.mean if printed else None,
                    "published_std": printed.std if printed else None,
                    "off_by": off_by(number, printed) if number and printed else None,
                }

    def _compared(self, runs: Mapping[str, Sequence[Evaluation]]) -> Sequence[Comparison]:
        """Every method with FedAvg; nothing where there are no two to compare."""
        if len(runs) < 2 or FEDAVG.label not in runs:
            return ()
        return compare_methods(
            runs,
            baseline=FEDAVG.label,
            rng=np.random.default_rng(_RESAMPLING_SEED),
            percentile=self.percentile,
        )

    def _measured(self, runs: Runs, task: Task, method: Method) -> OverSeeds | None:
        found = runs.get((task.name, method.label), ())
        return OverSeeds(tuple(100 * self._statistic(e) for _, e in found)) if found else None

    def _statistic(self, evaluation: Evaluation) -> float:
        error = summarise_test_error(evaluation.test)
        return error.mean if self.percentile is None else error.percentiles[self.percentile]

    def _printed(self, task: str, method: Method) -> Published | None:
        return self.published.get(task, {}).get(method.label)


@dataclass(frozen=True, slots=True)
class FairnessTable:
    """How evenly methods serve the devices: AAggFF's metrics, methods × metrics, for each task.

    Attributes:
        name: of the experiment.
        title: what it shows.
        source: where it is in which paper.
        tasks: one table for each.
        methods: its rows.
        metrics: its columns, of `METRICS`.
        published: the paper's numbers, from the metric and the task to the label of the method.
    """

    name: str
    title: str
    source: str
    tasks: tuple[Task, ...]
    methods: tuple[Method, ...]
    metrics: tuple[str, ...]
    published: Mapping[str, Mapping[str, Column]]

    def cells(self, request: Request) -> Sequence[Cell]:
        """Every method on every task, with every seed."""
        chosen = choose_tasks(request, self.tasks)
        return make_cells(request, chosen, choose_methods(request.methods, self.methods))

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """One table per task."""
        chosen = choose_tasks(request, self.tasks)
        methods = choose_methods(request.methods, self.methods)
        runs = read_runs(finished)
        notes = notes_of(request, chosen, methods)
        accuracy = "Accuracies weigh devices by their test samples, as AAggFF's code does."
        return Report(
            tables=tuple(self._table(one, methods, runs) for one in chosen),
            notes=(*notes, accuracy),
        )

    def _table(self, one: Chosen, methods: Sequence[Method], runs: Runs) -> Table:
        measured: dict[tuple[str, str], OverSeeds] = {}
        for method in methods:
            found = [
                summarise_fairness(evaluation.test)
                for _, evaluation in runs.get((one.task.name, method.label), ())
            ]
            for metric in self.metrics if found else ():
                values = tuple(100 * METRICS[metric].of(fairness) for fairness in found)
                measured[metric, method.label] = OverSeeds(values)
        columns = ["method"]
        for metric in self.metrics:
            columns.append(f"{metric} {METRICS[metric].arrow}")
            if self._column(metric, one):
                columns += [f"{metric}: paper", "off by"]
        best = {m: _best(measured, m, lowest=METRICS[m].lower_is_better) for m in self.metrics}
        rows, records = [], []
        for method in methods:
            row = [method.label]
            for metric in self.metrics:
                number = measured.get((metric, method.label))
                row.append(_bold(str(number), number is best[metric]) if number else _NONE)
                column = self._column(metric, one)
                printed = column.get(method.label)
                if column:
                    row += [_shown(printed, None), _off(number, printed)]
                records.append(
                    {
                        "task": one.task.name,
                        "data": one.data.name,
                        "stand_in": one.data.is_stand_in,
                        "method": method.label,
                        "metric": metric,
                        "seeds": len(number.values) if number else 0,
                        "mean": number.mean if number else None,
                        "std": number.std if number else None,
                        "published_mean": printed.mean if printed else None,
                        "published_std": printed.std if printed else None,
                    }
                )
            rows.append(tuple(row))
        heading = f", {one.label}" if len(self.tasks) > 1 or one.data.is_stand_in else ""
        return Table(
            name=f"{self.name}-{one.task.name}" if len(self.tasks) > 1 else self.name,
            title=f"{self.title}{heading} (accuracy in %, Gini in %)",
            columns=tuple(columns),
            rows=tuple(rows),
            records=tuple(records),
        )

    def _column(self, metric: str, one: Chosen) -> Column:
        return self.published.get(metric, {}).get(one.task.name, {})


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure of how evenly devices are served.

    Attributes:
        of: reads it from the summary.
        lower_is_better: which way is better.
    """

    of: Callable[[Fairness], float]
    lower_is_better: bool = False

    @property
    def arrow(self) -> str:
        """Which way is better, for a heading."""
        return "↓" if self.lower_is_better else "↑"


METRICS: Final[Mapping[str, Metric]] = {
    "average": Metric(lambda fairness: fairness.average),
    "worst": Metric(lambda fairness: fairness.worst),
    "worst 10 %": Metric(lambda fairness: fairness.worst_tenth),
    "best 10 %": Metric(lambda fairness: fairness.best_tenth),
    "Gini": Metric(lambda fairness: fairness.gini, lower_is_better=True),
    "parity gap": Metric(lambda fairness: fairness.gap, lower_is_better=True),
}
"""AAggFF's, in the order of its tables. The paper prints the Gini coefficient times a factor that
the text has lost; here it is in percent."""

CROSS_SILO_METRICS: Final = ("average", "worst", "Gini", "parity gap")
CROSS_DEVICE_METRICS: Final = ("average", "worst 10 %", "best 10 %", "Gini", "parity gap")


@dataclass(frozen=True, slots=True)
class DataTable:
    """Table 1: how large the data sets are. Needs no training.

    Attributes:
        name: of the experiment.
        title: what it shows.
        source: where it is in which paper.
        tasks: one for each family of data.
    """

    name: str
    title: str
    source: str
    tasks: tuple[Task, ...]

    def cells(self, request: Request) -> Sequence[Cell]:
        """None; but what the request cannot have is found out before anything else is run."""
        choose_tasks(request, self.tasks)
        return ()

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """Our data beside the paper's."""
        del finished
        chosen = choose_tasks(request, self.tasks)
        rows, records = [], []
        for one in chosen:
            dataset = build_dataset(config_of(request, one, FEDAVG, 1).data)
            sizes = data_sizes(dataset)
            printed = TABLE_1[one.task.family]
            rows.append((one.data.name, *(f"{size:g}" for size in sizes)))
            paper = (
                printed.classes,
                printed.train_devices,
                printed.test_devices,
                printed.median,
                printed.smallest,
                printed.largest,
            )
            rows.append((f"{one.task.family}, paper", *(f"{size:g}" for size in paper)))
            keys = ("classes", "train_devices", "test_devices", "median", "min", "max")
            records.append(
                {
                    "data": one.data.name,
                    "stand_in": one.data.is_stand_in,
                    **dict(zip(keys, sizes, strict=True)),
                    **{f"published_{k}": v for k, v in zip(keys, paper, strict=True)},
                }
            )
        table = Table(
            name=self.name,
            title=self.title,
            columns=("data", "classes", "train devices", "test devices", "median", "min", "max"),
            rows=tuple(rows),
            records=tuple(records),
        )
        notes = (
            "Median, min and max are of the points per train device; the paper's median of "
            "Shakespeare, 1288, is that of all roles.",
            *(f"{one.data.name} is a stand-in." for one in chosen if one.data.is_stand_in),
        )
        return Report(tables=(table,), notes=notes)


def data_sizes(dataset: FederatedDataset) -> tuple[int, int, int, float, int, int]:
    """Classes, train devices, test devices, and median, least and most points per train device."""
    points = [device.num_samples for device in dataset.train]
    return (
        dataset.num_classes,
        len(dataset.train),
        len(dataset.test),
        float(np.median(points)),
        min(points),
        max(points),
    )


def read_runs(finished: Sequence[Finished]) -> Runs:
    """Read the final evaluation of every cell, seeds in ascending order."""
    runs: dict[tuple[str, str], list[tuple[int, Evaluation]]] = {}
    for one in sorted(finished, key=lambda one: one.cell.seed):
        evaluation = read_last_evaluation(one.directory.metrics)
        if evaluation is not None:
            key = one.cell.task, one.cell.method
            runs.setdefault(key, []).append((one.cell.seed, evaluation))
    return runs


def _complete(
    runs: Runs, task: Task, methods: Sequence[Method]
) -> dict[str, tuple[Evaluation, ...]]:
    """The methods that ran with all the seeds that FedAvg ran with, which can be paired."""
    baseline = [seed for seed, _ in runs.get((task.name, FEDAVG.label), ())]
    found = {method.label: runs.get((task.name, method.label), ()) for method in methods}
    return {
        label: tuple(evaluation for _, evaluation in one)
        for label, one in found.items()
        if one and [seed for seed, _ in one] == baseline
    }


def _is_delta_fl(method: Method) -> bool:
    return str(method.layer["federation"]["algorithm"]).endswith("delta-fl")


def _p_values(one: Comparison | None) -> str:
    if one is None:
        return _NONE
    return f"{_p(one.adjusted_p_seeds)} over seeds, {_p(one.adjusted_p_devices)} over devices"


def _p(value: float | None) -> str:
    if value is None:
        return f"p {_NONE}"
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _lowest(ours: Mapping[tuple[str, str], OverSeeds], task: str) -> OverSeeds | None:
    return _best(ours, task, lowest=True)


def _best(
    numbers: Mapping[tuple[str, str], OverSeeds], first: str, *, lowest: bool
) -> OverSeeds | None:
    column = [number for (key, _), number in numbers.items() if key == first]
    choose = min if lowest else max
    return choose(column, key=lambda number: number.mean) if column else None


def _shown(printed: Published | None, column: Column | None) -> str:
    if printed is None:
        return _NONE
    is_best = column is not None and printed.mean == min(one.mean for one in column.values())
    return _bold(_plus_minus(printed.mean, printed.std), is_best)


def _off(ours: OverSeeds | None, printed: Published | None) -> str:
    distance = off_by(ours, printed) if ours and printed else None
    return _NONE if distance is None else f"{distance:+.1f} σ"


def _plus_minus(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def _bold(text: str, really: bool) -> str:
    return f"**{text}**" if really else text
