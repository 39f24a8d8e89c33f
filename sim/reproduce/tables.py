"""The tables of the papers: our numbers beside the published ones.

Ours are mean ± standard deviation over seeds (divisor n − 1). "off by" is the difference, ours less
published, in standard deviations: √(s² + s'²) of the two over their seeds. The best of a column is
bold.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from deltafl.fl.data.registry import FORMATS
from deltafl.fl.metrics import PERCENTILES, summarise_fairness
from deltafl.sim.data.cli import beside_paper, measured
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.comparison import compare_methods, comparison_table
from deltafl.sim.reproduce.experiment import (
    NONE,
    Finished,
    Record,
    Report,
    Request,
    Runs,
    Table,
    bold,
    mean_and_std,
    percent_error,
    plus_minus,
    read_runs,
)
from deltafl.sim.reproduce.grid import Experiment, config_of, notes_of
from deltafl.sim.reproduce.methods import FEDAVG, Column, Method, Published
from deltafl.sim.reproduce.statistics import Comparison
from deltafl.sim.reproduce.tasks import DATA_SETS, Chosen, Task, choose_tasks
from deltafl.sim.run.algorithms import keeps_enough

_SIZES: Final = ("classes", "train_devices", "test_devices", "median", "min", "max")
_EXPOSED: Final = "not private at this cohort"
_P_VALUES: Final = (
    "p-values are two-sided, and Holm's correction is for all methods of the task: over runs a "
    "paired t test, over test devices a paired bootstrap, with several runs never surer than over "
    "runs."
)


def off_by(mean: float | None, std: float | None, published: Published | None) -> float | None:
    """How far ours is from the published number, in standard deviations; None if both have none."""
    if mean is None or published is None:
        return None
    spread = math.hypot(std or 0.0, published.std)
    return (mean - published.mean) / spread if spread else None


@dataclass(frozen=True, slots=True)
class ErrorTable(Experiment):
    """A statistic of the test error over devices, methods × tasks.

    Attributes:
        published: the paper's numbers, from the task to the label of the method.
        percentile: the statistic, one of `deltafl.fl.metrics.PERCENTILES`; None is the mean.
    """

    published: Mapping[str, Column] = field(default_factory=dict)
    percentile: int | None = None

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
            )
            for one in chosen
            if compared[one.label]
        )
        statistic = {"statistic": "mean" if self.percentile is None else f"p{self.percentile}"}
        measure = partial(percent_error, percentile=self.percentile)
        records: list[Record] = []
        for one in chosen:
            printed = self.published.get(one.task.name, {})
            records += _records(request, runs, one, methods, statistic, measure, printed, min)
        title = f"{self.title} (%)"
        table = Table.wide(self.name, title, records, ("method",), partial(self._cells, chosen))
        return Report((table, *tests), notes=(*notes_of(request, chosen, methods), _P_VALUES))

    def _cells(self, chosen: Sequence[Chosen], one: Record) -> dict[str, str]:
        label = next(each.label for each in chosen if each.task.name == one["task"])
        lowest = min(
            (each.mean for each in self.published.get(one["task"], {}).values()), default=0
        )
        off = NONE if one["off_by"] is None else f"{one['off_by']:+.1f} σ"
        texts = _ours(one), _paper(one, lowest), off
        return {f"{label}: {word}": text for word, text in zip(_WORDS, texts, strict=True)}

    def _compared(self, runs: Mapping[str, Sequence[Evaluation]]) -> Sequence[Comparison]:
        """Every method with FedAvg; nothing where there are no two to compare."""
        if len(runs) < 2 or FEDAVG.label not in runs:
            return ()
        found = compare_methods(runs, baseline=FEDAVG.label, percentile=self.percentile)
        return sorted(found, key=lambda one: one.method != FEDAVG.label)


@dataclass(frozen=True, slots=True)
class FairnessTable(Experiment):
    """How evenly methods serve the devices: AAggFF's metrics, methods × metrics, for each task.

    Attributes:
        metrics: its columns, of `METRICS`.
        published: the paper's numbers, from the metric and the task to the label of the method:
            areas under the ROC curve, to which our accuracies have no distance.
    """

    metrics: tuple[str, ...] = ()
    published: Mapping[str, Mapping[str, Column]] = field(default_factory=dict)

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """One table per task."""
        chosen, methods = self.chosen(request)
        runs = read_runs(finished)
        accuracy = "Accuracies weigh devices by their test samples, as AAggFF's code does."
        return Report(
            tables=tuple(self._table(request, one, methods, runs) for one in chosen),
            notes=(*notes_of(request, chosen, methods), accuracy),
        )

    def _table(self, request: Request, one: Chosen, methods: Sequence[Method], runs: Runs) -> Table:
        records: list[Record] = []
        for name in self.metrics:
            key, arrow = METRICS[name]
            printed = self.published.get(name, {}).get(one.task.name, {})
            measured = {"metric": name}, _fairness(key), printed, min if arrow == "↓" else max
            found = _records(request, runs, one, methods, *measured)
            records += [{**each, "off_by": None} for each in found]
        several = len(self.tasks) > 1
        of = f", {one.label}" if several or one.data.is_stand_in else ""
        return Table.wide(
            f"{self.name}-{one.task.name}" if several else self.name,
            f"{self.title}{of} (accuracy in %, Gini in %)",
            records,
            ("method",),
            self._cells,
        )

    def _cells(self, one: Record) -> dict[str, str]:
        name = one["metric"]
        of_paper = {f"{name}: the paper's AUROC": _paper(one, None)}
        printed = self.published.get(name, {}).get(one["task"], {})
        return {f"{name} {METRICS[name][1]}": _ours(one), **(of_paper if printed else {})}


METRICS: Final = {
    "average": ("average", "↑"),
    "worst": ("worst", "↑"),
    "worst 10 %": ("worst_tenth", "↑"),
    "best 10 %": ("best_tenth", "↑"),
    "Gini": ("gini", "↓"),
    "parity gap": ("gap", "↓"),
}
"""AAggFF's, in the order of its tables: a field of the summary, and which way is better. The paper
prints the Gini coefficient times a factor that the text has lost; here it is in percent."""


def _fairness(key: str) -> Callable[[Evaluation], float]:
    """A measure of how evenly devices are served, in percent."""
    return lambda evaluation: 100 * float(getattr(summarise_fairness(evaluation.test), key))


@dataclass(frozen=True, slots=True)
class DataTable(Experiment):
    """Table 1: how large the data sets are, one task for each family. Needs no training."""

    def cells(self, request: Request) -> tuple[()]:
        """None; but what the request cannot have is found out before anything else is run."""
        choose_tasks(request, self.tasks)
        return ()

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """Our data beside the paper's."""
        del finished
        chosen = choose_tasks(request, self.tasks)
        records = []
        for one in chosen:
            paper = next(data for data in DATA_SETS if data.family == one.task.family)
            published = FORMATS[str(paper.section["format"])].published
            dataset = build_dataset(config_of(request, one, FEDAVG, 1).data)
            counted = beside_paper(measured(dataset), published)
            _, ours, theirs = zip(*counted[: len(_SIZES)], strict=True)
            for name, sizes in ((one.data.name, ours), (f"{one.task.family}, paper", theirs)):
                records.append({"data": name, **dict(zip(_SIZES, sizes, strict=True))})
        columns = {"data": "data", **{key.replace("_", " "): f"{{{key}:g}}" for key in _SIZES}}
        table = Table.of(self.name, self.title, records, columns)
        notes = (
            "Median, min and max are of the points per train device; the paper's median of "
            "Shakespeare, 1288, is that of all roles.",
            *(f"{one.data.name} is a stand-in." for one in chosen if one.data.is_stand_in),
        )
        return Report(tables=(table,), notes=notes)


