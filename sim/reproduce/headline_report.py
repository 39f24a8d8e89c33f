"""What the headline's runs came to: the declared tests, its other tables, and its figures.

Tables are of the tests, of errors, of differences over rounds, and over devices. Figures are errors
over rounds with differences and intervals, and devices in pairs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deltafl.fl.metrics import tenth_of
from deltafl.secagg.errors import present
from deltafl.sim.charts.chart import LineStyle, Numbers
from deltafl.sim.charts.files import dot_style, line_style, new_figure, titled
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.comparison import compare_runs, corrected, p_value
from deltafl.sim.reproduce.declared import LEVEL, PERCENTILE, SMALL_STEPS, Study
from deltafl.sim.reproduce.experiment import (
    NONE,
    Finished,
    OverSeeds,
    Record,
    Table,
    by_method,
    evaluations_of,
    percent_error,
)
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG, Method
from deltafl.sim.reproduce.statistics import Comparison, compare_over_seeds

Arm: TypeAlias = Mapping[int, Mapping[int, Evaluation]]
"""One method in one family: its evaluations by round and seed."""

Arms: TypeAlias = Mapping[tuple[str, str], Arm]
"""Of one task, by family and label of the method."""

_HALF: Final = 0.5  # of the devices test
_ROUNDS: Final = (10, 25, 50, 75, 100)
_GROUPS: Final = ("best-served third", "middle third", "worst-served third", "worst-served tenth")
_SHOWN: Final = DELTA_FL[1].label


class Test(NamedTuple):
    """A method against FedAvg of its family.

    Attributes:
        family: the family.
        tail: the 90th percentile, corrected for all tests.
        mean: the mean error.
    """

    family: str
    tail: Comparison
    mean: Comparison


def label_of(family: str, method: str) -> str:
    """What a method of a family is called among the cells."""
    return f"{family}: {method}"


def read_arms(finished: Sequence[Finished], families: Mapping[str, Sequence[Method]]) -> Arms:
    """Read all runs of one task, by family and method, in the order of the declaration."""
    runs: dict[str, dict[int, dict[int, Evaluation]]] = {}
    for (_, label), own in by_method(finished).items():
        for seed, directory in own.items():
            for evaluation in evaluations_of(directory):
                of_method = runs.setdefault(label, {})
                of_method.setdefault(evaluation.round, {})[seed] = evaluation
    return {
        (family, method.label): runs[label_of(family, method.label)]
        for family, methods in families.items()
        for method in methods
        if label_of(family, method.label) in runs
    }


def study_report(
    name: str, label: str, study: Study, finished: Sequence[Finished], at: int
) -> tuple[tuple[Test, ...], list[Table], dict[str, Figure]]:
    """The tests of a study, its tables, and its figures if there are tests.

    Args:
        name: of the experiment.
        label: of the study's task.
        study: its declaration.
        finished: its runs.
        at: the round after which the tests are made.
    """
    arms = read_arms(finished, study.families)
    tests = compare(arms, at)
    file = study.file
    tables = [
        tests_table(file(f"{name}-tests"), label, tests, at, study.users),
        errors_table(file(f"{name}-errors"), label, arms, at),
        rounds_table(file(f"{name}-rounds"), label, arms),
        devices_table(file(f"{name}-devices"), label, arms, at, study.users),
    ]
    if not tests:
        return tests, tables, {}
    drawn = {
        name: draw_headline(arms, at),
        f"{name}-tests": draw_tests(tests, at),
        f"{name}-devices": draw_devices(arms, at, study.users),
    }
    return tests, tables, {file(of): figure for of, figure in drawn.items()}


def paired(arms: Arms, family: str, method: str, at: int) -> tuple[list[Evaluation], ...]:
    """A method's and FedAvg's evaluations after a round, by the seeds that both have."""
    ours, theirs = (arms.get((family, one), {}).get(at, {}) for one in (method, FEDAVG.label))
    seeds = [seed for seed in ours if seed in theirs]
    return [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]


def compare(arms: Arms, at: int) -> tuple[Test, ...]:
    """Test every method against FedAvg of its family after a round, by the seeds that both have.

    A method with fewer than two seeds, or without that round, is left out.
    """
    found = []
    for family, method in arms:
        pairs = paired(arms, family, method, at)
        if method != FEDAVG.label and len(pairs[0]) >= 2:
            tail, mean = (
                compare_runs(
                    method,
                    *pairs,
                    same_devices=False,
                    test_share=_HALF,
                    percentile=percentile,
                    alternative="less",  # as declared
                )
                for percentile in (PERCENTILE, None)
            )
            found.append(Test(family, tail, mean))
    tails = corrected([test.tail for test in found])
    return tuple(test._replace(tail=tail) for test, tail in zip(found, tails, strict=True))


def tests_table(name: str, label: str, tests: Sequence[Test], at: int, users: str) -> Table:
    """The declared tests, on devices that are called `users`."""
    records = [
        {
            "family": test.family,
            "method": test.tail.method,
            "round": at,
            "seeds": test.tail.pairs,
            **_numbers("p90", test.tail),
            **_numbers("mean", test.mean),
            "adjusted_p": test.tail.adjusted_p_seeds,
            "new_devices_p": test.tail.new_devices_p,
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
    together = corrected([test.tail for _, test in tests])
    records = [
        {
            "study": label,
            "family": test.family,
            "method": test.tail.method,
            **_numbers("p90", test.tail),
            "adjusted_p": test.tail.adjusted_p_seeds,
            "together_p": tail.adjusted_p_seeds,
        }
        for (label, test), tail in zip(tests, together, strict=True)
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


def errors_table(name: str, label: str, arms: Arms, at: int) -> Table:
    """Errors, mean and standard deviation over seeds."""
    rows, records = [], []
    for (family, method), arm in arms.items():
        if at in arm:
            errors = _errors(arm[at].values())
            rows.append((family, method, *(str(OverSeeds(tuple(one))) for one in errors.tolist())))
            of = {"family": family, "method": method}
            records += [
                {**of, "seed": seed, "round": at, "p90": tail, "mean": mean}
                for seed, (tail, mean) in zip(arm[at], errors.T.tolist(), strict=True)
            ]
    return Table(
        name,
        f"{label}, after {at} rounds: test error over devices (%), mean ± std over seeds",
        ("family", "method", "90th percentile", "mean"),
        tuple(rows),
        tuple(records),
    )


def rounds_table(name: str, label: str, arms: Arms) -> Table:
    """Differences to FedAvg over the rounds, with standard errors."""
    rows, records = [], []
    shown = [at for at in _ROUNDS if any(at in arm for arm in arms.values())]
    for family, method in arms:
        row = [family, method]
        for at in shown:
            ours, theirs = map(_errors, paired(arms, family, method, at))
            if not ours.size:
                row.append(NONE)
                continue
            means, changes = ours.mean(axis=1).tolist(), ours - theirs
            is_baseline = method == FEDAVG.label
            texts = (f"{mean:.1f}" for mean in means) if is_baseline else map(_change, changes)
            row.append(", ".join(texts))
            differences = changes.mean(axis=1).tolist()
            records.append(
                {
                    "family": family,
                    "method": method,
                    "round": at,
                    "seeds": ours.shape[1],
                    **dict(zip(("p90", "mean"), means, strict=True)),
                    **dict(zip(("p90_difference", "mean_difference"), differences, strict=True)),
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


def devices_table(name: str, label: str, arms: Arms, at: int, users: str) -> Table:
    """Who gains and who loses.

    Devices are ranked by FedAvg's error in the odd seeds, and what changes is measured in the even
    ones: in the same seeds, whoever was unlucky with FedAvg would seem to gain from anything.
    """
    records = []
    for (family, method), arm in arms.items():
        baseline = arms.get((family, FEDAVG.label), {})
        groups = changes_by_rank(arm.get(at, {}), baseline.get(at, {}))
        if groups and method != FEDAVG.label:
            changes = dict(zip(_GROUPS, (100 * change for change in groups), strict=True))
            records.append({"family": family, "method": method, "round": at, **changes})
    return Table.of(
        name,
        f"{label}, after {at} rounds: change of the mean error against FedAvg (points), by how "
        f"FedAvg served the {users} in other seeds",
        records,
        {"family": "family", "method": "method", **{group: _change_of(group) for group in _GROUPS}},
    )


def _change_of(group: str) -> Callable[[Record], str]:
    return lambda one: f"{one[group]:+.2f}"


def changes_by_rank(
    ours: Mapping[int, Evaluation], baseline: Mapping[int, Evaluation]
) -> tuple[float, ...] | None:
    """Mean change of the error, of the thirds and of the tenth that FedAvg serves so well.

    None where fewer than ten devices were tested in odd and in even seeds.

    Args:
        ours: by seed, after some round.
        baseline: FedAvg's.
    """
    ranked = device_means(baseline[seed] for seed in ours if seed % 2 and seed in baseline)
    even = [seed for seed in ours if not seed % 2 and seed in baseline]
    mine, theirs = (device_means(one[seed] for seed in even) for one in (ours, baseline))
    devices = sorted((one for one in ranked if one in mine), key=lambda one: (ranked[one], one))
    if len(devices) < 10:
        return None
    changes = np.array([mine[one] - theirs[one] for one in devices])
    thirds = [float(part.mean()) for part in np.array_split(changes, 3)]
    return (*thirds, float(changes[-tenth_of(len(changes)) :].mean()))


def device_means(evaluations: Iterable[Evaluation]) -> dict[str, float]:
    """Test error of each device, averaged over the seeds in which it was tested."""
    found: dict[str, list[float]] = {}
    for evaluation in evaluations:
        for device in evaluation.test:
            found.setdefault(device.id, []).append(device.error)
    return {device: float(np.mean(errors)) for device, errors in found.items()}


def _errors(evaluations: Iterable[Evaluation]) -> Numbers:
    """90th percentile and mean of the test error in percent, shape (2, evaluations)."""
    errors = [[percent_error(one, of) for of in (PERCENTILE, None)] for one in evaluations]
    return np.array(errors, dtype=np.float64).reshape(-1, 2).T


def _interval(one: Record, name: str) -> str:
    """A difference in points with its interval."""
    low, high = one[f"{name}_low"], one[f"{name}_high"]
    return f"{one[f'{name}_difference']:+.2f} [{low:+.2f}, {high:+.2f}]"


def _verdict(p: float) -> str:
    return "lower" if p < LEVEL else "no"


def _numbers(name: str, one: Comparison) -> dict[str, float]:
    """Differences in points."""
    seeds = present(one.seeds)
    return {
        f"{name}_difference": 100 * seeds.mean,
        f"{name}_low": 100 * seeds.low,
        f"{name}_high": 100 * seeds.high,
        f"{name}_p_t": seeds.p,
        f"{name}_p_signed_rank": seeds.p_signed_rank,
        f"{name}_effect": seeds.effect,
    }


def _change(changes: Numbers) -> str:
    error = f" ± {changes.std(ddof=1) / len(changes) ** 0.5:.2f}" if len(changes) > 1 else ""
    return f"{changes.mean():+.2f}{error}"


def draw_headline(arms: Arms, at: int) -> Figure:
    """Errors over rounds, and differences over rounds."""
    figure, (panels,) = new_figure(1, 2, (4.17, 3.9))
    _draw_errors(panels[0], arms)
    _draw_differences(panels[1], arms, at)
    return figure


def draw_devices(arms: Arms, at: int, users: str) -> Figure:
    """Each device's error under FedAvg and under Δ-FL, averaged over the seeds that tested it."""
    figure = Figure(figsize=(5, 4.6), layout="constrained")
    panel = figure.add_subplot()
    panel.spines[["top", "right"]].set_visible(False)
    ours, theirs = paired(arms, SMALL_STEPS, _SHOWN, at)
    if ours:
        before, after = device_means(theirs), device_means(ours)
        shared = [[before[device], after[device]] for device in before if device in after]
        pairs = 100 * np.array(shared).reshape(-1, 2)
        lower = pairs[:, 1] < pairs[:, 0]
        for chosen, number, word in ((lower, 0, "gain"), (~lower, 1, "lose, or are equal")):
            (x, y), name = pairs[chosen].T, f"{int(chosen.sum())} {users} {word}"
            looks = dot_style(number)
            panel.scatter(x, y, s=11, alpha=0.6, linewidths=0, label=name, **looks)
        most = float(pairs.max(initial=0.0)) * 1.03
        panel.plot([0, most], [0, most], color="0.5", linewidth=0.8)
    titled(
        panel,
        f"{SMALL_STEPS}, after {at} rounds",
        legend=bool(ours),
        xlabel=f"test error of a {users.removesuffix('s')} with FedAvg (%)",
        ylabel=f"with {_SHOWN} (%)",
    )
    return figure


