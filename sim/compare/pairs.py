"""Every method beside the baseline, by the pairs of runs that both have."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from deltafl.sim.compare.runs import Method, Pair
from deltafl.sim.errors import UserError
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.statistics import (
    DeviceComparison,
    Numbers,
    SeedComparison,
    compare_over_devices,
    compare_over_seeds,
    error_matrix,
    holm,
    resampled_p,
    statistic_of,
)
from deltafl.sim.settings.config_io import show

_RESAMPLING_SEED: Final = 0
_OF_ALGORITHMS: Final = (
    "federation.algorithm",
    "federation.theta",
    "federation.levels",
    "strategy.",
    "privacy.",
    "quantile.",
    "policy.",
    "dp.",
)


@dataclass(frozen=True, slots=True)
class Compared:
    """A method, and how it differs from the baseline.

    Attributes:
        method: its label.
        pairs: how many runs were paired; of the baseline itself, those that are in any pair.
        mean: of the statistic over these runs.
        std: its standard deviation, divisor n − 1; None with one run.
        baseline_mean: of the baseline over the same pairs; None for the baseline itself.
        seeds: over runs; None for the baseline itself, and with one pair.
        devices: over test devices, if all pairs have one split; None otherwise.
        new_devices_p: if every pair has a split of its own, the p-value for new devices.
        adjusted_p_seeds: `seeds.p_t` after Holm's correction for all methods.
        adjusted_p_devices: `devices.p` likewise.
    """

    method: str
    pairs: int
    mean: float
    std: float | None
    baseline_mean: float | None = None
    seeds: SeedComparison | None = None
    devices: DeviceComparison | None = None
    new_devices_p: float | None = None
    adjusted_p_seeds: float | None = None
    adjusted_p_devices: float | None = None


def compare_in_pairs(
    methods: Sequence[Method],
    baseline: Method,
    *,
    percentile: float | None = 90,
    level: float = 0.95,
) -> tuple[Compared, ...]:
    """Compare every method with the baseline, which comes first.

    Args:
        methods: all methods, the baseline among them or not.
        baseline: what they are compared with.
        percentile: of the test error over devices, in [0, 100]; None compares means.
        level: coverage of the intervals, in (0, 1).

    Raises:
        UserError: a method has no seed in common with the baseline, or other data or test devices.
        ValueError: a number is out of range, or a result is not finite.
    """
    others = [method for method in methods if method is not baseline]
    found = [_compared(method, baseline, percentile, level) for method in others]
    of_seeds = _adjusted([one.seeds.p_t if one.seeds else None for one in found])
    of_devices = _adjusted([one.devices.p if one.devices else None for one in found])
    paired = {pair for method in others for pair in _pairs(method, baseline)}
    values = _values(
        [run for pair, run in baseline.runs.items() if pair in paired or not others], percentile
    )
    first = Compared(baseline.label, len(values), float(values.mean()), _std(values))
    return (
        first,
        *(
            replace(one, adjusted_p_seeds=p_seeds, adjusted_p_devices=p_devices)
            for one, p_seeds, p_devices in zip(found, of_seeds, of_devices, strict=True)
        ),
    )


def _compared(method: Method, baseline: Method, percentile: float | None, level: float) -> Compared:
    pairs = sorted(_pairs(method, baseline))
    if not pairs:
        raise UserError(
            f"{method.label} and {baseline.label} have no seed in common: run both with the same "
            "experiment.seed and data.split_seed"
        )
    ours, theirs = ([one.runs[pair] for pair in pairs] for one in (method, baseline))
    for pair, mine, other in zip(pairs, ours, theirs, strict=True):
        if {device.id for device in mine.test} != {device.id for device in other.test}:
            raise UserError(
                f"{method.label} and {baseline.label}, seed {pair[1]}: their test devices are not "
                "the same, so they are no pair"
            )
        if method.data[pair] != baseline.data[pair]:
            raise UserError(
                f"{method.label} and {baseline.label}, seed {pair[1]}: their data are not the same "
                "(data_sha256 in versions.json), so they are no pair"
            )
    values, others = _values(ours, percentile), _values(theirs, percentile)
    splits = {split for split, _ in pairs}
    devices = None
    if len(splits) == 1:
        rng = np.random.default_rng(_RESAMPLING_SEED)
        matrices = error_matrix(ours)[1], error_matrix(theirs)[1]
        devices = compare_over_devices(*matrices, rng=rng, percentile=percentile, level=level)
    several = len(pairs) > 1
    return Compared(
        method.label,
        len(pairs),
        float(values.mean()),
        _std(values),
        float(others.mean()),
        compare_over_seeds(values, others, level=level) if several else None,
        devices,
        resampled_p(values, others, test_share=method.test_share)
        if several and len(splits) == len(pairs)
        else None,
    )


def left_out(method: Method, baseline: Method) -> str:
    """Which runs are in no pair of the two, in words; empty if all are in one."""
    pairs = _pairs(method, baseline)
    parts = [
        f"{len(one.runs) - len(pairs)} of the {len(one.runs)} runs of {one.label}"
        for one in (method, baseline)
        if len(one.runs) > len(pairs)
    ]
    return " and ".join(parts)


def _pairs(method: Method, baseline: Method) -> set[Pair]:
    return set(method.runs.keys() & baseline.runs.keys())


def differing(method: Method, baseline: Method) -> tuple[str, ...]:
    """Settings in which a method differs from the baseline, beside those of the algorithm itself.

    Each as "key = ours, not theirs".
    """
    return tuple(
        f"{key} = {show(value)}, not {show(baseline.settings[key])}"
        for key, value in method.settings.items()
        if value != baseline.settings[key] and not key.startswith(_OF_ALGORITHMS)
    )


def _values(evaluations: Sequence[Evaluation], percentile: float | None) -> Numbers:
    """The statistic of each run, whose devices may be others."""
    return np.array([statistic_of(error_matrix([one])[1], percentile)[0] for one in evaluations])


def _adjusted(values: Sequence[float | None]) -> list[float | None]:
    known = [value for value in values if value is not None]
    corrected = iter(holm(known))
    return [None if value is None else next(corrected) for value in values]


def _std(values: Numbers) -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None
