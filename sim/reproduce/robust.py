"""Strategies under attack: errors of honest devices, the attackers' share, and who breaks when.

No table of the papers: they have no attackers. Every attacked run has a clean one with the same
seed, cohorts and first model beside it. A strategy breaks under an attack at the smallest share of
attackers at which its 90th percentile is more than `BREAKS` above that of its own clean runs,
relative to it. Both are averages over the seeds that the attacked and the clean case have both run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from deltafl.sim.charts.files import new_figure
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.attacked import read_attacked
from deltafl.sim.record.evaluations import read_last_evaluation
from deltafl.sim.reproduce.experiment import (
    NONE,
    Cell,
    Finished,
    OverSeeds,
    Record,
    Report,
    Request,
    Table,
    find,
    percent_error,
    plus_minus,
)
from deltafl.sim.reproduce.figures.drawing import draw_line
from deltafl.sim.reproduce.grid import make_cells, notes_of
from deltafl.sim.reproduce.methods import (
    CLIPPED,
    DELTA_FL,
    FEDAVG,
    MEDIANS,
    PRIVATE_DELTA_FL,
    PRIVATE_FEDAVG,
    Layer,
    Method,
    choose_methods,
    merged,
)
from deltafl.sim.reproduce.tasks import Chosen, Task, choose_tasks
from deltafl.sim.settings.config_io import show

BREAKS: Final = 0.1
"""By which share of the clean 90th percentile an attacked one may be higher."""

COMPARED: Final = (FEDAVG, DELTA_FL[1], PRIVATE_FEDAVG, PRIVATE_DELTA_FL, *MEDIANS, *CLIPPED)
"""The rows of the tables. A robust strategy that is added to `methods` belongs here too."""

CLEAN: Final = "no attack"

_OF_THE_ATTACKS: Final = ("share", "kind", "loss", "weight")
_NUMBERS: Final = ("p90", "mean", "corrupted_share", "backdoor_success")


@dataclass(frozen=True, slots=True, eq=False)
class Attack:
    """What attackers do, whatever their share.

    Attributes:
        key: its word in --attacks.
        label: its name in tables.
        settings: of the section [attackers], without the share.
    """

    key: str
    label: str
    settings: Mapping[str, object]

    def layer(self, share: Fraction) -> Layer:
        """The settings of a run with so many attackers."""
        return {"attackers": {**self.settings, "share": show(share)}}


def _attack(key: str, label: str, kind: str, **further: object) -> Attack:
    return Attack(key, label, {"kind": kind, **further})


FLIPPED: Final = _attack("labels", "labels y → C − 1 − y", "flipped-labels")
SIGN: Final = _attack("sign", "−2 × update", "sign-flipped")
SIGN_TOP: Final = _attack("sign-top", "−2 × update, top loss", "sign-flipped", loss="top")

ATTACKS: Final = (
    FLIPPED,
    _attack("labels-1-7", "labels 1 → 7", "flipped-labels", from_class=1, to_class=7),
    _attack("backdoor", "backdoor, 2 × update", "backdoor"),
    _attack("backdoor-top", "backdoor, top loss", "backdoor", loss="top"),
    SIGN,
    SIGN_TOP,
    _attack("sign-eta", "−2 × update, loss just above η", "sign-flipped", loss="above-eta"),
    _attack("sign-raise", "−2 × update, loss 2 η", "sign-flipped", loss="raise-eta"),
    _attack(
        "sign-weight",
        "−2 × update, top loss and weight",
        "sign-flipped",
        loss="top",
        weight="largest",
    ),
    _attack("gaussian", "Gaussian, 2 × size", "gaussian"),
    _attack("little", "a little is enough, z = 1.5", "little-is-enough"),
    _attack("inner", "inner product, −2 × mean", "inner-product"),
    _attack("free-zero", "free rider, zeros", "free-rider-zero"),
    _attack("free-last", "free rider, last change", "free-rider-last"),
    _attack("free-top", "free rider, zeros, top loss", "free-rider-zero", loss="top"),
)
"""In the order of the tables; the functions behind them name their sources."""


def choose_attacks(
    wanted: tuple[str, ...] | None, default: tuple[Attack, ...]
) -> tuple[Attack, ...]:
    """Find attacks by key; `default` if nothing is wanted.

    Raises:
        ConfigError: there is none of this key.
    """
    if wanted is None:
        return default
    known = {attack.key: attack for attack in ATTACKS}
    found = (find(word, known, "--attacks: there is no") for word in wanted)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Case:
    """A method under an attack by a share of the devices; of clean runs, without attack.

    Attributes:
        method: the label of the method.
        attack: the label of the attack.
        share: of the training devices.
    """

    method: str
    attack: str = CLEAN
    share: Fraction = Fraction(0)

    def __str__(self) -> str:
        """What cells are called."""
        if not self.share:
            return self.method
        return f"{self.method}, {self.attack}, {percent(self.share)}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a case came to, once per seed.

    Attributes:
        seeds: of the runs, in the order of `tail` and `mean`.
        tail: 90th percentile of honest devices' test error, in percent.
        mean: its mean.
        corrupted: the attackers' share of the aggregate's weight, averaged over rounds, in percent;
            None without attackers, or where no round kept anybody.
        backdoor: share of samples with the trigger that get its label, in percent; None without.
    """

    seeds: tuple[int, ...]
    tail: OverSeeds
    mean: OverSeeds
    corrupted: OverSeeds | None
    backdoor: OverSeeds | None

    @property
    def numbers(self) -> dict[str, OverSeeds | None]:
        """All of them, by their names in records."""
        return dict(
            zip(_NUMBERS, (self.tail, self.mean, self.corrupted, self.backdoor), strict=True)
        )


