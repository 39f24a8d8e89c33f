"""Tuning with the test devices out of reach: as in the paper, and the parts that the headline has.

The rest of this is of arXiv 2002.11223, Appendix C.2.2; `divide` says how the headline's are made.

Learning rate: γ0 and the decay c are tuned for FedAvg alone, by the mean train loss at the end,
devices weighted by their samples; every method then takes them. The paper prints c's grid
({1/8, 1/4, 1/2, 1}, neural networks only) and not γ0's: ours is the task's γ0 times 1/4 … 4.

λ of the linear models: tuned for FedAvg and each θ on their own over {1e-3, …, 1e-8}. A share of
the train devices is held out (half in the paper; a fifth in the published code, but for Sent140),
and the smallest 90th percentile of their test error wins. (Appendix C.2.2 says the 10th percentile
of the error, Section 5 the 90th; only the latter measures a tail.) The train devices are first
written to a file of their own, and the runs read nothing else. Of equals the first is chosen.
"""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from deltafl.fl.data.federated import DeviceData, draw_rows
from deltafl.fl.data.shakespeare import ALPHABETS
from deltafl.fl.data.shakespeare import FORMAT as SHAKESPEARE
from deltafl.fl.errors import DataError
from deltafl.fl.metrics import summarise_train_loss
from deltafl.sim.data.convert import as_archive
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.own_files import write_file
from deltafl.sim.reproduce.experiment import (
    Cell,
    Columns,
    Finished,
    Record,
    Report,
    Request,
    Runs,
    Table,
    percent_error,
    read_runs,
    spread,
    spread_of,
)
from deltafl.sim.reproduce.grid import Experiment, config_of, notes_of
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG, Method, choose_methods
from deltafl.sim.reproduce.tasks import Chosen, Task, choose_tasks
from deltafl.sim.settings.config import DataConfig, RunConfig

RATE: Final = "rate"
L2: Final = "l2"

_RATE_FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
_DECAYS: Final = (0.125, 0.25, 0.5, 1.0)
_L2_GRID: Final = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
_TAIL: Final = 90
_DIGITS: Final = 4
_TEXT: Final = SHAKESPEARE.name


class Grid(NamedTuple):
    """What is tried, and how it is measured.

    Attributes:
        name: of its table.
        title: of its table.
        task: the name of the task.
        seeds: how many each point is tried with.
        points: by the label of a method and its setting in words, method by method: the settings of
            a run with a seed.
        measures: of the final models, by name; the first one decides.
        digits: of the numbers, for points may lie close together.
    """

    name: str
    title: str
    task: str
    seeds: int
    points: Mapping[tuple[str, str], Callable[[int], RunConfig]]
    measures: Mapping[str, Callable[[Evaluation], float]]
    digits: int = 2

    def cells(self) -> Iterator[Cell]:
        """Every point, with every seed."""
        for point, config in self.points.items():
            for seed in range(1, self.seeds + 1):
                yield Cell(self.task, ", ".join(point), seed, config(seed))

    def records(self, runs: Runs) -> Iterator[dict[str, Any]]:
        """What each point came to."""
        for point in self.points:
            ended = runs.get((self.task, ", ".join(point)), {})
            numbers = {name: map(one, ended.values()) for name, one in self.measures.items()}
            of = dict(zip(("task", "method", "setting"), (self.task, *point), strict=True))
            yield {**of, "seeds": len(ended), **spread(numbers)}


