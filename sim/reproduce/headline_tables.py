"""What the headline's runs came to: the declared tests, and its tables.

Tables are of the tests, of errors, of differences over rounds, and over devices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.sim.record.evaluations import Evaluation, read_evaluations
from deltafl.sim.reproduce.comparison import p_value
from deltafl.sim.reproduce.declared import LEVEL, PERCENTILE, SMALL_STEPS
from deltafl.sim.reproduce.experiment import (
    NONE,
    Finished,
    OverSeeds,
    Record,
    Table,
    percent_error,
)
from deltafl.sim.reproduce.methods import FEDAVG, Method
from deltafl.sim.reproduce.statistics import (
    SeedComparison,
    compare_over_seeds,
    holm,
    resampled_p,
)

Numbers: TypeAlias = npt.NDArray[np.float64]
Seeds: TypeAlias = Mapping[int, Sequence[Evaluation]]
"""From the seed to its evaluations, by round."""

MEAN = "mean"
TAIL = f"p{PERCENTILE}"

_HALF = 0.5  # of the devices test
_ROUNDS: Final = (10, 25, 50, 75, 100)
_GROUPS: Final = ("best-served third", "middle third", "worst-served third", "worst-served tenth")


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """One method in one family.

    Attributes:
        family: its name.
        method: the label of the method.
        seeds: its runs.
    """

    family: str
    method: str
    seeds: Seeds

    def rounds(self) -> list[int]:
        """After which all of its runs were evaluated."""
        every = [{one.round for one in runs} for runs in self.seeds.values()]
        return sorted(set.intersection(*every)) if every else []

    def errors(self, seed: int, at: int) -> dict[str, float]:
        """Test error of each device of a seed after a round."""
        return {device.id: device.error for device in self._evaluation(seed, at).test}

    def values(self, seeds: Sequence[int], at: int, statistic: str) -> Numbers:
        """A statistic of the test error over devices, in percent, one per seed."""
        percentile = None if statistic == MEAN else PERCENTILE
        return np.array([percent_error(self._evaluation(seed, at), percentile) for seed in seeds])

    def _evaluation(self, seed: int, at: int) -> Evaluation:
        return next(one for one in self.seeds[seed] if one.round == at)


@dataclass(frozen=True, slots=True)
class Test:
    """A method against FedAvg of its family.

    Attributes:
        family: the family.
        method: the label of the method.
        seeds: pairs.
        tail: the 90th percentile, ours less FedAvg's, in points.
        mean: the mean error, likewise.
        adjusted_p: of the tail, after Holm's correction for all tests.
        new_devices_p: of the tail, by the corrected resampled t test; not corrected for the number.
    """

    __test__ = False  # no test of pytest's

    family: str
    method: str
    seeds: int
    tail: SeedComparison
    mean: SeedComparison
    adjusted_p: float
    new_devices_p: float


def label_of(family: str, method: str) -> str:
    """What a method of a family is called among the cells."""
    return f"{family}: {method}"


def read_arms(
    finished: Sequence[Finished], families: Mapping[str, Sequence[Method]]
) -> dict[tuple[str, str], Arm]:
    """Read all runs of one task, by family and method, in the order of the declaration."""
    arms = {}
    for family, methods in families.items():
        for method in methods:
            label = label_of(family, method.label)
            mine = sorted(
                (one for one in finished if one.cell.method == label),
                key=lambda one: one.cell.seed,
            )
            if mine:
                seeds = {one.cell.seed: read_evaluations(one.directory.metrics) for one in mine}
                arms[family, method.label] = Arm(family, method.label, seeds)
    return arms


def compare(
    arms: Mapping[tuple[str, str], Arm], at: int, *, level: float = 0.95
) -> tuple[Test, ...]:
    """Test every method against FedAvg of its family after a round, by the seeds that both have.

    A method with fewer than two seeds, or without that round, is left out.

    Args:
        arms: of one task.
        at: the round.
        level: coverage of the intervals.
    """
    pairs = []
    for (family, method), arm in arms.items():
        baseline = arms.get((family, FEDAVG.label))
        if baseline is None or method == FEDAVG.label:
            continue
        seeds = [seed for seed in arm.seeds if seed in baseline.seeds]
        if len(seeds) >= 2 and at in arm.rounds() and at in baseline.rounds():
            pairs.append((arm, baseline, seeds))
    found = []
    for arm, baseline, seeds in pairs:
        both = {
            statistic: (arm.values(seeds, at, statistic), baseline.values(seeds, at, statistic))
            for statistic in (TAIL, MEAN)
        }
        found.append(
            (
                compare_over_seeds(*both[TAIL], level=level),
                compare_over_seeds(*both[MEAN], level=level),
                resampled_p(*both[TAIL], test_share=_HALF),
            )
        )
    adjusted = holm([tail.p_t for tail, _, _ in found])
    return tuple(
        Test(arm.family, arm.method, len(seeds), tail, mean, p, new_devices)
        for (arm, _, seeds), (tail, mean, new_devices), p in zip(
            pairs, found, adjusted, strict=True
        )
    )


def tests_table(name: str, label: str, tests: Sequence[Test], at: int, users: str) -> Table:
    """The declared tests, on devices that are called `users`."""
    records = [
        {
            "family": test.family,
            "method": test.method,
            "round": at,
            "seeds": test.seeds,
            **_numbers("p90", test.tail),
            **_numbers("mean", test.mean),
            "adjusted_p": test.adjusted_p,
            "new_devices_p": test.new_devices_p,
        }
        for test in tests
    ]
    return Table.of(
        name,
        f"{label}, after {at} rounds: the declared tests, less FedAvg of the same family (points)",
        records,
        {
            "family": "family",
            "method": "method",
            "90th percentile, 95% interval": lambda one: _interval(one, "p90"),
            "effect (d)": lambda one: f"{one['p90_effect']:+.1f}",
            "p (t)": lambda one: p_value(one["p90_p_t"]),
            "p (t), Holm": lambda one: p_value(one["adjusted_p"]),
            "p (signed rank)": lambda one: p_value(one["p90_p_signed_rank"]),
            f"p for new {users}": lambda one: p_value(one["new_devices_p"]),
            f"lower at {LEVEL:g}": lambda one: _verdict(one["adjusted_p"]),
            "mean error, 95% interval": lambda one: _interval(one, "mean"),
        },
    )


def together_table(name: str, made: Mapping[str, Sequence[Test]]) -> Table:
    """All tests of several studies, corrected for the number of all of them.

    Args:
        name: of the table.
        made: the tests of each study, by its label.
    """
    tests = [(label, test) for label, own in made.items() for test in own]
    together = holm([test.tail.p_t for _, test in tests])
    records = [
        {
            "study": label,
            "family": test.family,
            "method": test.method,
            **_numbers("p90", test.tail),
            "adjusted_p": test.adjusted_p,
            "together_p": p,
        }
        for (label, test), p in zip(tests, together, strict=True)
    ]
    return Table.of(
        name,
        f"All {len(tests)} tests of all studies, less FedAvg of the same family (points)",
        records,
        {
            **{key: key for key in ("study", "family", "method")},
            "90th percentile, 95% interval": lambda one: _interval(one, "p90"),
            "p (t), Holm of the study": lambda one: p_value(one["adjusted_p"]),
            "p (t), Holm of all": lambda one: p_value(one["together_p"]),
            f"lower at {LEVEL:g}, of all": lambda one: _verdict(one["together_p"]),
        },
    )


def errors_table(name: str, label: str, arms: Mapping[tuple[str, str], Arm], at: int) -> Table:
    """Errors, mean and standard deviation over seeds."""
    rows, records = [], []
    for arm in arms.values():
        if at not in arm.rounds():
            continue
        seeds = list(arm.seeds)
        tail, mean = arm.values(seeds, at, TAIL), arm.values(seeds, at, MEAN)
        rows.append((arm.family, arm.method, _spread(tail), _spread(mean)))
        records += [
            {
                "family": arm.family,
                "method": arm.method,
                "seed": seed,
                "round": at,
                "p90": float(one),
                "mean": float(other),
            }
            for seed, one, other in zip(seeds, tail, mean, strict=True)
        ]
    return Table(
        name,
        f"{label}, after {at} rounds: test error over devices (%), mean ± std over seeds",
        ("family", "method", "90th percentile", "mean"),
        tuple(rows),
        tuple(records),
    )


def rounds_table(name: str, label: str, arms: Mapping[tuple[str, str], Arm]) -> Table:
    """Differences to FedAvg over the rounds, with standard errors."""
    rows, records = [], []
    shown = [at for at in _ROUNDS if any(at in arm.rounds() for arm in arms.values())]
    for (family, method), arm in arms.items():
        baseline = arms.get((family, FEDAVG.label))
        if baseline is None:
            continue
        seeds = [seed for seed in arm.seeds if seed in baseline.seeds]
        row = [family, method]
        for at in shown:
            if at not in arm.rounds() or at not in baseline.rounds():
                row.append(NONE)
                continue
            ours = [arm.values(seeds, at, statistic) for statistic in (TAIL, MEAN)]
            theirs = [baseline.values(seeds, at, statistic) for statistic in (TAIL, MEAN)]
            if arm is baseline:
                row.append(f"{ours[0].mean():.1f}, {ours[1].mean():.1f}")
            else:
                changes = [one - other for one, other in zip(ours, theirs, strict=True)]
                row.append(", ".join(map(_error, changes)))
            records.append(
                {
                    "family": family,
                    "method": method,
                    "round": at,
                    "seeds": len(seeds),
                    "p90": float(ours[0].mean()),
                    "mean": float(ours[1].mean()),
                    "p90_difference": float((ours[0] - theirs[0]).mean()),
                    "mean_difference": float((ours[1] - theirs[1]).mean()),
                }
            )
        rows.append(tuple(row))
    return Table(
        name,
        f"{label}, over the rounds: 90th percentile, mean. FedAvg in %; others less FedAvg, in "
        "points ± standard error",
        ("family", "method", *(f"{at} rounds" for at in shown)),
        tuple(rows),
        tuple(records),
    )


def devices_table(
    name: str,
    label: str,
    arms: Mapping[tuple[str, str], Arm],
    at: int,
    users: str,
) -> Table:
    """Who gains and who loses.

    Devices are ranked by FedAvg's error in the odd seeds, and what changes is measured in the even
    ones: in the same seeds, whoever was unlucky with FedAvg would seem to gain from anything.
    """
    records = []
    for (family, method), arm in arms.items():
        baseline = arms.get((family, FEDAVG.label))
        if baseline is None or arm is baseline or at not in arm.rounds():
            continue
        if groups := changes_by_rank(arm, baseline, at):
            changes = dict(zip(_GROUPS, (100 * change for change in groups), strict=True))
            records.append({"family": family, "method": method, "round": at, **changes})
    return Table.of(
        name,
        f"{label}, after {at} rounds: change of the mean error against FedAvg (points), by how "
        f"FedAvg served the {users} in other seeds",
        records,
        {"family": "family", "method": "method", **{group: _change(group) for group in _GROUPS}},
    )


def _change(key: str) -> Callable[[Record], str]:
    return lambda one: f"{one[key]:+.2f}"


def changes_by_rank(arm: Arm, baseline: Arm, at: int) -> tuple[float, ...] | None:
    """Mean change of the error, of the thirds and of the tenth that FedAvg serves so well.

    None where fewer than ten devices were tested in odd and in even seeds.
    """
    ranked = device_means(baseline, at, [seed for seed in arm.seeds if seed % 2])
    even = [seed for seed in arm.seeds if not seed % 2 and seed in baseline.seeds]
    ours, theirs = device_means(arm, at, even), device_means(baseline, at, even)
    devices = sorted((one for one in ranked if one in ours), key=lambda one: (ranked[one], one))
    if len(devices) < 10:
        return None
    changes = np.array([ours[one] - theirs[one] for one in devices])
    thirds = [float(part.mean()) for part in np.array_split(changes, 3)]
    return (*thirds, float(changes[-len(changes) // 10 :].mean()))


def device_means(arm: Arm, at: int, seeds: Sequence[int]) -> dict[str, float]:
    """Test error of each device, averaged over the seeds in which it was tested."""
    found: dict[str, list[float]] = {}
    for seed in seeds:
        for device, error in arm.errors(seed, at).items() if seed in arm.seeds else ():
            found.setdefault(device, []).append(error)
    return {device: float(np.mean(errors)) for device, errors in found.items()}


def curve(arm: Arm, baseline: Arm, statistic: str) -> tuple[list[int], list[SeedComparison]]:
    """Differences to FedAvg after each round, by the seeds that both have."""
    seeds = [seed for seed in arm.seeds if seed in baseline.seeds]
    rounds = [at for at in arm.rounds() if at and at in baseline.rounds()]
    return rounds, [
        compare_over_seeds(arm.values(seeds, at, statistic), baseline.values(seeds, at, statistic))
        for at in rounds
    ]


def small_steps(arms: Mapping[tuple[str, str], Arm]) -> dict[str, Arm]:
    """The arms at one small rate, by method, without the private ones."""
    return {
        method: arm
        for (family, method), arm in arms.items()
        if family == SMALL_STEPS and not method.startswith("private")
    }


def _interval(one: Record, name: str) -> str:
    """A difference in points with its interval."""
    low, high = one[f"{name}_low"], one[f"{name}_high"]
    return f"{one[f'{name}_difference']:+.2f} [{low:+.2f}, {high:+.2f}]"


def _verdict(p: float) -> str:
    return "lower" if p < LEVEL else "no"


def _numbers(name: str, one: SeedComparison) -> dict[str, float]:
    return {
        f"{name}_difference": one.mean,
        f"{name}_low": one.low,
        f"{name}_high": one.high,
        f"{name}_p_t": one.p_t,
        f"{name}_p_signed_rank": one.p_signed_rank,
        f"{name}_effect": one.effect,
    }


def _spread(values: Numbers) -> str:
    return str(OverSeeds(tuple(values.tolist())))


def _error(changes: Numbers) -> str:
    error = f" ± {changes.std(ddof=1) / len(changes) ** 0.5:.2f}" if len(changes) > 1 else ""
    return f"{changes.mean():+.2f}{error}"
