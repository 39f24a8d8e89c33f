"""Methods beside a baseline: paired, corrected for their number, and laid out as a table.

`deltafl compare`, the tables of `deltafl reproduce`, the pages and `deltafl.compare` all take their
numbers from here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import numpy as np

from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.experiment import NONE, Columns, Record, Table
from deltafl.sim.reproduce.statistics import (
    Alternative,
    Comparison,
    Numbers,
    also_over_seeds,
    compare_over_devices,
    compare_over_seeds,
    error_matrix,
    holm,
    statistic_of,
)

_RESAMPLING_SEED: Final = 0


class Met(NamedTuple):
    """What a run met, by which pages and tables know the other run of a pair.

    Attributes:
        seeds: that of the split of the data, and that of the cohorts and the initial model.
        data: digest of the data; None where it is not recorded.
        devices: the ids of the test devices.
    """

    seeds: tuple[int, int]
    data: object
    devices: Sequence[str]

    def unlike(self, other: "Met") -> str:
        """Why two runs are no pair, in words; empty if they are one."""
        if self.seeds != other.seeds:
            return "their experiment.seed or data.split_seed are not the same, so they are no pair"
        ids = set(self.devices)
        if ids != set(other.devices) or {len(self.devices), len(other.devices)} != {len(ids)}:
            return "their test devices are not the same, or share a name, so they are no pair"
        if self.data != other.data:
            return "their data are not the same (data_sha256 of the versions), so they are no pair"
        return ""


def summarise(method: str, runs: Sequence[Evaluation], percentile: float | None = 90) -> Comparison:
    """What some runs came to, beside no other; their test devices may differ."""
    values = _values(runs, percentile)
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return Comparison(method, len(values), float(values.mean()), std)


def compare_runs(
    method: str,
    ours: Sequence[Evaluation],
    baseline: Sequence[Evaluation],
    *,
    same_devices: bool = True,
    test_share: float | None = None,
    percentile: float | None = 90,
    level: float = 0.95,
    alternative: Alternative = "two-sided",
) -> Comparison:
    """Compare one method with the baseline, run by run.

    Args:
        method: its label.
        ours: one final evaluation per seed.
        baseline: the same seeds in the same order.
        same_devices: whether all runs have the same test devices, which are then compared as well.
        test_share: of the devices, who tested, if every run has a split of its own.
        percentile: of the test errors over devices, in [0, 100]; None compares means.
        level: coverage of the intervals, in (0, 1).
        alternative: of the p-values over runs; must be two-sided where devices are compared.

    Raises:
        ValueError: devices are to be compared, and the two do not have the same.
    """
    values, others = _values(ours, percentile), _values(baseline, percentile)
    devices = None
    if same_devices:
        both = _paired_devices(ours, baseline)
        rng = np.random.default_rng(_RESAMPLING_SEED)  # the same, whoever else is compared
        devices = compare_over_devices(*both, rng=rng, percentile=percentile, level=level)
    seeds = None
    if len(values) > 1:
        how: Any = {"level": level, "alternative": alternative, "test_share": test_share}
        seeds = compare_over_seeds(values, others, **how)
    if seeds is not None and devices is not None:
        devices = also_over_seeds(devices, seeds)
    return replace(
        summarise(method, ours, percentile),
        baseline_mean=float(others.mean()),
        seeds=seeds,
        devices=devices,
    )


def corrected(found: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The same with p-values after Holm's correction for all of them."""
    of_seeds = _adjusted([one.seeds.p if one.seeds else None for one in found])
    of_devices = _adjusted([one.devices.p if one.devices else None for one in found])
    return tuple(
        replace(one, adjusted_p_seeds=p_seeds, adjusted_p_devices=p_devices)
        for one, p_seeds, p_devices in zip(found, of_seeds, of_devices, strict=True)
    )


def compare_methods(
    evaluations: Mapping[str, Sequence[Evaluation]],
    *,
    baseline: str,
    percentile: float | None = 90,
    level: float = 0.95,
) -> tuple[Comparison, ...]:
    """Compare every method with the baseline, p-values corrected for their number by Holm.

    Args:
        evaluations: from the label of a method to its final evaluations, one per seed, the same
            seeds in the same order for all.
        baseline: the label of the method to compare with.
        percentile: of the test errors over devices, in [0, 100]; None compares means.
        level: coverage of the intervals, in (0, 1).

    Raises:
        ValueError: the baseline is not among the methods, or two methods do not have the same
            seeds or test devices.
    """
    if baseline not in evaluations:
        raise ValueError(f"baseline {baseline!r} is not among {list(evaluations)}")
    found = [
        compare_runs(method, runs, evaluations[baseline], percentile=percentile, level=level)
        for method, runs in evaluations.items()
        if method != baseline
    ]
    compared = {one.method: one for one in corrected(found)}
    return tuple(
        compared.get(method) or summarise(method, runs, percentile)
        for method, runs in evaluations.items()
    )


