"""Devices of runs, as numbers to be drawn and compared: distributions, and pairs of methods."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.charts.chart import Distribution, Numbers, Pairs
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.snapshot import Method
from deltafl.sim.reproduce.comparison import compare_methods
from deltafl.sim.reproduce.methods import FEDAVG
from deltafl.sim.reproduce.statistics import Comparison, error_matrix

LEVEL: Final = 0.95
"""The coverage of intervals."""


def distribution(method: Method, number: int, bins: int) -> Distribution | None:
    """The distribution of a method's test errors by round; None without evaluations."""
    by_round: dict[int, list[Numbers]] = {}
    for run in method.runs:
        for one in run.tested:
            if one.errors.size:
                by_round.setdefault(one.round, []).append(one.errors)
    if not by_round:
        return None
    rounds = sorted(by_round)
    rows = []
    for at in rounds:
        errors = np.concatenate(by_round[at])
        counts, _ = np.histogram(errors, bins, range=(0.0, 1.0))
        rows.append(counts / errors.size)
    return Distribution(method.label, number, tuple(rounds), np.array(rows))


def pairs(ours: Method, theirs: Method) -> Pairs | None:
    """Pair two methods by seed and device, at the latest round that both have evaluated.

    Returns:
        None where no seed has been evaluated under both on the same devices.
    """
    found = _common(ours, theirs)
    if not found:
        return None
    number = max(at for at, _, _ in found)
    chosen = [(mine, his) for at, mine, his in found if at == number]
    ids, mine = error_matrix([one for one, _ in chosen])
    _, his = error_matrix([one for _, one in chosen])
    mean, base = mine.mean(axis=0), his.mean(axis=0)
    order = np.lexsort((mean, base))
    return Pairs(
        ours.label,
        theirs.label,
        tuple(ids[at] for at in order),
        mean[order],
        base[order],
        number,
        len(chosen),
    )


def _common(ours: Method, theirs: Method) -> list[tuple[int, Evaluation, Evaluation]]:
    """Of each seed: the latest round that both have evaluated, and these evaluations."""
    by_seed = {run.seed: run for run in theirs.runs}
    found: list[tuple[int, Evaluation, Evaluation]] = []
    for run in ours.runs:
        if (other := by_seed.get(run.seed)) is None:
            continue
        mine = {one.round: one for one in run.tested if one.devices}
        his = {one.round: one for one in other.tested if one.devices}
        shared = [
            at
            for at in mine.keys() & his.keys()
            if set(mine[at].devices) == set(his[at].devices)
            and len(set(mine[at].devices)) == len(mine[at].devices) == len(his[at].devices)
        ]
        if shared:
            at = max(shared)
            pair = (
                _evaluation(mine[at].devices, mine[at].errors, at),
                _evaluation(his[at].devices, his[at].errors, at),
            )
            if found and {one.id for one in found[0][1].test} != {one.id for one in pair[0].test}:
                continue
            found.append((at, *pair))
    return found


def _evaluation(devices: Sequence[str], errors: Numbers, number: int) -> Evaluation:
    """What the statistics need of an evaluation."""
    test = [DeviceMetrics(one, 1, 0.0, float(e)) for one, e in zip(devices, errors, strict=True)]
    return Evaluation(number, (), test)


def baseline_of(methods: Sequence[Method], wanted: str | None = None) -> Method | None:
    """What the others are compared with: the wanted one, or FedAvg, or the last.

    Raises:
        ValueError: there is no method of this label.
    """
    if wanted is not None:
        found = next((one for one in methods if one.label == wanted), None)
        if found is None:
            known = ", ".join(one.label for one in methods)
            raise ValueError(f"{wanted!r} is not one of the methods: {known}")
        return found
    if len(methods) < 2:
        return None
    return next((one for one in methods if one.algorithm == FEDAVG.key), methods[-1])


def comparisons(
    methods: Sequence[Method], baseline: Method, percentile: int | None
) -> tuple[Comparison, ...]:
    """Compare the final models of all methods with the baseline, as `compare_methods`.

    Raises:
        ValueError: the methods do not have the same seeds, last rounds and test devices.
    """
    finals: dict[str, list[Evaluation]] = {}
    of_baseline = [(run.seed, run.tested[-1].round) for run in baseline.runs if run.tested]
    for method in methods:
        runs = [run for run in method.runs if run.tested and run.tested[-1].devices]
        if [(run.seed, run.tested[-1].round) for run in runs] != of_baseline:
            raise ValueError(
                f"{method.label} and {baseline.label} do not have the same seeds and last rounds"
            )
        finals[method.label] = [
            _evaluation(run.tested[-1].devices, run.tested[-1].errors, run.tested[-1].round)
            for run in runs
        ]
    return compare_methods(
        finals,
        baseline=baseline.label,
        percentile=percentile,
        level=LEVEL,
    )
