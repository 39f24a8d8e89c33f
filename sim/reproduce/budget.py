"""`--budget HOURS`: the most telling runs that fit into a time, and how far each run has come.

The order is a rule, and not a choice for each table:

1. what the papers are about: FedAvg, Δ-FL and private Δ-FL at θ = 0.5; then Δ-FL at other θ; then
   everything else;
2. of these, the first seed of all before the second of any;
3. of these, the shortest first.

In this order, every run that fits into what is left of the budget is planned. Of those that do not
fit, the first in clear is begun with what is left, and goes on the next time; a masked one would
lose the round in which it is stopped. How long a run takes is measured by probes, which take a
tenth of the budget at most. A run that was not measured is taken for as long as the longest
measured one of its task, per round; with none measured, it is left for the next time.

A probe is the run itself with `ROUNDS` rounds, and evaluations before the first and after the last.
Its events tell how long a round takes; when its files were written, how long an evaluation does,
and how long it takes before the first. Results are kept beside the runs, in OUT/seconds.json, by
the settings of the run and the machine: whoever goes on measures nothing again.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import torch

from deltafl.sim.cohort.hardware import processor, usable_cores
from deltafl.sim.errors import UserError
from deltafl.sim.progress import Bar
from deltafl.sim.record.events import read_events
from deltafl.sim.record.rundir import RunDirectory, read_json, write_json
from deltafl.sim.reproduce.cells import (
    Failure,
    Outcome,
    directories_of,
    key_of,
    outcome_of,
    rounds_done,
    run_cells,
)
from deltafl.sim.reproduce.experiment import Cell, Request, Table
from deltafl.sim.reproduce.grid import Plan
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG, PRIVATE_DELTA_FL
from deltafl.sim.settings.config import RunConfig

HOUR_S: Final = 3600.0
_PROBING: Final = 0.1
"""The share of the budget that probes may take."""

ROUNDS: Final = 3
"""Of a probe; the first is not counted, for a model of zeros is filtered like no later one."""

_FILE: Final = "seconds.json"
_PROBES: Final = "probes"

_ROUNDS_COLUMNS: Final = ("run", "rounds", "papers'", "share", "hours left")

_ABOUT: Final = (FEDAVG.label, DELTA_FL[1].label, PRIVATE_DELTA_FL.label)
_OTHER_THETA: Final = tuple(method.label for method in DELTA_FL)


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds by the wall clock, on one core.

    Attributes:
        round_s: of a round.
        evaluation_s: of an evaluation on all devices.
        start_s: before the first evaluation.
    """

    round_s: float
    evaluation_s: float
    start_s: float

    def seconds(self, config: RunConfig, done: int = 0) -> float:
        """How long a run with these settings takes from a round on."""
        federation = config.federation
        rounds = federation.rounds - done
        if rounds <= 0:
            return 0.0
        due = math.ceil(federation.rounds / federation.evaluate_every)
        evaluations = due - done // federation.evaluate_every + (done == 0)
        return self.start_s + rounds * self.round_s + evaluations * self.evaluation_s


def machine() -> str:
    """The machine, in words: its processor, and the GPU if runs may use one."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{processor()}, {usable_cores()} cores, {gpu}"


class Speeds:
    """What is known of the speed of an experiment's runs.

    Args:
        out: folder of the results.

    Raises:
        UserError: what was kept cannot be read.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._path = out / _FILE
        try:
            document = read_json(self._path) or {}
            self._known = {key: _speed(one) for key, one in document.items()}
        except ValueError as error:
            raise UserError(f"{self._path}: {error}: delete it, and it is measured again") from None
        self._seen: dict[str, bytes] = {}

    def of(self, cell: Cell) -> Speed | None:
        """What was measured for a cell of this kind; None if nothing was."""
        return self._known.get(self._key(cell))

    def measure(self, cell: Cell, until: float) -> Speed | None:
        """Measure a cell's speed by a probe, and keep it; None if it fails or takes too long.

        Args:
            cell: what to probe.
            until: when to give up, by `time.monotonic`.
        """
        probe, folder = _as_probe(cell), self._out / _PROBES
        outcome = run_cells([probe], folder, jobs=1, quiet=True, until=until)
        if not outcome.finished:
            return None
        (place,) = directories_of([probe], folder)
        found = speed_of(place, ROUNDS)
        self._known[self._key(cell)] = found
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, {key: asdict(one) for key, one in self._known.items()})
        return found

    def _key(self, cell: Cell) -> str:
        """What runs of one speed have in common: settings but for seed and rounds, and machine."""
        return f"{key_of(_as_probe(cell).config, self._seen)} {machine()}"


