"""What experiments are made of: requests, runs, tables and reports."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np

from deltafl.fl.metrics import summarise_test_error
from deltafl.fl.nearest import nearest
from deltafl.sim.errors import ConfigError, damaged
from deltafl.sim.record.evaluations import Evaluation, read_evaluations, read_last_evaluation
from deltafl.sim.record.events import Event, read_events
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.settings.config import RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # loads the plotting library

Found = TypeVar("Found")

NONE: Final = "–"
"""What stands in a table where there is no number."""

Record: TypeAlias = Mapping[str, Any]
Columns: TypeAlias = Mapping[str, str | Callable[[Record], str]]
Runs: TypeAlias = Mapping[tuple[str, str], Mapping[int, Evaluation]]
"""From task and label of a method to the final evaluations by seed."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asked for; None leaves it to the experiment.

    Attributes:
        out: folder of the results, and of the runs under it.
        data: from the name of a data set ("unipen62", "shakespeare") to where it lies.
        models: which models.
        methods: which methods, by their labels.
        seeds: how many.
        attacks: which attacks, by their keys, of experiments that have any.
        rounds: how many, or which share of the paper's number, where that takes too long.
        settings: whose hyper-parameters: "paper" or "script" (of the published code).
        overrides: settings of `deltafl.sim.settings.config` to change in every run,
            {section: {key: value}}.
    """

    out: Path
    data: Mapping[str, Path] = field(default_factory=dict)
    models: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    seeds: int | None = None
    attacks: tuple[str, ...] | None = None
    rounds: int | Fraction | None = None
    settings: str = "paper"
    overrides: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of an experiment.

    Attributes:
        task: data and model, such as "emnist-convnet".
        method: the label of the method in tables, such as "Δ-FL θ=0.5".
        seed: also in `config`; cells that differ only in the method meet the same cohorts.
        config: all settings of one run.
    """

    task: str
    method: str
    seed: int
    config: RunConfig

    def __str__(self) -> str:
        """Task, method, seed."""
        return f"{self.task}, {self.method}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Finished:
    """A cell that has been run, now or before.

    Attributes:
        cell: what was asked for.
        directory: the run: metrics, events, summary.
    """

    cell: Cell
    directory: RunDirectory


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is printed.

    Attributes:
        name: of its files.
        title: in words.
        columns: headings.
        rows: as many texts as columns each.
        records: the same with full precision, one JSON object per row or finer.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[Record, ...] = ()

    @classmethod
    def of(cls, name: str, title: str, records: Sequence[Record], columns: Columns) -> "Table":
        """A table with a row for each record.

        Args:
            name: of its files.
            title: in words.
            records: with full precision.
            columns: from a heading to the key of what stands there, or to how it is written: a
                function, or a format of keys.
        """
        rows = tuple(tuple(_cell(one, how) for how in columns.values()) for one in records)
        return cls(name, title, tuple(columns), rows, tuple(records))

    @property
    def filled(self) -> "Table":
        """The same without columns that are empty in every row."""
        kept = [n for n, column in enumerate(zip(*self.rows, strict=True)) if {*column} - {NONE}]
        rows = tuple(tuple(row[n] for n in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[n] for n in kept), rows=rows)

    @classmethod
    def wide(
        cls,
        name: str,
        title: str,
        records: Sequence[Record],
        keys: tuple[str, ...],
        cells: Callable[[Record], Mapping[str, str]],
    ) -> "Table":
        """A table with a row for each value of some keys, of the cells of several records.

        Args:
            name: of its files.
            title: in words.
            records: with full precision.
            keys: of the rows.
            cells: what stands in the row of a record, by heading.
        """
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for one in records:
            lines.setdefault(tuple(one[key] for key in keys), {}).update(cells(one))
        headings = dict.fromkeys(heading for line in lines.values() for heading in line)
        rows = tuple(
            (*first, *(line.get(heading, NONE) for heading in headings))
            for first, line in lines.items()
        )
        return cls(name, title, (*keys, *headings), rows, tuple(records))


