"""The tables of the papers: our numbers beside the published ones.

Ours are mean ± standard deviation over seeds (divisor n − 1). "off by" is the difference, ours less
published, in standard deviations: √(s² + s'²) of the two over their seeds. The best of a column is
bold.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final

import numpy as np

from deltafl.fl.data.federated import FederatedDataset
from deltafl.fl.metrics import PERCENTILES, Fairness, summarise_fairness
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.comparison import compare_methods, comparison_table, p_value
from deltafl.sim.reproduce.experiment import (
    NONE,
    Cell,
    Finished,
    OverSeeds,
    Record,
    Report,
    Request,
    Runs,
    Table,
    bold,
    percent_error,
    plus_minus,
    read_runs,
)
from deltafl.sim.reproduce.grid import config_of, make_cells, notes_of
from deltafl.sim.reproduce.methods import FEDAVG, Method, choose_methods
from deltafl.sim.reproduce.published import TABLE_1, Column, Published
from deltafl.sim.reproduce.statistics import Comparison
from deltafl.sim.reproduce.tasks import Chosen, Task, choose_tasks
from deltafl.sim.run.algorithms import keeps_enough

_P_DIGITS: Final = 3
_EXPOSED: Final = "not private at this cohort"
_P_VALUES: Final = (
    "p-values are one-sided (small where the method is lower), and Holm's correction is for all "
    "methods of the task: over seeds a paired t test, over test devices a paired bootstrap."
)

_SIZES: Final = ("classes", "train_devices", "test_devices", "median", "min", "max")

Numbers = Mapping[str, OverSeeds]
"""From the label of a method to what it came to on one task."""


def off_by(ours: OverSeeds, published: Published) -> float | None:
    """How far ours is from the published number, in standard deviations; None if both have none."""
    spread = math.hypot(ours.std or 0.0, published.std)
    return (ours.mean - published.mean) / spread if spread else None


@dataclass(frozen=True, slots=True)
class _OfMethods:
    """Methods on tasks, with every seed.

    Attributes:
        name: of the experiment.
        title: what it shows.
        source: where it is in which paper.
        tasks: on which tasks.
        methods: its rows.
    """

    name: str
    title: str
    source: str
    tasks: tuple[Task, ...]
    methods: tuple[Method, ...]

    def cells(self, request: Request) -> Sequence[Cell]:
        """Every method on every task, with every seed."""
        return make_cells(request, *self.chosen(request))

    def chosen(self, request: Request) -> tuple[tuple[Chosen, ...], tuple[Method, ...]]:
        """The tasks and methods that are asked for."""
        return choose_tasks(request, self.tasks), choose_methods(request.methods, self.methods)


@dataclass(frozen=True, slots=True)
class ErrorTable(_OfMethods):
    """A statistic of the test error over devices, methods × tasks.

    Attributes:
        published: the paper's numbers, from the task to the label of the method.
        percentile: the statistic, one of `deltafl.fl.metrics.PERCENTILES`; None is the mean.
    """

    published: Mapping[str, Column]
    percentile: int | None

    def __post_init__(self) -> None:
        if self.percentile is not None and self.percentile not in PERCENTILES:
            raise ValueError(f"percentile={self.percentile} is not one of {PERCENTILES}")

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """The table, and for each task the comparison of every method with FedAvg."""
        chosen, methods = self.chosen(request)
        runs = read_runs(finished)
        compared = {one.label: self._compared(_complete(runs, one.task, methods)) for one in chosen}
        tests = tuple(
            comparison_table(
                f"{self.name}-{one.task.name}-tests",
                f"{self.title}, {one.label}: every method against {FEDAVG.label}",
                compared[one.label],
                digits=_P_DIGITS,
            )
            for one in chosen
            if compared[one.label]
        )
        columns = {"method": [method.label for method in methods]}
        records: list[Record] = []
        for one in chosen:
            ours = _over_seeds(runs, one, methods, lambda e: percent_error(e, self.percentile))
            printed = self.published.get(one.task.name, {})
            columns |= self._columns(request, one, methods, ours, printed)
            statistic = "mean" if self.percentile is None else f"p{self.percentile}"
            for method in methods:
                record = _record(one, method, {"statistic": statistic}, ours, printed)
                number, published = ours.get(method.label), printed.get(method.label)
                record["off_by"] = off_by(number, published) if number and published else None
                records.append(record)
        rows = [*zip(*columns.values(), strict=True), *_test_rows(chosen, methods, compared)]
        table = Table(self.name, f"{self.title} (%)", tuple(columns), tuple(rows), tuple(records))
        return Report((table, *tests), notes=(*notes_of(request, chosen, methods), _P_VALUES))

    def _columns(
        self,
        request: Request,
        one: Chosen,
        methods: Sequence[Method],
        ours: Numbers,
        printed: Column,
    ) -> dict[str, list[str]]:
        """Ours, the paper's and how far they are from each other, on one task."""
        best = min(ours.values(), key=lambda number: number.mean, default=None)
        lowest = min((number.mean for number in printed.values()), default=None)
        columns: dict[str, list[str]] = {
            f"{one.label}: {word}": [] for word in ("ours", "paper", "off by")
        }
        for method in methods:
            number, published = ours.get(method.label), printed.get(method.label)
            shown = NONE if keeps_enough(config_of(request, one, method, 1)) else _EXPOSED
            texts = (
                bold(str(number), number is best) if number else shown,
                _shown(published, lowest),
                _off(number, published),
            )
            for column, text in zip(columns.values(), texts, strict=True):
                column.append(text)
        return columns

    def _compared(self, runs: Mapping[str, Sequence[Evaluation]]) -> Sequence[Comparison]:
        """Every method with FedAvg; nothing where there are no two to compare."""
        if len(runs) < 2 or FEDAVG.label not in runs:
            return ()
        found = compare_methods(runs, baseline=FEDAVG.label, percentile=self.percentile)
        return sorted(found, key=lambda one: one.method != FEDAVG.label)


