"""What the headline's runs came to, by family, method, seed and round, and the declared tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.metrics import summarise_test_error
from deltafl.sim.record.evaluations import Evaluation, read_evaluations
from deltafl.sim.reproduce.declared import FAMILIES, PERCENTILE
from deltafl.sim.reproduce.experiment import Finished
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
        found = [summarise_test_error(self._evaluation(seed, at).test) for seed in seeds]
        return np.array(
            [
                100 * (one.mean if statistic == MEAN else one.percentiles[PERCENTILE])
                for one in found
            ]
        )

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
    finished: Sequence[Finished], families: Mapping[str, Sequence[Method]] = FAMILIES
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
