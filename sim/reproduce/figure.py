"""A figure of the paper: the runs behind it, drawn task by task, with one table of them all."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.experiment import (
    Columns,
    Finished,
    Record,
    Report,
    Request,
    Table,
    by_method,
)
from deltafl.sim.reproduce.grid import Experiment, notes_of
from deltafl.sim.reproduce.tasks import Chosen

TRAIN: Final = "train"
TEST: Final = "test"
METRICS: Final = {TRAIN: "training loss (nats)", TEST: "test error"}
"""What the papers measure on the devices of each split, as an axis says it."""

Seeds: TypeAlias = Mapping[int, RunDirectory]
"""The runs of one method on one task, by seed."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskRuns:
    """All runs of a figure on one task.

    Attributes:
        chosen: the task and its data.
        methods: their runs, by their labels, in the order of the legend.
    """

    chosen: Chosen
    methods: Mapping[str, Seeds]

    @property
    def heading(self) -> str:
        """The task's title; says so if the data are a stand-in."""
        return self.chosen.label + ": stand-in" * self.chosen.data.is_stand_in

    def record(self, **further: object) -> Record:
        """A record that says which task and data it is of."""
        task, data = self.chosen.task.name, self.chosen.data.name
        return {"task": task, "data": data, "title": self.chosen.label, **further}


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """What a figure says of one task.

    Attributes:
        figures: by what they add to the name of the task's; none where nothing is known.
        records: of the table, a row each.
        notes: sentences that a reader must know.
    """

    figures: Mapping[str, Figure]
    records: Sequence[Record]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TaskFigure(Experiment):
    """A figure that shows each of its tasks in the same way.

    Attributes:
        further_notes: what else a reader must know.
        numbers: what its table has of it, in words.
        columns: of the table, after the task: from a heading to how it is written.
        units: what is multiplied with in tables by split, what that is called, and the digits.
    """

    numbers: ClassVar[str]
    columns: ClassVar[Columns]
    units: ClassVar = {TRAIN: (1, METRICS[TRAIN], 3), TEST: (100, "test error (%)", 2)}

    further_notes: tuple[str, ...] = ()

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """Draw its tasks, with one table of them all; what has no runs is left out."""
        chosen, methods = self.chosen(request)
        tasks = [TaskRuns(one, _of_task(finished, one)) for one in chosen]
        drawn = {task.chosen.task.name: self.of_task(task) for task in tasks if task.methods}
        records = [record for one in drawn.values() for record in one.records]
        columns = {"task": "title", **self.columns}
        table = Table.of(self.name, f"{self.title}: {self.numbers}", records, columns)
        figures = {
            f"{self.name}-{task}{suffix}": figure
            for task, one in drawn.items()
            for suffix, figure in one.figures.items()
        }
        notes = [*notes_of(request, chosen, methods), *self.further_notes]
        notes += dict.fromkeys(note for one in drawn.values() for note in one.notes)
        return Report((table,), figures, tuple(notes))

    @staticmethod
    def in_percent(axis: Axis, split: str, decimals: int | None = 0) -> None:
        """Write shares on an axis with so many decimals, or as many as are needed."""
        if split == TEST:
            axis.set_major_formatter(PercentFormatter(1.0, decimals=decimals))

    @abstractmethod
    def of_task(self, task: TaskRuns) -> Drawn:
        """Draw one task."""


def _of_task(finished: Sequence[Finished], chosen: Chosen) -> dict[str, Seeds]:
    runs = by_method(finished).items()
    return {method: own for (task, method), own in runs if task == chosen.task.name}