def speed_of(place: RunDirectory, rounds: int) -> Speed:
    """What the files of a finished probe say.

    Args:
        place: the probe.
        rounds: how many it has, at least 2.
    """
    walls = [_number(event, "wall_s") for event in read_events(place.events)]
    evaluated = _written(place.metrics / f"round-{rounds:06}.csv")
    evaluation_s = max(0.0, evaluated - _written(place.checkpoints / f"round-{rounds:06}.npz"))
    first = _written(place.metrics / f"round-{0:06}.csv") - _written(place.config)
    return Speed(
        round_s=sum(walls[1:]) / len(walls[1:]),
        evaluation_s=evaluation_s,
        start_s=max(0.0, first - evaluation_s),
    )


def _as_probe(cell: Cell) -> Cell:
    config = cell.config
    federation = replace(config.federation, rounds=ROUNDS, evaluate_every=ROUNDS)
    experiment = replace(config.experiment, seed=1)
    return replace(
        cell, seed=1, config=replace(config, federation=federation, experiment=experiment)
    )


def _written(path: Path) -> float:
    return path.stat().st_mtime_ns / 1e9


def _speed(document: object) -> Speed:
    fields = ("round_s", "evaluation_s", "start_s")
    return Speed(*(_number(document, field) for field in fields))


def _number(document: object, key: str) -> float:
    found = document.get(key) if isinstance(document, Mapping) else None
    if not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise ValueError(f"{key} = {found!r}: not a number of seconds")
    return float(found)


@dataclass(frozen=True, slots=True)
class Item:
    """A run with what is known of it.

    Attributes:
        cell: what is run.
        place: where it lies.
        done: rounds that it has behind it.
        paper: rounds that the papers give it.
        speed: how long it takes; None if nothing is known of its task.
        measured: whether the speed is its own, and not that of its task's slowest.
    """

    cell: Cell
    place: RunDirectory
    done: int
    paper: int
    speed: Speed | None
    measured: bool

    @property
    def is_finished(self) -> bool:
        """Whether it has a result."""
        return self.place.summary.exists()

    @property
    def seconds_left(self) -> float | None:
        """How long it still takes, on one core; None if nothing is known."""
        if self.is_finished:
            return 0.0
        return None if self.speed is None else self.speed.seconds(self.cell.config, self.done)

    @property
    def seconds(self) -> float | None:
        """How long all of it takes with the papers' rounds, on one core; None if unknown."""
        if self.speed is None:
            return None
        return self.speed.seconds(self.cell.config) * self.paper / self._rounds

    @property
    def _rounds(self) -> int:
        return self.cell.config.federation.rounds


def rank(cell: Cell) -> int:
    """How telling a run is, 0 the most; see the module."""
    return 0 if cell.method in _ABOUT else 1 if cell.method in _OTHER_THETA else 2


def survey(plans: Sequence[Plan], request: Request, speeds: Speeds) -> list[Item]:
    """What is known of the runs of some experiments, each run once, in their order.

    Args:
        plans: experiments and their runs.
        request: what was asked for.
        speeds: what was measured.
    """
    cells = [cell for _, own in plans for cell in own]
    whole = replace(request, rounds=None)
    papers = [cell for experiment, _ in plans for cell in experiment.cells(whole)]
    items: dict[Path, Item] = {}
    for cell, place, paper in zip(cells, directories_of(cells, request.out), papers, strict=True):
        if place.path not in items:
            is_finished = place.summary.exists()
            done = cell.config.federation.rounds if is_finished else rounds_done(place)
            speed, rounds = speeds.of(cell), paper.config.federation.rounds
            items[place.path] = Item(cell, place, done, rounds, speed, speed is not None)
    slowest: dict[str, Speed] = {}
    for item in items.values():
        task, speed = item.cell.task, item.speed
        if speed is not None and speed.round_s >= slowest.get(task, speed).round_s:
            slowest[task] = speed
    return [
        item if item.measured else replace(item, speed=slowest.get(item.cell.task))
        for item in items.values()
    ]


def in_order(items: Sequence[Item]) -> list[Item]:
    """The runs that are not finished, the most telling first; see the module."""

    def key(item: Item) -> tuple[int, int, float, str]:
        seconds = item.seconds_left
        return rank(item.cell), item.cell.seed, seconds or 0.0, str(item.cell)

    return sorted((item for item in items if not item.is_finished), key=key)


def fitting(items: Sequence[Item], seconds: float) -> tuple[list[Item], Item | None]:
    """The runs that fit into some seconds on one core, and the one that is begun with the rest.

    Args:
        items: in the order in which they are wanted.
        seconds: of all cores together.
    """
    planned: list[Item] = []
    begun = None
    for item in items:
        needed = item.seconds_left
        if needed is None:
            continue
        if needed <= seconds:
            planned.append(item)
            seconds -= needed
        elif begun is None and not _is_masked(item.cell):
            begun = item
    return planned, begun