def _cell(record: Record, how: str | Callable[[Record], str]) -> str:
    if not isinstance(how, str):
        return how(record)
    return how.format_map(record) if "{" in how else str(record[how])


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """The results of an experiment.

    Attributes:
        tables: printed, and written as Markdown, CSV and JSON lines.
        figures: from file name (without ending) to figure; written as PNG and SVG.
        notes: sentences that a reader must know, such as which data are a stand-in.
    """

    tables: tuple[Table, ...] = ()
    figures: "Mapping[str, Figure]" = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def mean_and_std(values: Iterable[float]) -> tuple[float | None, float | None]:
    """Over seeds: the mean, and the standard deviation, divisor n − 1; None of too few."""
    found = np.array([*values], dtype=np.float64)
    std = float(found.std(ddof=1)) if found.size > 1 else None
    return float(found.mean()) if found.size else None, std


def spread(values: Mapping[str, Iterable[float]]) -> dict[str, float | None]:
    """Mean and deviation over seeds of some numbers, for a record: `KEY_mean` and `KEY_std`."""
    return {
        f"{key}_{part}": number
        for key, own in values.items()
        for part, number in zip(("mean", "std"), mean_and_std(own), strict=True)
    }


def plus_minus(mean: float | None, std: float | None, digits: int = 2, sign: str = "") -> str:
    """A mean with its standard deviation, if there is one, as in tables."""
    if mean is None:
        return NONE
    return f"{mean:{sign}.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def spread_of(key: str, digits: int = 2) -> Callable[[Record], str]:
    """How a record's `KEY_mean` and `KEY_std` are written; bold in a record that is `chosen`."""

    def written(row: Record) -> str:
        text = plus_minus(row[f"{key}_mean"], row[f"{key}_std"], digits)
        return bold(text, row.get("chosen", False) and text != NONE)

    return written


def by_method(finished: Sequence[Finished]) -> dict[tuple[str, str], dict[int, RunDirectory]]:
    """From task and label of a method to its runs by seed, in ascending order."""
    found: dict[tuple[str, str], dict[int, RunDirectory]] = {}
    for one in finished:
        key = one.cell.task, one.cell.method
        found.setdefault(key, {})[one.cell.seed] = one.directory
    return {key: dict(sorted(own.items())) for key, own in found.items()}


def read_runs(finished: Sequence[Finished]) -> Runs:
    """Read the final evaluation of every cell, seeds in ascending order."""
    return {
        key: {seed: last_evaluation(directory) for seed, directory in own.items()}
        for key, own in by_method(finished).items()
    }


def last_evaluation(directory: RunDirectory) -> Evaluation:
    """How the final model of a run does.

    Raises:
        RunDirectoryError: it was never evaluated.
    """
    with directory.read() as record:
        last = read_last_evaluation(record)
    if last is None:
        raise damaged(directory.record, "it has no evaluation")
    return last


def evaluations_of(directory: RunDirectory) -> list[Evaluation]:
    """All evaluations of a run of one level, by round."""
    with directory.read() as record:
        return list(read_evaluations(record))


def events_of(directory: RunDirectory) -> list[Event]:
    """What happened in each round of a run."""
    with directory.read() as record:
        return read_events(record)


def percent_error(evaluation: Evaluation, percentile: int | None) -> float:
    """A percentile of the test error over devices in percent, or its mean."""
    error = summarise_test_error(evaluation.test)
    return 100 * (error.mean if percentile is None else error.percentiles[percentile])


def bold(text: str, really: bool = True) -> str:
    """The best of a column is marked."""
    return f"**{text}**" if really else text


def find(word: str, known: Mapping[str, Found], where: str) -> Found:
    """What is called by a word.

    Args:
        word: as a person gave it.
        known: everything by its name.
        where: what the sentence to the person begins with.

    Raises:
        ConfigError: nothing is.
    """
    if word not in known:
        raise ConfigError(f"{where} {word!r}: {nearest(word, known)}")
    return known[word]