def _small_steps(arms: Arms) -> dict[str, Arm]:
    """The arms at one small rate, by method, without the private ones."""
    return {
        method: arm
        for (family, method), arm in arms.items()
        if family == SMALL_STEPS and not method.startswith("private")
    }


def _draw_errors(panel: Axes, arms: Arms) -> None:
    for number, (method, arm) in enumerate(_small_steps(arms).items()):
        rounds = sorted(at for at in arm if at)
        values = [_errors(arm[at].values())[0].mean() for at in rounds]
        panel.plot(rounds, values, label=method, **line_style(number, marked=False))
    measure = "90th percentile of the test error (%)"
    titled(panel, f"{SMALL_STEPS}: one learning rate for all", xlabel="round", ylabel=measure)


def _draw_differences(panel: Axes, arms: Arms, at: int) -> None:
    for number, (method, arm) in enumerate(_small_steps(arms).items()):
        found = {}
        for each in sorted(each for each in arm if each):
            ours, theirs = map(_errors, paired(arms, SMALL_STEPS, method, each))
            if method != FEDAVG.label and ours.shape[1] > 1:
                found[each] = compare_over_seeds(ours[0], theirs[0])
        if found:
            looks = line_style(number, marked=False)
            panel.plot([*found], [one.mean for one in found.values()], label=method, **looks)
            low, high = ([getattr(one, end) for one in found.values()] for end in ("low", "high"))
            panel.fill_between([*found], low, high, color=looks["color"], alpha=0.15, linewidth=0)
    panel.axhline(0, color="0.5", linewidth=0.8)
    panel.axvline(at, color="0.7", linewidth=0.8, linestyle=":")
    title = "less FedAvg, with 95% intervals"
    titled(panel, title, xlabel="round", ylabel="difference (points)")