@dataclass(frozen=True, slots=True)
class FairnessTable(_OfMethods):
    """How evenly methods serve the devices: AAggFF's metrics, methods × metrics, for each task.

    Attributes:
        metrics: its columns, of `METRICS`.
        published: the paper's numbers, from the metric and the task to the label of the method.
    """

    metrics: tuple[str, ...]
    published: Mapping[str, Mapping[str, Column]]

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """One table per task."""
        chosen, methods = self.chosen(request)
        runs = read_runs(finished)
        accuracy = "Accuracies weigh devices by their test samples, as AAggFF's code does."
        return Report(
            tables=tuple(self._table(one, methods, runs) for one in chosen),
            notes=(*notes_of(request, chosen, methods), accuracy),
        )

    def _table(self, one: Chosen, methods: Sequence[Method], runs: Runs) -> Table:
        columns = [("method", [method.label for method in methods])]
        records: list[list[Record]] = []
        for name in self.metrics:
            metric = METRICS[name]
            ours = _over_seeds(runs, one, methods, metric.percent)
            printed = self.published.get(name, {}).get(one.task.name, {})
            choose = min if metric.lower_is_better else max
            best = choose(ours.values(), key=lambda number: number.mean, default=None)
            numbers = [ours.get(method.label) for method in methods]
            shown = [bold(str(number), number is best) if number else NONE for number in numbers]
            columns.append((f"{name} {metric.arrow}", shown))
            if printed:
                theirs = [printed.get(method.label) for method in methods]
                columns.append((f"{name}: paper", [_shown(number, None) for number in theirs]))
                columns.append(("off by", list(map(_off, numbers, theirs))))
            records.append(
                [_record(one, method, {"metric": name}, ours, printed) for method in methods]
            )
        of = f", {one.label}" if len(self.tasks) > 1 or one.data.is_stand_in else ""
        return Table(
            f"{self.name}-{one.task.name}" if len(self.tasks) > 1 else self.name,
            f"{self.title}{of} (accuracy in %, Gini in %)",
            tuple(heading for heading, _ in columns),
            tuple(zip(*(texts for _, texts in columns), strict=True)),
            tuple(record for of_method in zip(*records, strict=True) for record in of_method),
        )


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

    def percent(self, evaluation: Evaluation) -> float:
        """The measure of a model, in percent."""
        return 100 * self.of(summarise_fairness(evaluation.test))


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
            sizes = data_sizes(build_dataset(config_of(request, one, FEDAVG, 1).data))
            paper = astuple(TABLE_1[one.task.family])
            rows.append((one.data.name, *(f"{size:g}" for size in sizes)))
            rows.append((f"{one.task.family}, paper", *(f"{size:g}" for size in paper)))
            records.append(
                {
                    "data": one.data.name,
                    "stand_in": one.data.is_stand_in,
                    **dict(zip(_SIZES, sizes, strict=True)),
                    **{f"published_{k}": v for k, v in zip(_SIZES, paper, strict=True)},
                }
            )
        columns = ("data", *(key.replace("_", " ") for key in _SIZES))
        table = Table(self.name, self.title, columns, tuple(rows), tuple(records))
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