class GridSearch(Experiment):
    """Methods at every point of their grids, and what to choose."""

    @abstractmethod
    def grids(self, request: Request) -> Iterator[Grid]:
        """What is tried."""

    def best(self, found: Sequence[Record], key: str) -> Record | None:
        """Which of a method's points is taken, the one with the smallest number."""
        return smallest(found, key)

    def cells(self, request: Request) -> Sequence[Cell]:
        """Every point of every grid."""
        return [cell for grid in self.grids(request) for cell in grid.cells()]

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """A table for each grid, with a row for each point."""
        runs = read_runs(finished)
        tables, notes = [], []
        for grid in self.grids(request):
            found = [*grid.records(runs)]
            for _, own in groupby(found, itemgetter("method")):
                points = [*own]
                best = self.best(points, f"{next(iter(grid.measures))}_mean")
                notes += ["{task}, {method}: {setting}.".format_map(best)] if best else []
                for one in points:
                    one["chosen"] = one is best
            of = {name: spread_of(name, grid.digits) for name in grid.measures}
            columns: Columns = {"method": "method", "setting": "setting", **of}
            tables.append(Table.of(grid.name, grid.title, found, columns))
        if any(not record["seeds"] for table in tables for record in table.records):
            notes.append(
                "A point without a number has no result: its run failed, mostly by divergence."
            )
        return Report(tuple(tables), notes=tuple(notes))


class Tuning(GridSearch):
    """The grids of one task."""

    @property
    def what(self) -> tuple[str, ...]:
        """What is tuned: the rate and, of a linear model, λ."""
        (task,) = self.tasks
        has_l2 = "l2" in task.settings.get("training", {}) and task.model == "linear"
        return (RATE, L2) if has_l2 else (RATE,)

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """The grids, what to choose, and what differs from the paper."""
        report = super().report(request, finished)
        notes = notes_of(request, [self._one(request)], [FEDAVG])
        return replace(report, notes=(*report.notes, *notes))

    def _one(self, request: Request) -> Chosen:
        return choose_tasks(replace(request, models=(self.tasks[0].name,)), self.tasks)[0]

    def grids(self, request: Request) -> Iterator[Grid]:
        """One of each that is tuned, with one seed unless more are asked for."""
        one, seeds = self._one(request), request.seeds or 1
        for what in self.what:
            tried = _rates(request, one) if what == RATE else _penalties(request, one)
            points = {
                (
                    method.label,
                    " ".join(f"--set training.{key}={of:g}" for key, of in values.items()),
                ): (partial(_config, request, one, method, values, changes))
                for method, values, changes in tried
            }
            name, title, measure = _CRITERIA[what]
            of = one.task.name, seeds, points, {name: measure}, _DIGITS
            yield Grid(f"{self.name}-{what}", title, *of)


def tuning_of(task: Task) -> Tuning:
    """The tuning of a task."""
    source = "arXiv 2002.11223, Section 5 and Appendix C.2.2"
    return Tuning(f"tune-{task.name}", f"Tuning of {task.title}", source, (task,))


_Tried: TypeAlias = Iterator[tuple[Method, dict[str, float], dict[str, Any]]]
"""Methods, settings of the section [training], and whole sections."""


def _rates(request: Request, one: Chosen) -> _Tried:
    training = config_of(request, one, FEDAVG, 1).training
    # a constant rate, as the paper has for linear models
    decays = (1.0,) if training.decay == 1 else _DECAYS
    for factor, decay in product(_RATE_FACTORS, decays):
        yield FEDAVG, {"learning_rate": factor * training.learning_rate, "decay": decay}, {}


def _penalties(request: Request, one: Chosen) -> _Tried:
    changes = _held_out(request, one)
    for method, value in product(choose_methods(request.methods, (FEDAVG, *DELTA_FL)), _L2_GRID):
        yield method, {"l2": value}, changes


def _config(
    request: Request,
    one: Chosen,
    method: Method,
    values: dict[str, Any],
    changes: dict[str, Any],
    seed: int,
) -> RunConfig:
    config = config_of(request, one, method, seed)
    return replace(config, training=replace(config.training, **values), **changes)


def _held_out(request: Request, one: Chosen) -> dict[str, Any]:
    """Write the train devices to a file of their own, once, and split them anew.

    Returns:
        The sections of a run on them, whose cohort is no larger than they are.
    """
    whole = config_of(request, one, FEDAVG, 1)
    data = whole.data
    digest = hashlib.sha256(repr(data).encode()).hexdigest()[:16]
    path = request.out.resolve() / "train-devices" / f"{one.data.name}-{digest}.npz"
    dataset = build_dataset(replace(data, standardise="none"))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, as_archive(dataset.train))
    is_fifth = request.settings == "script" and one.task.family != "sent140"
    share = Fraction(1, 5) if is_fifth else Fraction(1, 2)
    divided = DataConfig(
        source=str(path),
        test_fraction=share,
        split_seed=data.split_seed,
        num_classes=dataset.num_classes,
        standardise=data.standardise,
    )
    most = max(1, int(len(dataset.train) * (1 - share)))
    cohort = min(whole.federation.cohort_size, most)
    return {"data": divided, "federation": replace(whole.federation, cohort_size=cohort)}