def draw_tests(tests: Sequence[Test], at: int) -> Figure:
    """The declared tests; letters are readable where it is 800 pixels wide."""
    figure, ((panel,),) = new_figure(1, 1, (7.0, 0.9 + 0.23 * len(tests)))
    for row, test in enumerate(reversed(tests)):
        tail = _numbers("p90", test.tail)
        mean, low, high = (tail[f"p90_{key}"] for key in ("difference", "low", "high"))
        counts = present(test.tail.adjusted_p_seeds) < LEVEL
        if not np.isfinite(high - low):  # it has no ends to draw, so it crosses the whole panel
            panel.axhline(row, color="0.4", linewidth=1.2)
            low = high = mean
        panel.errorbar(
            mean,
            row,
            xerr=[[mean - low], [high - mean]],
            fmt="o" if counts else "s",
            markerfacecolor=LineStyle(0).colour if counts else "white",
            color=LineStyle(0).colour if counts else "0.4",
            markersize=5,
            linewidth=1.2,
        )
    names = [f"{test.tail.method}, {test.family}" for test in reversed(tests)]
    panel.set_yticks(range(len(tests)), names, fontsize="small")
    panel.axvline(0, color="0.5", linewidth=0.8)
    title = f"after {at} rounds; filled: p < {LEVEL:g}, corrected"
    measure = "90th percentile of the test error, less FedAvg (points)"
    titled(panel, title, legend=False, xlabel=measure)
    return figure
