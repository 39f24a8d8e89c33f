"""The runs behind a figure: which they are, and their numbers by device and by round."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from deltafl.fl.metrics import PERCENTILES, summarise_test_error, summarise_train_loss
from deltafl.sim.errors import damaged
from deltafl.sim.record.evaluations import Evaluation, read_evaluations, read_last_evaluation
from deltafl.sim.record.events import Event, read_events
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.experiment import Cell, Finished, Report, Request, Table
from deltafl.sim.reproduce.grid import make_cells, notes_of
from deltafl.sim.reproduce.methods import Method, choose_methods
from deltafl.sim.reproduce.tasks import Chosen, choose_tasks, task_named

Numbers = npt.NDArray[np.float64]

TRAIN: Final = "train"
TEST: Final = "test"
METRICS: Final = {TRAIN: "training loss (nats)", TEST: "test error"}
"""What the papers measure on the devices of each split, as an axis says it."""

STATISTICS: Final = ("mean", *(f"p{tau}" for tau in PERCENTILES))
"""What is drawn of its distribution over devices: the mean and the percentiles."""


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The runs of one method on one task, one per seed.

    Attributes:
        method: its label.
        seeds: of the runs.
        directories: where they lie, in the order of the seeds.
    """

    method: str
    seeds: tuple[int, ...]
    directories: tuple[RunDirectory, ...]

    def last_evaluations(self) -> list[Evaluation]:
        """How the final models do, one per seed.

        Raises:
            RunDirectoryError: a run has none.
        """
        found = []
        for directory in self.directories:
            last = read_last_evaluation(directory.metrics)
            if last is None:
                raise damaged(directory.metrics, "it has no evaluation")
            found.append(last)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class TaskRuns:
    """All runs of a figure on one task.

    Attributes:
        chosen: the task and its data.
        methods: their runs, in the order of the legend.
    """

    chosen: Chosen
    methods: tuple[Runs, ...]

    @property
    def heading(self) -> str:
        """The task's title; says so if the data are a stand-in."""
        return (
            f"{self.chosen.label}: stand-in" if self.chosen.data.is_stand_in else self.chosen.label
        )


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The tasks and methods that a figure shows, unless a person asks for others.

    Attributes:
        tasks: by name.
        methods: in the order of the legend.
    """

    tasks: tuple[str, ...]
    methods: tuple[Method, ...]

    def cells(self, request: Request) -> tuple[Cell, ...]:
        """The runs that the figure needs.

        Raises:
            ConfigError: the request cannot be met.
        """
        return make_cells(request, self._chosen(request), self._methods(request))

    def by_task(self, request: Request, finished: Sequence[Finished]) -> list[TaskRuns]:
        """Sort finished runs by task and method; what has no runs is left out."""
        found = []
        for chosen in self._chosen(request):
            mine = [one for one in finished if one.cell.task == chosen.task.name]
            labels = dict.fromkeys(one.cell.method for one in mine)
            if labels:
                found.append(TaskRuns(chosen, tuple(_runs(mine, label) for label in labels)))
        return found

    def notes(self, request: Request) -> tuple[str, ...]:
        """Say what differs from the paper, such as data that are a stand-in."""
        return notes_of(request, self._chosen(request), self._methods(request))

    def _chosen(self, request: Request) -> tuple[Chosen, ...]:
        return choose_tasks(request, tuple(task_named(name) for name in self.tasks))

    def _methods(self, request: Request) -> tuple[Method, ...]:
        """Words may name methods that only this figure has, or any other."""
        if request.methods is None:
            return self.methods
        own = {word: method for method in self.methods for word in (method.key, method.label)}
        found: dict[str, Method] = {}
        for word in request.methods:
            method = own[word] if word in own else choose_methods((word,), ())[0]
            found[method.key] = method
        return tuple(found.values())


Row = tuple[str, ...]
Record = Mapping[str, object]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """What a figure says of one task.

    Attributes:
        figures: by their names; none where nothing is known.
        rows: of the table.
        records: of the table.
        notes: sentences that a reader must know.
    """

    figures: Mapping[str, Figure]
    rows: Sequence[Row]
    records: Sequence[Record]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TaskFigure(ABC):
    """A figure that shows each of its tasks in the same way, as an experiment.

    Attributes:
        name: on the command line.
        title: what it shows.
        source: which figure.
        selection: tasks and methods.
        further_notes: what else a reader must know.
        numbers: what its table has of it, in words.
        columns: of the table.
    """

    numbers: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]

    name: str
    title: str
    source: str
    selection: Selection
    further_notes: tuple[str, ...] = ()

    def cells(self, request: Request) -> Sequence[Cell]:
        """The runs that it needs."""
        return self.selection.cells(request)

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """Draw its tasks, with one table of them all."""
        drawn = [self.of_task(task) for task in self.selection.by_task(request, finished)]
        table = Table(
            self.name,
            f"{self.title}: {self.numbers}",
            self.columns,
            tuple(row for one in drawn for row in one.rows),
            tuple(record for one in drawn for record in one.records),
        )
        figures = {name: figure for one in drawn for name, figure in one.figures.items()}
        notes = dict.fromkeys(note for one in drawn for note in one.notes)
        return Report(
            (table,), figures, (*self.selection.notes(request), *self.further_notes, *notes)
        )

    @abstractmethod
    def of_task(self, task: TaskRuns) -> Drawn:
        """Draw one task."""


@dataclass(frozen=True, slots=True)
class DeviceValue:
    """A metric on one device, averaged over the seeds in which the device appears.

    Attributes:
        id: the device.
        num_samples: of it.
        value: training loss in nats, or test error in [0, 1].
        seeds: how many there are.
    """

    id: str
    num_samples: int
    value: float
    seeds: int


def per_device(evaluations: Sequence[Evaluation], split: str) -> list[DeviceValue]:
    """Average the loss of training devices, or the error of test devices, over seeds.

    The published splits differ between seeds, so that not every device is in every one
    (arXiv 2002.11223, Appendix C.3, averages over five runs all the same).
    """
    values: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for evaluation in evaluations:
        for device in evaluation.train if split == TRAIN else evaluation.test:
            value = device.loss if split == TRAIN else device.error
            values.setdefault(device.id, []).append(value)
            sizes[device.id] = device.num_samples
    return [
        DeviceValue(name, sizes[name], float(np.mean(found)), len(found))
        for name, found in sorted(values.items())
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """How a method performs over the rounds.

    Attributes:
        rounds: of the evaluations, shape (points,).
        sums: secure sums until then, mean over seeds, shape (points,).
        values: from split and statistic to one row per seed, shape (seeds, points).
    """

    rounds: Numbers
    sums: Numbers
    values: dict[tuple[str, str], Numbers]


def course(runs: Runs) -> Course:
    """Read how a method's models do over the rounds.

    Raises:
        RunDirectoryError: the runs were not evaluated after the same rounds.
    """
    evaluations = [read_evaluations(one.metrics) for one in runs.directories]
    rounds = [evaluation.round for evaluation in evaluations[0]]
    for directory, run in zip(runs.directories, evaluations, strict=True):
        if not run or [evaluation.round for evaluation in run] != rounds:
            raise damaged(directory.metrics, f"it has not the evaluations of rounds {rounds}")
    summaries = {
        TRAIN: [[summarise_train_loss(one.train) for one in run] for run in evaluations],
        TEST: [[summarise_test_error(one.test) for one in run] for run in evaluations],
    }
    values = {
        (split, statistic): np.array(
            [
                [
                    one.mean if statistic == "mean" else one.percentiles[int(statistic[1:])]
                    for one in run
                ]
                for run in found
            ]
        )
        for split, found in summaries.items()
        for statistic in STATISTICS
    }
    return Course(np.array(rounds, dtype=np.float64), _sums(runs, rounds), values)


def events(runs: Runs) -> Iterator[list[Event]]:
    """What happened in each round, one list per seed."""
    return (read_events(directory.events) for directory in runs.directories)


def describe(statistic: str) -> str:
    """A statistic in words: "mean", "90th percentile"."""
    return "mean" if statistic == "mean" else f"{statistic[1:]}th percentile"


def _sums(runs: Runs, rounds: Sequence[int]) -> Numbers:
    """Secure sums until the end of each of `rounds`; a run in clear counts as if it were secure."""
    per_seed = []
    for played in events(runs):
        until = np.cumsum([0] + [int(str(event["secure_sums"])) for event in played])
        per_seed.append(until[np.array(rounds, dtype=np.int64)])
    return np.asarray(np.mean(per_seed, axis=0))


def _runs(finished: Sequence[Finished], label: str) -> Runs:
    mine = [one for one in finished if one.cell.method == label]
    return Runs(
        label,
        tuple(one.cell.seed for one in mine),
        tuple(one.directory for one in mine),
    )