Results = Mapping[tuple[str, Case], Measured]
"""By task and case."""


@dataclass(frozen=True, slots=True)
class Breaking:
    """Whether a method breaks under an attack, as far as it was tried.

    Attributes:
        at: the smallest share that was measured and breaks it; None if none does.
        not_at: the largest share that was measured, if none breaks it; None if one does, or if
            nothing was measured.
        is_bound: whether a smaller share was to be tried and has no result, so that `at` is only
            known to be enough.
    """

    at: Fraction | float | None
    not_at: Fraction | float | None
    is_bound: bool = False

    def __str__(self) -> str:
        """As in tables."""
        if self.at is not None:
            return f"at most {percent(self.at)}" if self.is_bound else percent(self.at)
        return "–" if self.not_at is None else f"not at {percent(self.not_at)}"


def results_of(finished: Sequence[Finished], cases: Sequence[Case]) -> Results:
    """What runs came to, over their seeds; cells are called as cases are."""
    named = {str(case): case for case in cases}
    found: dict[tuple[str, Case], list[tuple[float | None, ...]]] = {}
    seeds: dict[tuple[str, Case], list[int]] = {}
    for one in finished:
        evaluation = read_last_evaluation(one.directory.metrics)
        if evaluation is None:
            continue
        case = named[one.cell.method]
        key = one.cell.task, case
        of_attack = _attacked(one) if case.share else (None, None)
        numbers = percent_error(evaluation, 90), percent_error(evaluation, None), *of_attack
        seeds.setdefault(key, []).append(one.cell.seed)
        found.setdefault(key, []).append(numbers)
    return {key: _measured(seeds[key], runs) for key, runs in found.items()}


def rise(found: Measured | None, clean: Measured | None) -> float | None:
    """How much higher a 90th percentile is than the clean one, relative to it.

    Only seeds that both have count: a seed is easier or harder than another by more than that.
    None where there is none, or where the clean one is 0.
    """
    if found is None or clean is None or found is clean:
        return None
    tails = [dict(zip(one.seeds, one.tail.values, strict=True)) for one in (found, clean)]
    both = sorted(set(tails[0]) & set(tails[1]))
    after, before = (sum(tail[seed] for seed in both) for tail in tails)
    return after / before - 1 if before else None


def breaking(rises: Mapping[Fraction, float | None]) -> Breaking:
    """Find the smallest share at which a method breaks.

    Args:
        rises: what `rise` says of each share that was to be tried; None where it has no result.
    """
    measured = {share: rises[share] for share in sorted(rises) if rises[share] is not None}
    for share, rise in measured.items():
        if rise is not None and rise > BREAKS:
            return Breaking(share, None, any(other < share for other in set(rises) - set(measured)))
    return Breaking(None, max(measured, default=None))