def _over_seeds(
    runs: Runs, one: Chosen, methods: Sequence[Method], measure: Callable[[Evaluation], float]
) -> dict[str, OverSeeds]:
    """What methods that have run came to on a task."""
    found = {method.label: runs.get((one.task.name, method.label), ()) for method in methods}
    return {
        label: OverSeeds(tuple(measure(evaluation) for _, evaluation in own))
        for label, own in found.items()
        if own
    }


def _record(
    one: Chosen, method: Method, of: Record, ours: Numbers, printed: Column
) -> dict[str, object]:
    number, published = ours.get(method.label), printed.get(method.label)
    return {
        "task": one.task.name,
        "data": one.data.name,
        "stand_in": one.data.is_stand_in,
        "method": method.label,
        **of,
        "seeds": len(number.values) if number else 0,
        "mean": number.mean if number else None,
        "std": number.std if number else None,
        "published_mean": published.mean if published else None,
        "published_std": published.std if published else None,
    }


def _test_rows(
    chosen: Sequence[Chosen],
    methods: Sequence[Method],
    compared: Mapping[str, Sequence[Comparison]],
) -> Iterator[tuple[str, ...]]:
    """A row for each Δ-FL with the p-values of its task below each number."""
    tests = {one.label: {test.method: test for test in compared[one.label]} for one in chosen}
    for method in methods:
        is_delta_fl = str(method.layer["federation"]["algorithm"]).endswith("delta-fl")
        if is_delta_fl and any(method.label in own for own in tests.values()):
            row = [f"test: {method.label} lower than {FEDAVG.label}"]
            for own in tests.values():
                row += [_p_values(own.get(method.label)), "", ""]
            yield tuple(row)


def _p_values(one: Comparison | None) -> str:
    if one is None:
        return NONE
    return f"{_p(one.adjusted_p_seeds)} over seeds, {_p(one.adjusted_p_devices)} over devices"


def _p(value: float | None) -> str:
    text = p_value(value, _P_DIGITS)
    return f"p {text}" if text.startswith(("<", NONE)) else f"p = {text}"


def _shown(printed: Published | None, lowest: float | None) -> str:
    if printed is None:
        return NONE
    return bold(plus_minus(printed.mean, printed.std), printed.mean == lowest)


def _off(ours: OverSeeds | None, printed: Published | None) -> str:
    distance = off_by(ours, printed) if ours and printed else None
    return NONE if distance is None else f"{distance:+.1f} σ"
