"""Is one method better than another, and how sure is that? Paired intervals and tests.

Two things vary, and a result may generalise to either:

- the training: over seeds, each seed one pair (equal seeds mean equal cohorts and initial models).
  `compare_over_seeds`; with the 3 to 5 seeds of the papers a rank test can not reach every level,
  so `SeedComparison.smallest_p` says how small its p can be.
- the devices that are served: over test devices, for the models as they were trained.
  `compare_over_devices`. Two runs of one method differ on nearly all devices alike, so this alone
  says nothing of methods: where there are several seeds, `also_over_seeds` has both vary.

All differences are "ours less baseline" of something that should be small, so negative is better.
A p-value is two-sided and belongs to the interval beside it: it is at most 1 − level exactly where
the interval leaves out zero. One-sided ones ("less": small if ours is lower) are for tests that
were declared so before their runs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from deltafl.fl.metrics import tenth_of
from deltafl.sim.record.evaluations import Evaluation

Numbers = npt.NDArray[np.float64]
Sample: TypeAlias = Sequence[float] | Numbers

Alternative: TypeAlias = Literal["two-sided", "less"]
"""What a test is for: any difference, or that ours is lower."""

RESAMPLES: Final = 2000
"""Bootstrap resamples: a p-value of 0.05 is then known to ± 0.005 (one standard error)."""

_CHUNK: Final = 1 << 22  # numbers drawn at a time, so that large populations fit into memory
_EXACT_SEEDS: Final = 12  # 2^12 sign patterns are enumerated; beyond, the normal approximation
_ROUNDING: Final = 2.0**-40  # of the largest value: what rounding leaves of equal differences


_OWN: Final = ("method", "pairs", "mean", "std", "baseline_mean")
_SAME: Final = ("low", "high", "effect", "p_signed_rank", "p_sign", "smallest_p", "p_new_devices")
_OF_SEEDS: Final = {"difference": "mean", "p_runs": "p", **dict(zip(_SAME, _SAME, strict=True))}
_OF_DEVICES: Final = {
    "device_difference": "difference",
    "device_low": "low",
    "device_high": "high",
    "p_devices": "p",
}
"""From the key of a record to the field of what was compared over seeds, or over devices."""


@dataclass(frozen=True, slots=True)
class SeedComparison:
    """Ours less baseline over paired seeds.

    Attributes:
        mean: mean difference.
        low: lower end of the t interval for it. Of equal differences, which show no spread, the
            interval is that of the exact test: unbounded with so few that this cannot reach
            1 − level, otherwise the mean alone.
        high: upper end.
        p: paired t test: assumes differences that are nearly normal. Of equal differences,
            `p_signed_rank`.
        p_signed_rank: Wilcoxon's signed-rank test: assumes symmetry only.
        p_sign: sign test: assumes nothing but independent seeds; equal pairs do not count.
        smallest_p: what the two last can reach at best with so many seeds; two-sided 2^(1 − n).
        effect: mean difference in standard deviations of the differences (Cohen's d of pairs), NaN
            where all are zero, infinite where all others are equal.
        p_new_devices: corrected resampled t test, if every pair has a split of its own. Of equal
            differences, `p_signed_rank`.
    """

    mean: float
    low: float
    high: float
    p: float
    p_signed_rank: float
    p_sign: float
    smallest_p: float
    effect: float = math.nan
    p_new_devices: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceComparison:
    """Ours less baseline over paired devices.

    Attributes:
        difference: of the statistic (percentile or mean over devices), averaged over seeds.
        low: lower end of the bootstrap interval.
        high: upper end.
        p: two-sided; at least 2 / (`RESAMPLES` + 1), and 2^(1 − devices).
    """

    difference: float
    low: float
    high: float
    p: float


class Estimate(NamedTuple):
    """A difference, how sure it is, and what that is over.

    Attributes:
        difference: ours less baseline.
        low: lower end of its interval.
        high: upper end.
        p: after Holm's correction for all methods compared.
        over: "runs" or "devices".
    """

    difference: float
    low: float
    high: float
    p: float
    over: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """One method beside the baseline.

    Attributes:
        method: its label.
        pairs: how many runs were paired; of the baseline itself, how many count.
        mean: of the statistic over these runs.
        std: its standard deviation over them (divisor n − 1); None with one.
        baseline_mean: of the baseline over the same pairs; None for the baseline itself.
        seeds: over runs; None for the baseline itself, and with one pair.
        devices: over test devices, and with several pairs over runs as well; None for the baseline
            itself, and where runs differ in them.
        adjusted_p_seeds: `seeds.p` after Holm's correction for all methods compared.
        adjusted_p_devices: `devices.p` after Holm's correction for all methods compared.
    """

    method: str
    pairs: int
    mean: float
    std: float | None
    baseline_mean: float | None = None
    seeds: SeedComparison | None = None
    devices: DeviceComparison | None = None
    adjusted_p_seeds: float | None = None
    adjusted_p_devices: float | None = None

    @property
    def record(self) -> Mapping[str, Any]:
        """All of it under the keys of tables; differences are not scaled."""
        return {
            **{key: getattr(self, key) for key in _OWN},
            **{key: getattr(self.seeds, field, None) for key, field in _OF_SEEDS.items()},
            "adjusted_p_runs": self.adjusted_p_seeds,
            **{key: getattr(self.devices, field, None) for key, field in _OF_DEVICES.items()},
            "adjusted_p_devices": self.adjusted_p_devices,
        }

    @property
    def estimate(self) -> Estimate | None:
        """What is told where there is room for one: over runs where two or more are paired.

        Otherwise over devices. None for the baseline, and before the correction.
        """
        if self.seeds is not None and (p := self.adjusted_p_seeds) is not None:
            return Estimate(self.seeds.mean, self.seeds.low, self.seeds.high, p, "runs")
        if (one := self.devices) is not None and (p := self.adjusted_p_devices) is not None:
            return Estimate(one.difference, one.low, one.high, p, "devices")
        return None


def compare_over_seeds(
    ours: Sample,
    baseline: Sample,
    *,
    level: float = 0.95,
    alternative: Alternative = "two-sided",
    test_share: float | None = None,
) -> SeedComparison:
    """Compare two methods by one number per seed.

    Where each seed has a split of its own of the same devices, there is also the corrected
    resampled t test of Nadeau and Bengio ("Inference for the Generalization Error", Machine
    Learning 52, 2003): train and test parts of different splits overlap, so differences are not
    independent, and the variance of their mean is taken to be (1 / n + test / train) times that of
    a difference. It speaks of new devices, and is cautious.

    Args:
        ours: one number per seed.
        baseline: the same seeds in the same order.
        level: coverage of the interval, which is two-sided, in (0, 1).
        alternative: of the p-values.
        test_share: of the devices, who tested, in (0, 1), if each seed has a split of its own.

    Raises:
        ValueError: fewer than two pairs, unequal lengths, a value that is not finite, or a level or
            a share outside (0, 1).

    >>> found = compare_over_seeds([0.28, 0.30, 0.27], [0.31, 0.31, 0.31])
    >>> round(found.mean, 4), found.p_sign == found.smallest_p == 1 / 4
    (-0.0267, True)
    """
    _check_in_range(level=level, test_share=0.5 if test_share is None else test_share)
    differences = _differences(ours, baseline)
    size = len(differences)
    if size < 2:
        raise ValueError("one pair of seeds shows no spread: pass at least two")
    mean, deviation = float(differences.mean()), _std(differences)
    error = deviation / math.sqrt(size)
    reach = error * float(stats.t.ppf((1 + level) / 2, size - 1))
    if deviation == 0 and _smallest_p(size) > 1 - level:
        reach = math.inf
    new_devices_p = None
    if test_share is not None:
        widened = deviation * math.sqrt(1 / size + test_share / (1 - test_share))
        new_devices_p = _p_of_mean(differences, widened, alternative)
    signs = differences[differences != 0]
    return SeedComparison(
        mean=mean,
        low=mean - reach,
        high=mean + reach,
        p=_p_of_mean(differences, error, alternative),
        p_signed_rank=_p_signed_rank(signs, alternative),
        p_sign=float(stats.binomtest(int((signs > 0).sum()), signs.size, 0.5, alternative).pvalue)
        if signs.size
        else 1.0,
        smallest_p=_smallest_p(size) if alternative == "two-sided" else 0.5**size,
        effect=_effect(mean, deviation),
        p_new_devices=new_devices_p,
    )


def compare_over_devices(
    ours: Numbers,
    baseline: Numbers,
    *,
    rng: np.random.Generator,
    percentile: float | None = 90,
    level: float = 0.95,
) -> DeviceComparison:
    """Compare a percentile over devices of two methods by the paired bootstrap.

    Devices are drawn with replacement, a drawn device with its values under both methods and all
    seeds. Pairs stay together because a device that is hard for one method is hard for the other:
    drawn apart, the difference would seem to vary far more than it does. A device is drawn once for
    all seeds because it is the same device in each: drawn for each seed anew, it would count as
    several. p is twice the share of resamples in which ours is not lower, or not higher if that is
    less; ties count as both. The ends of the interval are the resamples at which p is 1 − level. Of
    fewer than six devices, all of them lower would be chance too often: the interval is unbounded.

    Why not a permutation test that swaps the two values of a device: it is exact only for the
    hypothesis that the methods do not differ at all. Methods that trade the middle for the tail
    differ where the percentiles are equal, and then its p-values are not those of a test of
    percentiles (simulated with 60 devices and a true null: 12 % of them below 5 %). The bootstrap
    holds its level there too, and errs on the safe side: a resample repeats devices and so varies
    more than the data, which makes p-values of tightly paired percentiles larger than need be. For
    means it is exact up to terms that vanish with the number of devices. With 10 devices there is
    no 90th percentile to speak of.

    It speaks of the models that were trained and of new devices like these, not of new trainings.

    Args:
        ours: one value per seed and device, shape (seeds, devices).
        baseline: the same seeds and devices in the same order.
        rng: draws the resamples.
        percentile: in [0, 100]; None compares means.
        level: coverage of the interval, in (0, 1).

    Raises:
        ValueError: unequal or empty shapes, a value that is not finite, or a number out of range.
    """
    _check_in_range(level=level)
    _paired(ours, baseline, ndim=2)
    if percentile is not None and not 0 <= percentile <= 100:
        raise ValueError(f"percentile={percentile} is not in [0, 100]")
    size = ours.shape[1]
    chunk = max(1, _CHUNK // size)
    parts = []
    for start in range(0, RESAMPLES, chunk):
        drawn = rng.integers(size, size=(min(chunk, RESAMPLES - start), size))
        parts.append(
            np.mean(
                [
                    statistic_of(mine[drawn], percentile) - statistic_of(theirs[drawn], percentile)
                    for mine, theirs in zip(ours, baseline, strict=True)
                ],
                axis=0,
            )
        )
    found = np.concatenate(parts)
    found[abs(found) <= _rounding(ours, baseline)] = 0.0
    fewer = float(min((found >= 0).sum(), (found <= 0).sum()))
    beyond = math.floor((1 - level) / 2 * (1 + RESAMPLES))  # resamples on each side
    is_known = beyond > 0 and _smallest_p(size) <= 1 - level
    ends = np.sort(found)[[beyond - 1, -beyond]] if is_known else (-math.inf, math.inf)
    difference = statistic_of(ours, percentile) - statistic_of(baseline, percentile)
    return DeviceComparison(
        difference=float(difference.mean()),
        low=float(ends[0]),
        high=float(ends[1]),
        p=min(1.0, max(2 * (1 + fewer) / (1 + RESAMPLES), _smallest_p(size))),
    )


def also_over_seeds(devices: DeviceComparison, seeds: SeedComparison) -> DeviceComparison:
    """As sure over devices as over seeds at the most: for new devices and new trainings.

    The interval covers both, and p is the larger one (an intersection-union test), so that it is
    at most 1 − level where the interval leaves out zero, as before.
    """
    return DeviceComparison(
        devices.difference,
        min(devices.low, seeds.low),
        max(devices.high, seeds.high),
        max(devices.p, seeds.p),
    )


def by_rank_in_other_seeds(ours: Numbers, baseline: Numbers) -> tuple[Numbers, Numbers]:
    """Order the devices of each seed by how the baseline served them in the other seeds.

    Ranked by the same errors as are compared, whoever was only unlucky under the baseline would
    seem to gain from any method, and whoever was lucky to lose.

    Args:
        ours: errors, shape (seeds, devices), of two seeds or more.
        baseline: the same seeds and devices.

    Returns:
        Both, the best served of each seed first.
    """
    others = [np.delete(baseline, one, axis=0).sum(axis=0) for one in range(len(baseline))]
    order = np.argsort(others, axis=1, kind="stable")
    return np.take_along_axis(ours, order, axis=1), np.take_along_axis(baseline, order, axis=1)


def compare_worst_served(ours: Numbers, baseline: Numbers) -> SeedComparison | None:
    """Compare the mean errors of the tenth that the baseline serves worst in other seeds.

    Args:
        ours: errors, shape (seeds, devices).
        baseline: the same seeds and devices.

    Returns:
        None with one seed, which cannot tell who is served badly from who was unlucky, or with
        fewer than ten devices.
    """
    seeds, devices = ours.shape
    if seeds < 2 or devices < 10:
        return None
    mine, theirs = (
        one[:, -tenth_of(devices) :].mean(axis=1) for one in by_rank_in_other_seeds(ours, baseline)
    )
    return compare_over_seeds(mine, theirs)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjust p-values for being several, so that any below a level holds at that level jointly.

    Holm's step-down method: needs no independence, and rejects all that Bonferroni's does.

    Raises:
        ValueError: a p-value outside [0, 1].

    >>> holm([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)
    """
    if any(not 0 <= p <= 1 for p in p_values):
        raise ValueError(f"p_values={list(p_values)}: each must be in [0, 1]")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def error_matrix(evaluations: Sequence[Evaluation]) -> tuple[tuple[str, ...], Numbers]:
    """Line up the test errors of several seeds by device.

    Args:
        evaluations: one per seed, of the final model.

    Returns:
        The ids of the test devices, sorted, and the errors, shape (seeds, devices).

    Raises:
        ValueError: no evaluation, no device, or seeds that differ in their test devices.
    """
    if not evaluations:
        raise ValueError("no evaluations: a run was stopped before its first; train longer")
    rows = [{device.id: device.error for device in one.test} for one in evaluations]
    ids = tuple(sorted(rows[0]))
    if not ids:
        raise ValueError("no test devices in an evaluation: pass at least one")
    for row, evaluation in zip(rows, evaluations, strict=True):
        if len(row) != len(evaluation.test) or row.keys() != rows[0].keys():
            raise ValueError(
                f"evaluations of {len(evaluation.test)} and {len(ids)} test devices that are not "
                f"the same: use one data.split_seed for all seeds and methods"
            )
    return ids, np.array([[row[one] for one in ids] for row in rows], dtype=np.float64)


def statistic_of(values: Numbers, percentile: float | None) -> Numbers:
    """A percentile, interpolated as in `deltafl.fl.metrics`, or the mean over the last axis."""
    if percentile is None:
        return np.asarray(values.mean(axis=-1))
    return np.asarray(np.percentile(values, percentile, axis=-1))


def _effect(mean: float, deviation: float) -> float:
    if deviation == 0:
        return math.copysign(math.inf, mean) if mean else math.nan
    return mean / deviation


def _smallest_p(size: int) -> float:
    """Of a two-sided test by signs of so many differences."""
    return 2.0 ** (1 - size)


def _p_of_mean(differences: Numbers, error: float, alternative: Alternative) -> float:
    """Of Student's t; equal differences show no spread to measure their mean in."""
    if error == 0:
        return _p_signed_rank(differences[differences != 0], alternative)
    t, freedom = float(differences.mean()) / error, len(differences) - 1
    return float(
        stats.t.cdf(t, freedom) if alternative == "less" else 2 * stats.t.sf(abs(t), freedom)
    )


def _p_signed_rank(differences: Numbers, alternative: Alternative) -> float:
    """Of differences that are not zero; scipy's exact p knows no ties, and is slow by patterns."""
    size = len(differences)
    if size == 0:
        return 1.0
    if size > _EXACT_SEEDS:
        return float(stats.wilcoxon(differences, alternative=alternative).pvalue)
    ranks = stats.rankdata(abs(differences))
    patterns = (np.arange(2**size)[:, np.newaxis] >> np.arange(size)) & 1
    sums, observed = patterns @ ranks, ranks[differences > 0].sum()
    lower, higher = float((sums <= observed).mean()), float((sums >= observed).mean())
    return lower if alternative == "less" else min(1.0, 2 * min(lower, higher))


def _differences(ours: Sample, baseline: Sample) -> Numbers:
    """Of pairs; those that only rounding tells apart, or from zero, are made equal.

    0.3 - 0.2 and 0.2 - 0.1 are not the same in floating point, and a test by ranks would put one
    before the other.
    """
    found = _paired(ours, baseline, ndim=1)
    least = _rounding(ours, baseline)
    order = np.argsort(abs(found), kind="stable")
    sizes = np.concatenate(([0.0], abs(found)[order]))  # zero first, so that it draws to itself
    starts = np.concatenate(([True], np.diff(sizes) > least))
    equal = sizes[starts][np.cumsum(starts) - 1][1:]
    snapped = np.empty_like(found)
    snapped[order] = np.copysign(equal, found[order])
    return snapped


def _rounding(ours: Sample, baseline: Sample) -> float:
    """The largest difference that rounding may have made."""
    return _ROUNDING * float(max(np.abs(ours).max(), np.abs(baseline).max()))


def _std(differences: Numbers) -> float:
    """Divisor n - 1; exactly 0 if all are equal, which the mean of equal numbers need not be."""
    return float(differences.std(ddof=1)) if np.ptp(differences) else 0.0


def _paired(ours: Sample, baseline: Sample, *, ndim: int) -> Numbers:
    mine = np.asarray(ours, dtype=np.float64)
    theirs = np.asarray(baseline, dtype=np.float64)
    if mine.shape != theirs.shape or mine.ndim != ndim or mine.size == 0:
        raise ValueError(
            f"shapes {mine.shape} and {theirs.shape}: pass as many numbers for both, paired, in "
            f"{ndim} dimension{'s' if ndim > 1 else ''}"
        )
    if not (np.isfinite(mine).all() and np.isfinite(theirs).all()):
        raise ValueError("a value is not finite: a run that diverged can not be compared")
    return mine - theirs


def _check_in_range(**given: float) -> None:
    for name, value in given.items():
        if not 0 < value < 1:
            raise ValueError(f"{name}={value} is not in (0, 1)")