def percent(share: Fraction | float) -> str:
    """A share of attackers as in tables; a clean run has none."""
    return f"{100 * float(share):g} %" if share else "0"


def _attacked(one: Finished) -> tuple[float | None, float | None]:
    noted = read_attacked(one.directory.attacked)
    shares = list(noted.shares.values())
    backdoor = 100 * noted.backdoor[max(noted.backdoor)] if noted.backdoor else None
    return (100 * sum(shares) / len(shares) if shares else None), backdoor


def _measured(seeds: Sequence[int], runs: Sequence[tuple[float | None, ...]]) -> Measured:
    tail, mean, *others = (
        OverSeeds(tuple(value for value in values if value is not None))
        for values in zip(*runs, strict=True)
    )
    return Measured(tuple(seeds), tail, mean, *(one if one.values else None for one in others))


@dataclass(frozen=True, slots=True)
class RobustTable:
    """Attacks × strategies, and at which share of attackers each breaks.

    Attributes:
        name: of the experiment.
        title: what it shows.
        tasks: a table of each.
        attacks: under which attacks, unless --attacks names others.
        shares: of the training devices, ascending.
    """

    name: str
    title: str
    tasks: tuple[Task, ...]
    attacks: tuple[Attack, ...]
    shares: tuple[Fraction, ...]

    @property
    def source(self) -> str:
        """The papers have no attackers."""
        return "ours; docs/how-to/test-against-lying-devices.md"

    def cells(self, request: Request) -> Sequence[Cell]:
        """Every method without attackers, and under every attack by every share of the devices.

        Raises:
            ConfigError: an attack is unknown, or a setting is given that the attacks differ in.
        """
        for name in request.overrides.get("attackers", {}):
            if name in _OF_THE_ATTACKS:
                raise ConfigError(
                    f"attackers.{name}: the rows of {self.name} differ in it, and some have no "
                    f"attackers: choose attacks by --attacks"
                )
        chosen, methods = self._chosen(request)
        cells = list(make_cells(request, chosen, methods))
        for attack, share in self._grid(request):
            attacked = replace(request, overrides=merged(attack.layer(share), request.overrides))
            for cell in make_cells(attacked, chosen, methods):
                cells.append(replace(cell, method=str(Case(cell.method, attack.label, share))))
        return cells

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """A table and a figure per task, and a table of who breaks when."""
        chosen, methods = self._chosen(request)
        grid = self._grid(request)
        cases = [Case(method.label) for method in methods]
        cases += [
            Case(method.label, attack.label, share) for attack, share in grid for method in methods
        ]
        results = results_of(finished, cases)
        tables = [self._table(one, cases, results) for one in chosen]
        attacks = choose_attacks(request.attacks, self.attacks)
        tables += [self._breaks(one, methods, attacks, results) for one in chosen]
        figures = {}
        if len(self.shares) > 1:
            figures = {
                f"{self.name}-{one.task.name}": self._figure(one, methods, attacks, results)
                for one in chosen
            }
        return Report(tuple(tables), figures, (*notes_of(request, chosen, methods), *_NOTES))

    def _chosen(self, request: Request) -> tuple[tuple[Chosen, ...], tuple[Method, ...]]:
        return choose_tasks(request, self.tasks), choose_methods(request.methods, COMPARED)

    def _grid(self, request: Request) -> list[tuple[Attack, Fraction]]:
        attacks = choose_attacks(request.attacks, self.attacks)
        return [(attack, share) for attack in attacks for share in self.shares]

    def _table(self, one: Chosen, cases: Sequence[Case], results: Results) -> Table:
        records = []
        for case in cases:
            found = results.get((one.task.name, case))
            clean = results.get((one.task.name, Case(case.method)))
            numbers = dict.fromkeys(_NUMBERS) if found is None else found.numbers
            records.append(
                {
                    "task": one.task.name,
                    "data": one.data.name,
                    "method": case.method,
                    "attack": case.attack,
                    "share": float(case.share),
                    "seeds": len(found.seeds) if found else 0,
                    "p90_relative_rise": rise(found, clean),
                    **{
                        f"{key}_{part}": getattr(number, part, None)
                        for key, number in numbers.items()
                        for part in ("mean", "std")
                    },
                }
            )
        return Table.of(
            f"{self.name}-{one.task.name}",
            f"{self.title}, {one.label} (%)",
            records,
            {
                "attack": "attack",
                "attackers": lambda row: percent(row["share"]),
                "method": "method",
                "90th percentile": _number("p90"),
                "against clean": _rise,
                "mean": _number("mean"),
                "corrupted share": _number("corrupted_share"),
                "backdoor success": _number("backdoor_success"),
            },
        )

    def _breaks(
        self,
        one: Chosen,
        methods: Sequence[Method],
        attacks: Sequence[Attack],
        results: Results,
    ) -> Table:
        records = []
        for attack, method in product(attacks, methods):
            clean = results.get((one.task.name, Case(method.label)))
            cases = {share: Case(method.label, attack.label, share) for share in self.shares}
            rises = {
                share: rise(results.get((one.task.name, case)), clean)
                for share, case in cases.items()
            }
            found = breaking(rises)
            records.append(
                {
                    "task": one.task.name,
                    "method": method.label,
                    "attack": attack.label,
                    "breaks_at": None if found.at is None else float(found.at),
                    "is_bound": found.is_bound,
                    "not_at": None if found.not_at is None else float(found.not_at),
                }
            )
        tried = ", ".join(map(percent, self.shares))
        return Table.wide(
            f"{self.name}-{one.task.name}-breaks",
            f"Share of attackers at which each breaks, {one.label} (tried: {tried})",
            records,
            ("attack", "method"),
            lambda row: str(Breaking(row["breaks_at"], row["not_at"], row["is_bound"])),
        )

    def _figure(
        self,
        one: Chosen,
        methods: Sequence[Method],
        attacks: Sequence[Attack],
        results: Results,
    ) -> Figure:
        columns = min(3, len(attacks))
        figure, panels = new_figure(-(-len(attacks) // columns), columns)
        flat = [panel for row in panels for panel in row]
        x = np.array([0.0, *map(float, self.shares)])
        for panel, attack in zip(flat, attacks, strict=False):
            for number, method in enumerate(methods):
                cases = [Case(method.label)]
                cases += [Case(method.label, attack.label, share) for share in self.shares]
                found = [results.get((one.task.name, case)) for case in cases]
                seeds = max((len(each.tail.values) for each in found if each), default=0)
                rows = np.full((seeds, len(x)), np.nan)
                for point, each in enumerate(found):
                    if each is not None:
                        rows[: len(each.tail.values), point] = np.array(each.tail.values) / 100
                if seeds:
                    draw_line(
                        panel,
                        x,
                        rows,
                        number=number,
                        label=method.label,
                        band="deviation",
                        dotted=True,
                    )
            panel.set_title(attack.label, fontsize="medium")
            panel.set_xlabel("share of attackers")
            panel.xaxis.set_major_formatter(PercentFormatter(1.0))
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        for panel in flat[len(attacks) :]:
            panel.set_visible(False)
        flat[0].set_ylabel("90th percentile of the test error")
        flat[0].legend(frameon=False, fontsize="small")
        figure.suptitle(one.label, fontsize="medium")
        return figure


_NOTES: Final = (
    "Errors are of honest devices' test data; the attackers' share is of the weight of the devices "
    "kept, by claimed numbers of samples, averaged over rounds. A geometric median gives a device "
    "far from the others less than that.",
    f"A method breaks at the smallest share tried at which its 90th percentile is more than "
    f"{BREAKS:.0%} above that of its own clean runs (relative, averages over the seeds that both "
    "have). A share that was not tried, or whose runs are missing, says nothing.",
)


def _number(key: str) -> Callable[[Record], str]:
    def written(row: Record) -> str:
        mean = row[f"{key}_mean"]
        return NONE if mean is None else plus_minus(mean, row[f"{key}_std"])

    return written


def _rise(row: Record) -> str:
    found = row["p90_relative_rise"]
    return NONE if found is None else f"{found:+.1%}"