def run_within(
    plans: Sequence[Plan],
    request: Request,
    hours: float,
    *,
    jobs: int | None = None,
    quiet: bool = False,
) -> Outcome:
    """Probe, plan and run until the time is spent, or nothing is left that fits.

    Args:
        plans: experiments and their runs.
        request: what was asked for.
        hours: by the wall clock.
        jobs: runs at a time; all usable cores by default.
        quiet: no progress bar.

    Returns:
        Of all runs, in their order.

    Raises:
        KeyboardInterrupt: a person interrupted; running cells have written their checkpoints.
        UserError: what earlier probes found cannot be read.
        ValueError: `jobs` is below 1.
    """
    jobs = usable_cores() if jobs is None else jobs
    end = time.monotonic() + hours * HOUR_S
    speeds = Speeds(request.out)
    _probe(survey(plans, request, speeds), speeds, _PROBING * hours * HOUR_S, end, quiet=quiet)
    failures: dict[Path, Failure] = {}
    while (left := end - time.monotonic()) > 0:
        items = [one for one in survey(plans, request, speeds) if one.place.path not in failures]
        planned, begun = fitting(in_order(items), left * jobs)
        todo = [item.cell for item in (*planned, *([begun] if begun else []))]
        if not todo:
            break
        outcome = run_cells(todo, request.out, jobs=jobs, quiet=quiet, until=end)
        places = directories_of([one.cell for one in outcome.failures], request.out)
        failures |= dict(zip((one.path for one in places), outcome.failures, strict=True))
    every = [cell for _, cells in plans for cell in cells]
    return outcome_of(every, directories_of(every, request.out), failures)


def tables(plans: Sequence[Plan], request: Request) -> tuple[Table, Table]:
    """How far each run is from the papers' rounds, and how many hours each experiment takes.

    Raises:
        UserError: what earlier probes found cannot be read.
    """
    items = survey(plans, request, Speeds(request.out))
    by_path = {item.place.path: item for item in items}
    rounds = Table(
        "rounds",
        "Rounds run, of the papers' rounds (--json: each run by itself)",
        _ROUNDS_COLUMNS,
        tuple(_rounds_rows(items)),
        tuple(dict(zip(_ROUNDS_COLUMNS, _rounds_row(item), strict=True)) for item in items),
    )
    hours = []
    for experiment, cells in plans:
        places = {one.path for one in directories_of(cells, request.out)}
        own = [by_path[path] for path in places]
        if own:
            hours.append(
                {
                    "experiment": experiment.name,
                    "runs": len(own),
                    "of measured speed": sum(item.measured for item in own),
                    "hours on one core": _sum_of([item.seconds for item in own]),
                }
            )
    columns = "experiment", "runs", "of measured speed", "hours on one core"
    title = f"Hours of each experiment with the papers' rounds, on {machine()}"
    return rounds, Table.of("hours", title, hours, {key: key for key in columns})


def _rounds_row(item: Item) -> tuple[str, ...]:
    share = f"{item.done / item.paper:.0%}"
    left = _hours(item.seconds_left)
    return str(item.cell), str(item.done), str(item.paper), share, left


def _rounds_rows(items: Sequence[Item]) -> Iterator[tuple[str, ...]]:
    """A row for each run that has begun, and one for the many others of a task."""
    waiting: dict[str, list[Item]] = {}
    for item in items:
        if item.done:
            yield _rounds_row(item)
        else:
            waiting.setdefault(item.cell.task, []).append(item)
    for task, others in waiting.items():
        if len(others) == 1:
            yield _rounds_row(others[0])
            continue
        papers = sorted({item.paper for item in others})
        shown = str(papers[0]) if len(papers) == 1 else f"{papers[0]} to {papers[-1]}"
        left = _sum_of([item.seconds_left for item in others])
        yield f"{task}: {len(others):,} runs not begun", "0", shown, "0%", left


def _sum_of(seconds: Sequence[float | None]) -> str:
    """Hours of several runs, and that there are more where some are unknown."""
    known = [one for one in seconds if one is not None]
    if not known:
        return _hours(None)
    return _hours(sum(known)) if len(known) == len(seconds) else f"more than {_hours(sum(known))}"


def _probe(
    items: Sequence[Item], speeds: Speeds, seconds: float, whole: float, *, quiet: bool
) -> None:
    """Measure how long runs take of which that is not known, the most telling first.

    Where nothing is known, nothing can be planned, so the first probe may take the whole budget.
    """
    end = time.monotonic() + seconds
    for item in Bar(in_order(items), desc="probes", unit="run", quiet=quiet):
        now = time.monotonic()
        if now >= end:
            return
        if speeds.of(item.cell) is None:
            is_known = any(speeds.of(one.cell) is not None for one in items)
            speeds.measure(item.cell, min(end, now + seconds / 2) if is_known else whole)


def _is_masked(cell: Cell) -> bool:
    return cell.config.has_masked_sums


def _hours(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds / HOUR_S:.2g}"
