"""Strategies under attack: errors of honest devices, the attackers' share, and who breaks when.

No table of the papers: they have no attackers. Every attacked run has a clean one with the same
seed, cohorts and first model beside it. A strategy breaks under an attack at the smallest share of
attackers at which its 90th percentile is more than `BREAKS` above that of its own clean runs,
relative to it. Both are averages over the seeds that the attacked and the clean case have both run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Final, TypeAlias

from deltafl.sim.errors import ConfigError
from deltafl.sim.record.attacked import read_attacked
from deltafl.sim.reproduce.experiment import (
    NONE,
    Cell,
    Finished,
    Record,
    Report,
    Request,
    Table,
    find,
    last_evaluation,
    percent_error,
    spread,
    spread_of,
)
from deltafl.sim.reproduce.grid import Experiment, make_cells, notes_of
from deltafl.sim.reproduce.methods import merged
from deltafl.sim.reproduce.tasks import Chosen
from deltafl.sim.settings.config_io import show

BREAKS: Final = 0.1
"""By which share of the clean 90th percentile an attacked one may be higher."""

CLEAN: Final = "no attack"

_OF_THE_ATTACKS: Final = ("share", "kind", "loss", "weight")
_NUMBERS: Final = ("p90", "mean", "corrupted_share", "backdoor_success")


ATTACKS: Final[Mapping[str, tuple[str, Mapping[str, object]]]] = {
    "labels": ("labels y → C − 1 − y", {"kind": "flipped-labels"}),
    "labels-1-7": ("labels 1 → 7", {"kind": "flipped-labels", "from_class": 1, "to_class": 7}),
    "backdoor": ("backdoor, 2 × update", {"kind": "backdoor"}),
    "backdoor-top": ("backdoor, top loss", {"kind": "backdoor", "loss": "top"}),
    "sign": ("−2 × update", {"kind": "sign-flipped"}),
    "sign-top": ("−2 × update, top loss", {"kind": "sign-flipped", "loss": "top"}),
    "sign-eta": ("−2 × update, loss just above η", {"kind": "sign-flipped", "loss": "above-eta"}),
    "sign-raise": ("−2 × update, loss 2 η", {"kind": "sign-flipped", "loss": "raise-eta"}),
    "sign-weight": (
        "−2 × update, top loss and weight",
        {"kind": "sign-flipped", "loss": "top", "weight": "largest"},
    ),
    "gaussian": ("Gaussian, 2 × size", {"kind": "gaussian"}),
    "little": ("a little is enough, z = 1.5", {"kind": "little-is-enough"}),
    "inner": ("inner product, −2 × mean", {"kind": "inner-product"}),
    "free-zero": ("free rider, zeros", {"kind": "free-rider-zero"}),
    "free-last": ("free rider, last change", {"kind": "free-rider-last"}),
    "free-top": ("free rider, zeros, top loss", {"kind": "free-rider-zero", "loss": "top"}),
}
"""By their words in --attacks, in the order of the tables: their names, and settings of the section
[attackers], without the share; the functions behind them name their sources."""


def case(method: str, attack: str = CLEAN, share: Fraction = Fraction(0)) -> str:
    """What the cells of a method are called, under an attack by a share of the devices."""
    return f"{method}, {attack}, {percent(share)}" if share else method


Measured: TypeAlias = Mapping[str, Mapping[int, float]]
"""What a case came to, in percent, by seed: `p90` and `mean` of honest devices' test error,
`corrupted_share`, the attackers' of the aggregate's weight, averaged over rounds, and
`backdoor_success`, the share of samples with the trigger that get its label. The two last are
missing without attackers, or where no round kept anybody, or without a trigger."""

Results: TypeAlias = Mapping[tuple[str, str], Measured]
"""By task and what the cells of a case are called."""


def results_of(finished: Sequence[Finished]) -> Results:
    """What runs came to."""
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for one in finished:
        case = found.setdefault((one.cell.task, one.cell.method), {})
        for name, number in _numbers_of(one).items():
            case.setdefault(name, {})[one.cell.seed] = number
    return found


def _numbers_of(one: Finished) -> dict[str, float]:
    evaluation = last_evaluation(one.directory)
    found = {"p90": percent_error(evaluation, 90), "mean": percent_error(evaluation, None)}
    if one.cell.config.attackers.lie:
        with one.directory.read() as record:
            noted = read_attacked(record)
        shares = {"corrupted_share": noted.mean_share, "backdoor_success": noted.last_success}
        found |= {name: 100 * share for name, share in shares.items() if share is not None}
    return found


def rise(found: Measured, clean: Measured) -> float | None:
    """How much higher a 90th percentile is than the clean one, relative to it.

    Only seeds that both have count: a seed is easier or harder than another by more than that.
    None where there is none, or where the clean one is 0.
    """
    tails = found.get("p90", {}), clean.get("p90", {})
    both = sorted(tails[0].keys() & tails[1].keys())
    after, before = (sum(tail[seed] for seed in both) for tail in tails)
    return after / before - 1 if before else None


def breaking(rises: Mapping[float, float | None]) -> Record:
    """Find the smallest share at which a method breaks.

    Args:
        rises: what `rise` says of each share that was to be tried; None where it has no result.

    Returns:
        breaks_at: the smallest share that was measured and breaks it; None if none does.
        is_bound: whether a smaller share was to be tried and has no result, so that `breaks_at` is
            only known to be enough.
        not_at: the largest share that was measured, if none breaks it; None if one does, or if
            nothing was measured.
    """
    measured = {share: rises[share] for share in sorted(rises) if rises[share] is not None}
    for share, rise in measured.items():
        if rise is not None and rise > BREAKS:
            is_bound = any(other < share for other in set(rises) - set(measured))
            return {"breaks_at": share, "is_bound": is_bound, "not_at": None}
    return {"breaks_at": None, "is_bound": False, "not_at": max(measured, default=None)}


def written(found: Record) -> str:
    """What `breaking` found, as in tables."""
    if found["breaks_at"] is not None:
        return f"{'at most ' * found['is_bound']}{percent(found['breaks_at'])}"
    return NONE if found["not_at"] is None else f"not at {percent(found['not_at'])}"


def percent(share: Fraction | float) -> str:
    """A share of attackers as in tables; a clean run has none."""
    return f"{100 * float(share):g} %" if share else "0"


@dataclass(frozen=True, slots=True)
class RobustTable(Experiment):
    """Attacks × strategies, and at which share of attackers each breaks.

    Attributes:
        attacks: words of `ATTACKS`, unless --attacks names others.
        shares: of the training devices, ascending.
    """

    attacks: tuple[str, ...] = ()
    shares: tuple[Fraction, ...] = ()

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
        chosen, methods = self.chosen(request)
        cells = list(make_cells(request, chosen, methods))
        for (label, settings), share in product(self._attacks(request), self.shares):
            layer = {"attackers": {**settings, "share": show(share)}}
            attacked = replace(request, overrides=merged(layer, request.overrides))
            for cell in make_cells(attacked, chosen, methods):
                cells.append(replace(cell, method=case(cell.method, label, share)))
        return cells

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """A table per task, and a table of who breaks when."""
        chosen, methods = self.chosen(request)
        attacks = [label for label, _ in self._attacks(request)]
        labels = [method.label for method in methods]
        cases = [(label, CLEAN, Fraction(0)) for label in labels]
        cases += [(name, one, by) for one, by, name in product(attacks, self.shares, labels)]
        results = results_of(finished)
        found = {one: [_record(one, each, results) for each in cases] for one in chosen}
        tables = [self._table(one, records) for one, records in found.items()]
        tables += [self._breaks(one, records) for one, records in found.items()]
        notes = (*notes_of(request, chosen, methods), *_NOTES)
        return Report(tuple(tables), notes=notes)

    def _attacks(self, request: Request) -> list[tuple[str, Mapping[str, object]]]:
        words = dict.fromkeys(self.attacks if request.attacks is None else request.attacks)
        return [find(word, ATTACKS, "--attacks: there is no") for word in words]

    def _table(self, one: Chosen, records: Sequence[Record]) -> Table:
        return Table.of(
            f"{self.name}-{one.task.name}",
            f"{self.title}, {one.label} (%)",
            records,
            {
                "attack": "attack",
                "attackers": lambda row: percent(row["share"]),
                "method": "method",
                "90th percentile": spread_of("p90"),
                "against clean": _rise,
                "mean": spread_of("mean"),
                "corrupted share": spread_of("corrupted_share"),
                "backdoor success": spread_of("backdoor_success"),
            },
        )

    def _breaks(self, one: Chosen, records: Sequence[Record]) -> Table:
        rises: dict[tuple[str, str], dict[float, float | None]] = {}
        for row in records:
            if row["share"]:
                of = rises.setdefault((row["attack"], row["method"]), {})
                of[row["share"]] = row["p90_relative_rise"]
        tried = ", ".join(map(percent, self.shares))
        return Table.wide(
            f"{self.name}-{one.task.name}-breaks",
            f"Share of attackers at which each breaks, {one.label} (tried: {tried})",
            [
                {"task": one.task.name, "method": method, "attack": attack, **breaking(own)}
                for (attack, method), own in rises.items()
            ],
            ("attack",),
            lambda row: {row["method"]: written(row)},
        )


def _record(one: Chosen, of: tuple[str, str, Fraction], results: Results) -> Record:
    method, attack, share = of
    found = results.get((one.task.name, case(*of)), {})
    clean = results.get((one.task.name, method), {})
    return {
        "task": one.task.name,
        "data": one.data.name,
        "method": method,
        "attack": attack,
        "share": float(share),
        "seeds": len(found.get("p90", ())),
        "p90_relative_rise": rise(found, clean) if share else None,
        **spread({name: found.get(name, {}).values() for name in _NUMBERS}),
    }


_NOTES: Final = (
    "Errors are of honest devices' test data; the attackers' share is of the weight of the devices "
    "kept, by claimed numbers of samples, averaged over rounds. A geometric median gives a device "
    "far from the others less than that.",
    f"A method breaks at the smallest share tried at which its 90th percentile is more than "
    f"{BREAKS:.0%} above that of its own clean runs (relative, averages over the seeds that both "
    "have). A share that was not tried, or whose runs are missing, says nothing.",
)


def _rise(row: Record) -> str:
    found = row["p90_relative_rise"]
    return NONE if found is None else f"{found:+.1%}"
