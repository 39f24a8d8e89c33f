"""What the headline's runs came to: the declared tests, its other tables, and its figures.

Tables are of the tests, of errors, of differences over rounds, and over devices. Figures are errors
over rounds with differences and intervals, and devices in pairs.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from deltafl.fl.metrics import tenth_of
from deltafl.fl.simplex import Reals
from deltafl.sim.charts.chart import LineStyle
from deltafl.sim.charts.files import dot_style, line_style, new_figure, titled
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.comparison import compare_runs, corrected, interval, p_of
from deltafl.sim.reproduce.declared import LEVEL, PERCENTILE, SMALL_STEPS, Study
from deltafl.sim.reproduce.experiment import (
    Columns,
    Finished,
    Record,
    Table,
    by_method,
    evaluations_of,
    mean_and_std,
    percent_error,
    plus_minus,
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
    runs = {label: own for (_, label), own in by_method(finished).items()}
    arms: dict[tuple[str, str], dict[int, dict[int, Evaluation]]] = {}
    for family, methods in families.items():
        for method in methods:
            for seed, directory in runs.get(label_of(family, method.label), {}).items():
                arm = arms.setdefault((family, method.label), {})
                for evaluation in evaluations_of(directory):
                    arm.setdefault(evaluation.round, {})[seed] = evaluation
    return arms


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
    return Table.of(
        name,
        f"{label}, after {at} rounds: the declared tests, less FedAvg of the same family (points)",
        [{**_record(test), "round": at} for test in tests],
        {
            **_TESTED,
            "effect (d)": "{effect:+.1f}",
            "p (t)": p_of("p_runs"),
            "p (t), Holm": p_of("adjusted_p_runs"),
            "p (signed rank)": p_of("p_signed_rank"),
            f"p for new {users}": p_of("p_new_devices"),
            f"lower at {LEVEL:g}": lambda one: _verdict(one["adjusted_p_runs"]),
            "mean error, 95% interval": partial(
                interval, keys=("mean_difference", "mean_low", "mean_high")
            ),
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
    return Table.of(
        name,
        f"All {len(tests)} tests of all studies, less FedAvg of the same family (points)",
        [
            {"study": label, **_record(test), "together_p": tail.adjusted_p_seeds}
            for (label, test), tail in zip(tests, together, strict=True)
        ],
        {
            "study": "study",
            **_TESTED,
            "p (t), Holm of the study": p_of("adjusted_p_runs"),
            "p (t), Holm of all": p_of("together_p"),
            f"lower at {LEVEL:g}, of all": lambda one: _verdict(one["together_p"]),
        },
    )


def errors_table(name: str, label: str, arms: Arms, at: int) -> Table:
    """Errors, mean and standard deviation over seeds."""
    rows, records = [], []
    for (family, method), arm in arms.items():
        if at in arm:
            errors = _errors(arm[at].values()).tolist()
            rows.append((family, method, *(plus_minus(*mean_and_std(one)) for one in errors)))
            of = {"family": family, "method": method}
            records += [
                {**of, "seed": seed, "round": at, "p90": tail, "mean": mean}
                for seed, tail, mean in zip(arm[at], *errors, strict=True)
            ]
    title = f"{label}, after {at} rounds: test error over devices (%), mean ± std over seeds"
    columns = ("family", "method", "90th percentile", "mean")
    return Table(name, title, columns, tuple(rows), tuple(records))


def rounds_table(name: str, label: str, arms: Arms) -> Table:
    """Differences to FedAvg over the rounds, with standard errors."""
    records = []
    for (family, method), at in product(arms, _ROUNDS):
        ours, theirs = map(_errors, paired(arms, family, method, at))
        if ours.size:
            changes, seeds = ours - theirs, ours.shape[1]
            of = {"family": family, "method": method, "round": at, "seeds": seeds}
            for key, values, change in zip(("p90", "mean"), ours, changes, strict=True):
                mean, std = mean_and_std(change)
                error = None if std is None else std / seeds**0.5
                of |= {key: float(values.mean()), f"{key}_difference": mean, f"{key}_error": error}
            records.append(of)
    return Table.wide(
        name,
        f"{label}, over the rounds: 90th percentile, mean. FedAvg in %; others less FedAvg, in "
        "points ± standard error",
        records,
        ("family", "method"),
        lambda one: {f"{one['round']} rounds": _at_a_round(one)},
    )


def _at_a_round(one: Record) -> str:
    if one["method"] == FEDAVG.label:
        return f"{one['p90']:.1f}, {one['mean']:.1f}"
    return ", ".join(
        plus_minus(one[f"{key}_difference"], one[f"{key}_error"], sign="+")
        for key in ("p90", "mean")
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
        {"family": "family", "method": "method", **{one: f"{{{one}:+.2f}}" for one in _GROUPS}},
    )


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


def _errors(evaluations: Iterable[Evaluation]) -> Reals:
    """90th percentile and mean of the test error in percent, shape (2, evaluations)."""
    errors = [[percent_error(one, of) for of in (PERCENTILE, None)] for one in evaluations]
    return np.array(errors, dtype=np.float64).reshape(-1, 2).T


def _record(test: Test) -> Record:
    """With the keys of other comparisons, and the mean error's difference."""
    mean = test.mean.record
    of_mean = {f"mean_{key}": mean[key] for key in ("difference", "low", "high")}
    return {"family": test.family, **test.tail.record, **of_mean}


