"""What an experiment of the papers is: which runs it needs, and what it prints and draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.settings.config import RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # loads the plotting library


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
    records: tuple[Mapping[str, object], ...] = ()


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


class Experiment(Protocol):
    """One table or figure of the papers."""

    @property
    def name(self) -> str:
        """Its name on the command line, such as "table2" or "fig3"."""

    @property
    def title(self) -> str:
        """What it shows, in a line."""

    @property
    def source(self) -> str:
        """Where it is in which paper."""

    def cells(self, request: Request) -> Sequence[Cell]:
        """The runs that it needs, none for one that needs no training.

        Raises:
            ConfigError: the request cannot be met.
        """

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """Make tables and figures of the runs of `cells`, in their order."""
