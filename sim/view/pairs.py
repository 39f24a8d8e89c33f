"""Devices of runs, as numbers to be drawn and compared: distributions, and pairs of methods."""

import functools
from collections.abc import Sequence
from typing import Final

import numpy as np

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.simplex import Reals
from deltafl.sim.charts.chart import Distribution, Pairs
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.labels import usual_baseline
from deltafl.sim.record.snapshot import Method, Tested
from deltafl.sim.reproduce.comparison import Met, compare_methods
from deltafl.sim.reproduce.statistics import (
    Comparison,
    by_rank_in_other_seeds,
    compare_worst_served,
)

LEVEL: Final = 0.95
"""The coverage of intervals."""


def distribution(method: Method, number: int, bins: int) -> Distribution | None:
    """The distribution of a method's test errors by round; None without evaluations."""
    by_round: dict[int, list[Reals]] = {}
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


def pairs_of(methods: Sequence[Method], baseline: Method | None) -> list[tuple[int, Pairs]]:
    """Methods in pairs with the baseline, by number; of those that have such pairs."""
    if baseline is None:
        return []
    others = ((at, pairs(one, baseline)) for at, one in enumerate(methods) if one is not baseline)
    return [(at, found) for at, found in others if found is not None]


def pairs(ours: Method, theirs: Method) -> Pairs | None:
    """Pair two methods by seed and device, at the latest round that both have evaluated.

    Returns:
        None where fewer than two seeds have been evaluated under both on the same devices: with
        one, who is served badly cannot be told from who was unlucky.
    """
    found = _common(ours, theirs)
    if not found:
        return None
    mine, base = (np.array([_by_device(one) for one in side]) for side in zip(*found, strict=True))
    tail = compare_worst_served(mine, base)
    return Pairs(
        ours.label,
        theirs.label,
        mine.mean(axis=0),
        base.mean(axis=0),
        np.array([one.mean(axis=0) for one in by_rank_in_other_seeds(mine, base)]),
        None if tail is None else (tail.mean, tail.low, tail.high),
        found[0][0].round,
        len(found),
    )


def _common(ours: Method, theirs: Method) -> list[tuple[Tested, Tested]]:
    """What the pairs of runs have measured after the latest round that two pairs have."""
    for number in sorted({one.round for run in ours.runs for one in run.tested}, reverse=True):
        mine, others = (
            {run.seed: one for run in side.runs for one in run.tested if one.round == number}
            for side in (ours, theirs)
        )
        found = [
            (one, others[seed])
            for seed, one in mine.items()
            if one.devices and seed in others
            if not _met(ours, seed, one).unlike(_met(theirs, seed, others[seed]))
        ]
        alike = [pair for pair in found if set(pair[0].devices) == set(found[0][0].devices)]
        if len(alike) >= 2:
            return alike
    return []


def _met(method: Method, seed: int, one: Tested) -> Met:
    return Met((method.config.data.split_seed, seed), method.data, one.devices)


def _by_device(one: Tested) -> Reals:
    """The errors in the order of the devices' names."""
    return one.errors[sorted(range(len(one.devices)), key=one.devices.__getitem__)]


def baseline_of(methods: Sequence[Method], wanted: str | None = None) -> Method | None:
    """What the others are compared with: the wanted one, or the only FedAvg, or the last.

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
    return methods[usual_baseline([one.config.federation.algorithm for one in methods])]


def comparisons(
    methods: Sequence[Method], baseline: Method, percentile: int | None
) -> tuple[Comparison, ...]:
    """Compare the final models of all methods with the baseline, as `compare_methods`.

    Raises:
        ValueError: the methods do not have the same seeds and last rounds, or two runs of a seed
            are no pair.
    """
    finals: dict[str, tuple[Tested, ...]] = {}
    theirs = {run.seed: run.tested[-1] for run in baseline.runs if run.tested}
    for method in methods:
        ours = {run.seed: run.tested[-1] for run in method.runs if run.tested}
        both = f"{method.label} and {baseline.label}"
        reached, wanted = ({k: one.round for k, one in side.items()} for side in (ours, theirs))
        if reached != wanted:
            raise ValueError(f"{both} do not have the same seeds and last rounds")
        for seed, one in ours.items():
            if why := _met(method, seed, one).unlike(_met(baseline, seed, theirs[seed])):
                raise ValueError(f"{both}, seed {seed}: {why}")
        finals[method.label] = tuple(ours.values())
    return _compared(tuple(finals.items()), baseline.label, percentile)


@functools.lru_cache(maxsize=8)
def _compared(
    finals: tuple[tuple[str, tuple[Tested, ...]], ...], baseline: str, percentile: int | None
) -> tuple[Comparison, ...]:
    """A page that is watched asks again and again, and large populations take seconds."""
    evaluations = {label: [_evaluation(one) for one in found] for label, found in finals}
    return compare_methods(evaluations, baseline=baseline, percentile=percentile, level=LEVEL)


def _evaluation(one: Tested) -> Evaluation:
    """What the statistics need of an evaluation."""
    pairs = zip(one.devices, one.errors.tolist(), strict=True)
    return Evaluation(one.round, (), [DeviceMetrics(name, 1, 0.0, error) for name, error in pairs])
