"""`--budget HOURS`: the most telling runs first, and how far each run has come.

The order is a rule, and not a choice for each table:

1. what the papers are about: FedAvg, Δ-FL and private Δ-FL at θ = 0.5; then Δ-FL at other θ; then
   everything else;
2. of these, the first seed of all before the second of any;
3. of these, the shortest first, as far as that is known.

When the time is spent, what runs is stopped as Ctrl-C would, and goes on the next time; a masked
run loses the round in which it is stopped. How long runs take is read from those that have begun:
from one evaluation to the next, by when their files were written. A run of a method of which none
has come so far is taken for as long as the slowest of its task, per round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Final

from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.cells import directories_of, rounds_done
from deltafl.sim.reproduce.experiment import Cell, Request, Table
from deltafl.sim.reproduce.grid import Plan
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG, PRIVATE_DELTA_FL

HOUR_S: Final = 3600.0

_ABOUT: Final = (FEDAVG.label, DELTA_FL[1].label, PRIVATE_DELTA_FL.label)
_OTHER_THETA: Final = tuple(method.label for method in DELTA_FL)


def seconds_per_round(place: RunDirectory) -> float | None:
    """Seconds of a round by the wall clock, with its share of an evaluation.

    The median from one evaluation to the next, for a run may have been interrupted; None where
    there are no two.
    """
    files = sorted(place.metrics.glob("round-*.csv"))
    written = [(int(path.stem.removeprefix("round-")), path.stat().st_mtime) for path in files]
    found = [(then - at) / (later - after) for (after, at), (later, then) in pairwise(written)]
    return median(found) if found else None


@dataclass(frozen=True, slots=True)
class Item:
    """A run with what is known of it.

    Attributes:
        cell: what is run.
        place: where it lies.
        done: rounds that it has behind it.
        paper: rounds that the papers give it.
        round_s: seconds of a round on one core; None if nothing is known of its task.
        measured: whether these are of its own method, and not of its task's slowest.
    """

    cell: Cell
    place: RunDirectory
    done: int
    paper: int
    round_s: float | None
    measured: bool

    @property
    def seconds_left(self) -> float | None:
        """How long it still takes, on one core; None if nothing is known."""
        if self.place.summary.exists():
            return 0.0
        rounds = self.cell.config.federation.rounds
        return None if self.round_s is None else self.round_s * (rounds - self.done)

    @property
    def seconds(self) -> float | None:
        """How long all of it takes with the papers' rounds, on one core; None if unknown."""
        return None if self.round_s is None else self.round_s * self.paper


def rank(cell: Cell) -> int:
    """How telling a run is, 0 the most; see the module."""
    return 0 if cell.method in _ABOUT else 1 if cell.method in _OTHER_THETA else 2


def survey(plans: Sequence[Plan], request: Request) -> list[Item]:
    """What is known of the runs of some experiments, in their order.

    Args:
        plans: experiments and their runs.
        request: what was asked for.
    """
    cells = [cell for _, own in plans for cell in own]
    whole = replace(request, rounds=None)
    papers = [cell for experiment, _ in plans for cell in experiment.cells(whole)]
    places = directories_of(cells, request.out)
    shown: dict[tuple[str, str], float] = {}
    slowest: dict[str, float] = {}
    for cell, place in zip(cells, places, strict=True):
        kind, seconds = (cell.task, cell.method), seconds_per_round(place)
        if seconds is not None:
            shown[kind] = max(seconds, shown.get(kind, 0.0))
            slowest[cell.task] = max(seconds, slowest.get(cell.task, 0.0))
    items = []
    for cell, place, paper in zip(cells, places, papers, strict=True):
        kind, rounds = (cell.task, cell.method), cell.config.federation.rounds
        done = rounds if place.summary.exists() else rounds_done(place)
        round_s = shown.get(kind, slowest.get(cell.task))
        items.append(
            Item(cell, place, done, paper.config.federation.rounds, round_s, kind in shown)
        )
    return items


def in_order(items: Sequence[Item]) -> list[Item]:
    """The most telling runs first; see the module."""

    def key(item: Item) -> tuple[int, int, float, str]:
        seconds = item.seconds_left
        return rank(item.cell), item.cell.seed, seconds or 0.0, str(item.cell)

    return sorted(items, key=key)


def tables(plans: Sequence[Plan], request: Request) -> tuple[Table, Table]:
    """How far the runs of each method and of each experiment are from the papers' rounds."""
    items = {item.place.path: item for item in survey(plans, request)}
    methods: dict[str, list[Item]] = {}
    for item in items.values():
        methods.setdefault(f"{item.cell.task}, {item.cell.method}", []).append(item)
    experiments = {
        experiment.name: [items[path] for path in {one.path for one in places}]
        for experiment, cells in plans
        if (places := directories_of(cells, request.out))
    }
    return (
        _table("rounds", "Rounds run, of the papers' rounds, over all seeds", methods),
        _table("hours", "The same of each experiment; hours are of one core", experiments),
    )


def _table(name: str, title: str, groups: Mapping[str, Sequence[Item]]) -> Table:
    records = []
    for of, items in groups.items():
        done, papers = sum(item.done for item in items), sum(item.paper for item in items)
        records.append(
            {
                "of": of,
                "runs": len(items),
                "finished": sum(item.place.summary.exists() for item in items),
                "of known speed": sum(item.measured for item in items),
                "rounds": done,
                "papers'": papers,
                "share": f"{done / papers:.0%}",
                "hours left": _hours([item.seconds_left for item in items]),
                "hours of papers' rounds": _hours([item.seconds for item in items]),
            }
        )
    return Table.of(name, title, records, {key: key for record in records for key in record})


def _hours(seconds: Sequence[float | None]) -> str:
    """Hours of several runs, and that there are more where some are unknown."""
    known = [one for one in seconds if one is not None]
    if not known:
        return "not known"
    return f"{'more than ' * (len(known) < len(seconds))}{sum(known) / HOUR_S:.2g}"