_TESTED: Final[Columns] = {
    "family": "family",
    "method": "method",
    "90th percentile, 95% interval": partial(interval, keys=("difference", "low", "high")),
}


def _verdict(p: float) -> str:
    return "lower" if p < LEVEL else "no"


def draw_headline(arms: Arms, at: int) -> Figure:
    """Errors over rounds, and differences over rounds, at small steps and in clear."""
    figure, ((errors, differences),) = new_figure(1, 2, (4.17, 3.9))
    clear = (one for one in arms if one[0] == SMALL_STEPS and not one[1].startswith("private"))
    for number, (family, method) in enumerate(clear):
        looks, found = line_style(number, marked=False), {}
        arm = arms[family, method]
        rounds = sorted(each for each in arm if each)
        tails = [_errors(arm[each].values())[0].mean() for each in rounds]
        errors.plot(rounds, tails, label=method, **looks)
        for each in rounds:
            ours, theirs = map(_errors, paired(arms, family, method, each))
            if method != FEDAVG.label and ours.shape[1] > 1:
                found[each] = compare_over_seeds(ours[0], theirs[0])
        if found:
            differences.plot([*found], [one.mean for one in found.values()], label=method, **looks)
            low, high = ([getattr(one, end) for one in found.values()] for end in ("low", "high"))
            differences.fill_between(
                [*found], low, high, color=looks["color"], alpha=0.15, linewidth=0
            )
    measure = "90th percentile of the test error (%)"
    titled(errors, f"{SMALL_STEPS}: one learning rate for all", xlabel="round", ylabel=measure)
    differences.axhline(0, color="0.5", linewidth=0.8)
    differences.axvline(at, color="0.7", linewidth=0.8, linestyle=":")
    title = "less FedAvg, with 95% intervals"
    titled(differences, title, xlabel="round", ylabel="difference (points)")
    return figure


def draw_devices(arms: Arms, at: int, users: str) -> Figure:
    """Each device's error under FedAvg and under Δ-FL, averaged over the seeds that tested it."""
    figure, ((panel,),) = new_figure(1, 1, (5, 4.6))
    after, before = map(device_means, paired(arms, SMALL_STEPS, _SHOWN, at))
    shared = [(before[device], after[device]) for device in before if device in after]
    pairs = 100 * np.array(shared).reshape(-1, 2)
    lower = pairs[:, 1] < pairs[:, 0]
    for chosen, number, word in ((lower, 0, "gain"), (~lower, 1, "lose, or are equal")):
        name, looks = f"{int(chosen.sum())} {users} {word}", dot_style(number)
        x, y = pairs[chosen].T
        panel.scatter(x, y, s=11, alpha=0.6, linewidths=0, label=name, **looks)
    most = float(pairs.max(initial=0.0)) * 1.03
    panel.plot([0, most], [0, most], color="0.5", linewidth=0.8)
    of = f"test error of a {users.removesuffix('s')} with FedAvg (%)"
    titled(panel, f"{SMALL_STEPS}, after {at} rounds", xlabel=of, ylabel=f"with {_SHOWN} (%)")
    return figure


def draw_tests(tests: Sequence[Test], at: int) -> Figure:
    """The declared tests; letters are readable where it is 800 pixels wide."""
    figure, ((panel,),) = new_figure(1, 1, (7.0, 0.9 + 0.23 * len(tests)))
    names = []
    for row, test in enumerate(reversed(tests)):
        names.append(f"{test.tail.method}, {test.family}")
        tail = test.tail.record
        mean, low, high = (100 * tail[key] for key in ("difference", "low", "high"))
        counts = tail["adjusted_p_runs"] < LEVEL
        colour = LineStyle(0).colour if counts else "0.4"
        if not np.isfinite(high - low):  # it has no ends to draw, so it crosses the whole panel
            panel.axhline(row, color="0.4", linewidth=1.2)
            low = high = mean
        panel.plot([low, high], [row, row], color=colour, linewidth=1.2)
        fill = colour if counts else "white"
        panel.plot(mean, row, "o" if counts else "s", mfc=fill, color=colour, markersize=5)
    panel.set_yticks(range(len(tests)), names, fontsize="small")
    panel.axvline(0, color="0.5", linewidth=0.8)
    title = f"after {at} rounds; filled: p < {LEVEL:g}, corrected"
    measure = "90th percentile of the test error, less FedAvg (points)"
    titled(panel, title, legend=False, xlabel=measure)
    return figure
