"""The headline's tables: the declared tests, errors, differences over rounds, and over devices."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from deltafl.sim.reproduce.declared import FAMILIES, LEVEL, SMALL_STEPS
from deltafl.sim.reproduce.experiment import Table
from deltafl.sim.reproduce.headline_results import MEAN, TAIL, Arm, Numbers, Test
from deltafl.sim.reproduce.methods import FEDAVG
from deltafl.sim.reproduce.statistics import SeedComparison, compare_over_seeds, holm

_ROUNDS: Final = (10, 25, 50, 75, 100)
_GROUPS: Final = ("best-served third", "middle third", "worst-served third", "worst-served tenth")


def tests_table(name: str, label: str, tests: Sequence[Test], at: int, users: str) -> Table:
    """The declared tests, on devices that are called `users`."""
    rows = [
        (
            test.family,
            test.method,
            interval(test.tail),
            f"{test.tail.effect:+.1f}",
            p_value(test.tail.p_t),
            p_value(test.adjusted_p),
            p_value(test.tail.p_signed_rank),
            p_value(test.new_devices_p),
            "lower" if test.adjusted_p < LEVEL else "no",
            interval(test.mean),
        )
        for test in tests
    ]
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
    return Table(
        name,
        f"{label}, after {at} rounds: the declared tests, less FedAvg of the same family (points)",
        (
            "family",
            "method",
            "90th percentile, 95% interval",
            "effect (d)",
            "p (t)",
            "p (t), Holm",
            "p (signed rank)",
            f"p for new {users}",
            f"lower at {LEVEL:g}",
            "mean error, 95% interval",
        ),
        tuple(rows),
        tuple(records),
    )


def together_table(name: str, made: Mapping[str, Sequence[Test]]) -> Table:
    """All tests of several studies, corrected for the number of all of them.

    Args:
        name: of the table.
        made: the tests of each study, by its label.
    """
    tests = [(label, test) for label, own in made.items() for test in own]
    together = holm([test.tail.p_t for _, test in tests])
    return Table(
        name,
        f"All {len(tests)} tests of all studies, less FedAvg of the same family (points)",
        (
            "study",
            "family",
            "method",
            "90th percentile, 95% interval",
            "p (t), Holm of the study",
            "p (t), Holm of all",
            f"lower at {LEVEL:g}, of all",
        ),
        tuple(
            (
                label,
                test.family,
                test.method,
                interval(test.tail),
                p_value(test.adjusted_p),
                p_value(p),
                "lower" if p < LEVEL else "no",
            )
            for (label, test), p in zip(tests, together, strict=True)
        ),
        tuple(
            {
                "study": label,
                "family": test.family,
                "method": test.method,
                "p90_difference": test.tail.mean,
                "p90_p_t": test.tail.p_t,
                "adjusted_p": test.adjusted_p,
                "together_p": p,
            }
            for (label, test), p in zip(tests, together, strict=True)
        ),
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
                row.append("–")
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
    rows, records = [], []
    for (family, method), arm in arms.items():
        baseline = arms.get((family, FEDAVG.label))
        if baseline is None or arm is baseline or at not in arm.rounds():
            continue
        groups = changes_by_rank(arm, baseline, at)
        if groups is None:
            continue
        rows.append((family, method, *(f"{100 * change:+.2f}" for change in groups)))
        records.append(
            {
                "family": family,
                "method": method,
                "round": at,
                **dict(zip(_GROUPS, (100 * change for change in groups), strict=True)),
            }
        )
    return Table(
        name,
        f"{label}, after {at} rounds: change of the mean error against FedAvg (points), by how "
        f"FedAvg served the {users} in other seeds",
        ("family", "method", *_GROUPS),
        tuple(rows),
        tuple(records),
    )


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


def interval(one: SeedComparison) -> str:
    """A difference in points with its interval."""
    return f"{one.mean:+.2f} [{one.low:+.2f}, {one.high:+.2f}]"


def p_value(value: float) -> str:
    """As in tables."""
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


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
        method.label: arms[SMALL_STEPS, method.label]
        for method in FAMILIES[SMALL_STEPS]
        if (SMALL_STEPS, method.label) in arms and not method.label.startswith("private")
    }


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
    spread = f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else ""
    return f"{values.mean():.2f}{spread}"


def _error(changes: Numbers) -> str:
    error = f" ± {changes.std(ddof=1) / len(changes) ** 0.5:.2f}" if len(changes) > 1 else ""
    return f"{changes.mean():+.2f}{error}"