def comparison_table(
    name: str,
    title: str,
    compared: Sequence[Comparison],
    *,
    statistic: str = "error",
    level: float = 0.95,
    is_share: bool = True,
) -> Table:
    """Shares in percent with differences in percentage points; other numbers as they are.

    Columns that would be empty for every method are left out.

    Args:
        name: of its files.
        title: in words.
        compared: the baseline first.
        statistic: what was compared, in words.
        level: the coverage of the intervals.
        is_share: whether it is a share, such as an error rate.
    """
    unit, width = _units(level, is_share=is_share)
    base = compared[0]
    written = partial(_written, is_share=is_share)

    def of_the_same(one: Record) -> str:
        # where it is that of the first row, the column says nothing
        return NONE if one["pairs"] == base.pairs else written(one["baseline_mean"])

    columns: Columns = {
        "method": "method",
        "pairs": "pairs",
        f"{statistic}{unit}, mean ± std": lambda one: _spread(
            one["mean"], one["std"], is_share=is_share
        ),
        f"{base.method}, same pairs{unit}": of_the_same,
        f"difference over runs {width}": partial(
            interval, keys=("difference", "low", "high"), is_share=is_share
        ),
        "effect (d)": lambda one: effect_size(one["effect"]),
        "p over runs (two-sided t)": p_of("p_runs"),
        "p over runs, Holm": p_of("adjusted_p_runs"),
        "p (two-sided signed rank)": p_of("p_signed_rank"),
        "p (two-sided sign)": p_of("p_sign"),
        "smallest p (sign)": p_of("smallest_p"),
        "p for new devices (two-sided)": p_of("p_new_devices"),
        f"difference over devices {width}": partial(
            interval, keys=("device_difference", "device_low", "device_high"), is_share=is_share
        ),
        "p over devices (two-sided)": p_of("p_devices"),
        "p over devices, Holm": p_of("adjusted_p_devices"),
    }
    return Table.of(name, title, [one.record for one in compared], columns).filled


def paper_table(
    title: str,
    compared: Sequence[Comparison],
    means: Sequence[Comparison] = (),
    *,
    statistic: str = "error",
    level: float = 0.95,
    is_share: bool = True,
) -> Table:
    """The same for a paper: what fits into a column of text.

    Args:
        title: in words.
        compared: the baseline first.
        means: of the mean error, of the same methods; nothing if that is what was compared.
        statistic: what was compared, in words.
        level: the coverage of the intervals.
        is_share: whether it is a share, such as an error rate.
    """
    unit, width = _units(level, is_share=is_share)
    rows = []
    for one, also in zip_longest(compared, means):
        row = [one.method, _spread(one.mean, one.std, is_share=is_share)]
        row += [_written(also.mean, is_share=is_share)] if also else []
        of = one.estimate
        told = interval(of._asdict(), of._fields[:3], is_share=is_share) if of else NONE
        row += [told, p_value(of.p) if of else NONE]
        rows.append(tuple(row))
    over = " or ".join(dict.fromkeys(one.estimate.over for one in compared if one.estimate))
    several = ", Holm" if len(compared) > 2 else ""
    columns = [f"{statistic}{unit}", *([f"mean{unit}"] if means else []), f"difference {width}"]
    columns = ["method", *columns, f"p over {over} (two-sided{several})"]
    return Table("paper", title, tuple(columns), tuple(rows))


def _units(level: float, *, is_share: bool) -> tuple[str, str]:
    """What stands behind headings of numbers, and of differences with intervals."""
    width = f"[{100 * level:g}%]"
    return (" (%)", f"(points) {width}") if is_share else ("", width)


def _written(value: object, sign: str = "", *, is_share: bool) -> str:
    if not isinstance(value, float):
        return NONE
    text = format(100 * value, f"{sign}.2f") if is_share else format(value, f"{sign}.4g")
    return text.replace("inf", "∞")


def _spread(mean: float, std: float | None, *, is_share: bool) -> str:
    several = "" if std is None else f" ± {_written(std, is_share=is_share)}"
    return _written(mean, is_share=is_share) + several


def interval(one: Record, keys: Sequence[str], *, is_share: bool = True) -> str:
    """A record's difference with its interval, by three keys, as in tables; in points of shares."""
    if one[keys[0]] is None:
        return NONE
    middle, low, high = (_written(one[key], "+", is_share=is_share) for key in keys)
    return f"{middle} [{low}, {high}]"


def p_value(value: object) -> str:
    """As in tables."""
    if not isinstance(value, float):
        return NONE
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def p_of(key: str) -> Callable[[Record], str]:
    """How a record's p-value of this name is written."""
    return lambda one: p_value(one[key])


def effect_size(value: object) -> str:
    """As in tables; there is none where all differences are equal."""
    known = isinstance(value, float) and math.isfinite(value)
    return f"{value:+.2f}" if known else NONE


def _values(runs: Sequence[Evaluation], percentile: float | None) -> Numbers:
    """The statistic of each run, whose devices may be others."""
    return np.array([statistic_of(error_matrix([one])[1], percentile)[0] for one in runs])


def _paired_devices(
    ours: Sequence[Evaluation], baseline: Sequence[Evaluation]
) -> tuple[Numbers, Numbers]:
    (our_ids, mine), (their_ids, theirs) = error_matrix(ours), error_matrix(baseline)
    if our_ids != their_ids:
        raise ValueError(
            f"{len(our_ids)} and {len(their_ids)} test devices that are not the same: pairs need "
            f"one data.split_seed for all methods"
        )
    return mine, theirs


def _adjusted(values: Sequence[float | None]) -> list[float | None]:
    corrected = iter(holm([value for value in values if value is not None]))
    return [None if value is None else next(corrected) for value in values]
