"""What runs under attack came to, and at which share of attackers a strategy breaks.

A strategy breaks under an attack at the smallest share of attackers at which its 90th percentile is
more than `BREAKS` above that of its own clean runs, relative to it. Both are averages over the
seeds that the attacked and the clean case have both run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from deltafl.fl.metrics import summarise_test_error
from deltafl.sim.record.attacked import read_attacked
from deltafl.sim.record.evaluations import read_last_evaluation
from deltafl.sim.reproduce.experiment import Finished
from deltafl.sim.reproduce.tables import OverSeeds

BREAKS: Final = 0.1
"""By which share of the clean 90th percentile an attacked one may be higher."""

CLEAN: Final = "no attack"


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

    at: Fraction | None
    not_at: Fraction | None
    is_bound: bool = False

    def __str__(self) -> str:
        """As in tables."""
        if self.at is not None:
            return f"at most {percent(self.at)}" if self.is_bound else percent(self.at)
        return "–" if self.not_at is None else f"not at {percent(self.not_at)}"


def results_of(finished: Sequence[Finished], cases: Sequence[Case]) -> Results:
    """What runs came to, over their seeds; cells are called as cases are."""
    named = {str(case): case for case in cases}
    found: dict[tuple[str, Case], list[_Run]] = {}
    for one in finished:
        evaluation = read_last_evaluation(one.directory.metrics)
        if evaluation is None:
            continue
        error = summarise_test_error(evaluation.test)
        case = named[one.cell.method]
        corrupted, backdoor = _attacked(one) if case.share else (None, None)
        run = _Run(one.cell.seed, error.percentiles[90], error.mean, corrupted, backdoor)
        found.setdefault((one.cell.task, case), []).append(run)
    return {key: _measured(runs) for key, runs in found.items()}


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


def percent(share: Fraction) -> str:
    """A share of attackers as in tables; a clean run has none."""
    return f"{100 * float(share):g} %" if share else "0"


@dataclass(frozen=True, slots=True)
class _Run:
    seed: int
    tail: float
    mean: float
    corrupted: float | None
    backdoor: float | None


def _attacked(one: Finished) -> tuple[float | None, float | None]:
    noted = read_attacked(one.directory.attacked)
    shares = list(noted.shares.values())
    backdoor = noted.backdoor[max(noted.backdoor)] if noted.backdoor else None
    return (sum(shares) / len(shares) if shares else None), backdoor


def _measured(runs: Sequence[_Run]) -> Measured:
    return Measured(
        tuple(run.seed for run in runs),
        OverSeeds(tuple(100 * run.tail for run in runs)),
        OverSeeds(tuple(100 * run.mean for run in runs)),
        _over_seeds([run.corrupted for run in runs]),
        _over_seeds([run.backdoor for run in runs]),
    )


def _over_seeds(values: Sequence[float | None]) -> OverSeeds | None:
    known = tuple(100 * value for value in values if value is not None)
    return OverSeeds(known) if known else None