def smallest(records: Sequence[Record], key: str) -> Record | None:
    """The record with the smallest number, the first of equals; None of none."""
    known = (record for record in records if record[key] is not None)
    return min(known, key=lambda record: record[key], default=None)


_CRITERIA: Final[Mapping[str, tuple[str, str, Callable[[Evaluation], float]]]] = {
    RATE: (
        "train loss",
        "Mean train loss at the end, in nats",
        lambda run: summarise_train_loss(run.train).mean,
    ),
    L2: (
        "p90",
        "90th percentile of the error of held-out train devices, in %",
        partial(percent_error, percentile=_TAIL),
    ),
}


@dataclass(frozen=True, slots=True)
class Parts:
    """The files of the two parts.

    Attributes:
        tuning: of the devices that tune; an .npz archive, or LEAF's JSON of windows of text.
        testing: of all others.
    """

    tuning: Path
    testing: Path

    @property
    def format(self) -> str:
        """What the files are."""
        return _TEXT if self.tuning.suffix == ".json" else "npz"


def divide(data: DataConfig, share: Fraction, out: Path) -> Parts:
    """Write two disjoint parts of the devices, to tune and to test on, unless they are there.

    Devices are ranked by SHA-256 of their ids, and the first ones tune. Runs read only the file of
    their part, so that no test device has a say in the settings. Of a text, a part has windows
    drawn from all of it (`draw_rows`). A data set by itself takes the first ones, which overlap: 50
    windows of 20 characters would be 70 characters of a role.

    Args:
        data: which data; its rule for small devices holds, and its split does not matter.
        share: of the devices, who tune.
        out: folder of the results; the files go into its folder `parts`.

    Raises:
        ConfigError: the data cannot be used, or their settings contradict each other.
    """
    source = Path(data.source)
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    seen = [(str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in files if one.exists()]
    digest = hashlib.sha256(repr((data, share, seen)).encode()).hexdigest()[:16]
    folder = out.resolve() / "parts"
    is_text = data.format == _TEXT
    end = "json" if is_text else "npz"
    parts = Parts(folder / f"{digest}-tuning.{end}", folder / f"{digest}-testing.{end}")
    if not (parts.tuning.exists() and parts.testing.exists()):
        try:
            limit = 0 if is_text else data.max_samples
            dataset = build_dataset(replace(data, standardise="none", max_samples=limit))
        except DataError as error:
            raise ConfigError(str(error)) from error
        devices = sorted((*dataset.train, *dataset.test), key=_rank)
        count = int(len(devices) * share)
        folder.mkdir(parents=True, exist_ok=True)
        for path, some in ((parts.tuning, devices[:count]), (parts.testing, devices[count:])):
            write_file(path, _windows(some, data) if is_text else as_archive(some))
    return parts


def _rank(device: DeviceData) -> bytes:
    return hashlib.sha256(f"tuning\0{device.id}".encode()).digest()


def _windows(devices: Sequence[DeviceData], data: DataConfig) -> bytes:
    characters = np.array(list(ALPHABETS[data.alphabet].characters))
    most = data.max_samples or None
    content: dict[str, dict[str, list[str]]] = {}
    for device in devices:
        rows = draw_rows(device.id, device.num_samples, most, data.split_seed)
        content[device.id] = {
            "x": ["".join(window) for window in characters[device.x[rows]]],
            "y": characters[device.y[rows]].tolist(),
        }
    counts = [len(samples["y"]) for samples in content.values()]
    whole = {"users": list(content), "num_samples": counts, "user_data": content}
    return json.dumps(whole).encode()