def _complete(
    runs: Runs, task: Task, methods: Sequence[Method]
) -> dict[str, tuple[Evaluation, ...]]:
    """The methods that ran with all the seeds that FedAvg ran with, which can be paired."""
    baseline = runs.get((task.name, FEDAVG.label), {})
    found = {method.label: runs.get((task.name, method.label), {}) for method in methods}
    return {
        label: tuple(one.values())
        for label, one in found.items()
        if one and one.keys() == baseline.keys()
    }


def _records(
    request: Request,
    runs: Runs,
    one: Chosen,
    methods: Sequence[Method],
    of: Record,
    measure: Callable[[Evaluation], float],
    printed: Column,
    choose: Callable[..., float | None],
) -> list[Record]:
    """A measure of every method on a task, beside what the paper prints; and which is best."""
    found: list[dict[str, object]] = []
    for method in methods:
        own = runs.get((one.task.name, method.label), {})
        mean, std = mean_and_std(map(measure, own.values()))
        published = printed.get(method.label)
        found.append(
            {
                "task": one.task.name,
                "data": one.data.name,
                "stand_in": one.data.is_stand_in,
                "method": method.label,
                **of,
                "seeds": len(own),
                "mean": mean,
                "std": std,
                "published_mean": getattr(published, "mean", None),
                "published_std": getattr(published, "std", None),
                "off_by": off_by(mean, std, published),
                "keeps_enough": keeps_enough(config_of(request, one, method, 1)),
            }
        )
    means = [record["mean"] for record in found if record["mean"] is not None]
    best = choose(means, default=None)
    return [{**record, "best": best is not None and record["mean"] == best} for record in found]


_WORDS: Final = ("ours", "paper", "off by")


def _ours(one: Record) -> str:
    """Our number, marked if it is the best, or why there is none."""
    if one["mean"] is None and not one["keeps_enough"]:
        return _EXPOSED
    return bold(plus_minus(one["mean"], one["std"]), one["best"])


def _paper(one: Record, lowest: float | None) -> str:
    mean = one["published_mean"]
    return bold(plus_minus(mean, one["published_std"]), mean is not None and mean == lowest)
