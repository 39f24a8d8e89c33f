"""Finished runs, sorted by method, and every method beside the baseline in pairs of runs.

Runs that differ in their seeds alone are one method.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from deltafl.sim.errors import UserError
from deltafl.sim.record.evaluations import Evaluation, read_last_evaluation
from deltafl.sim.record.labels import (
    Named,
    Settings,
    common_settings,
    labels_of,
    named_runs,
    of_level,
    read_comparison,
)
from deltafl.sim.record.record import VERSIONS
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.comparison import Met, compare_runs, corrected, summarise
from deltafl.sim.reproduce.statistics import Comparison
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import show

Pair: TypeAlias = tuple[int, int]
"""What two runs of a pair have in common: the seed of the split, and the seed of the run."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A finished run, or one of its conformity levels.

    Attributes:
        given: the name that a person gave it; empty for none.
        config: its settings, of the one level.
        path: its directory.
        evaluation: its last.
        data: digest of its data, as the run noted it; None where it is not there.
    """

    given: str
    config: RunConfig
    path: Path
    evaluation: Evaluation
    data: object

    @property
    def pair(self) -> Pair:
        """What it has in common with the other run of a pair."""
        return self.config.data.split_seed, self.config.experiment.seed

    @property
    def met(self) -> Met:
        """What the other run of a pair has to have met, too."""
        return Met(self.pair, self.data, [one.id for one in self.evaluation.test])


class Method(NamedTuple):
    """Runs of one method, which has a label, by pair; there is one at least."""

    label: str
    runs: Mapping[Pair, Run]

    @property
    def config(self) -> RunConfig:
        """Settings of the first run; those of the others are the same, but for what is ignored."""
        return next(iter(self.runs.values())).config

    @property
    def settings(self) -> Mapping[str, object]:
        """Those that its runs have in common."""
        return dict(common_settings(self.config))


def read_methods(words: Sequence[str]) -> tuple[Method, ...]:
    """Read run directories, with all runs of each experiment, in the order in which they are named.

    Args:
        words: as of `named_runs`.

    Raises:
        UserError: one is no run directory, is not finished (unless it is of `deltafl.compare`,
            where a callback may end it) or has no evaluation of devices, two runs of a method have
            one seed and different results, two methods have one name, or one run has two names.
    """
    groups: dict[tuple[str, Settings], dict[Pair, Run]] = {}
    named_as: dict[Path, str] = {}
    for named in named_runs(words):
        for run in _read(named):
            if named_as.setdefault(run.path.resolve(), run.given) != run.given:
                raise UserError(f"{run.path} is named twice: name each run once")
            known = groups.setdefault((run.given, common_settings(run.config)), {})
            other = known.setdefault(run.pair, run)
            if other.evaluation != run.evaluation:
                raise UserError(
                    f"{other.path} and {run.path} have the same settings and seed and different "
                    "results: leave one out, or name them apart (NAME=RUN)"
                )
    firsts = [next(iter(runs.values())) for runs in groups.values()]
    labels = labels_of([(run.given, run.config) for run in firsts])
    if len(set(labels)) < len(labels):
        raise UserError("two methods have one name: name each differently (NAME=RUN)")
    return tuple(
        Method(label, dict(sorted(runs.items())))
        for label, runs in zip(labels, groups.values(), strict=True)
    )


def _read(named: Named) -> Iterator[Run]:
    given, place = named
    top = RunDirectory(place)
    arms = sorted(top.arms.iterdir()) if top.arms.is_dir() else []
    found = [top, *(one for one in map(RunDirectory, arms) if one.is_run)]
    whole = len(top.config().arms())
    if len(found) < whole:
        raise UserError(
            f"{place} has {len(found)} of the {whole} runs of its experiment: finish it with "
            "`deltafl run --resume` (resume=True in Python), or name its single runs"
        )
    may_stop = place.name in read_comparison(place.absolute().parent)
    for directory in found:
        with directory.read() as record:
            config = record.config()
            data = (record.json(VERSIONS) or {}).get("data_sha256")
            last = {t: read_last_evaluation(record, t) for t in config.federation.thetas}
        for theta, evaluation in last.items():
            if evaluation is None or not evaluation.test:
                raise UserError(
                    f"{directory.path} has no evaluation of single devices, so it cannot be "
                    "compared in pairs"
                )
            if evaluation.round != config.federation.rounds and not may_stop:
                raise UserError(
                    f"{directory.path} was evaluated last after round {evaluation.round} of "
                    f"{config.federation.rounds}: finish it with `deltafl run --resume` "
                    "(resume=True in Python), or leave it out"
                )
            level = of_level(config, theta)
            yield Run(given, level, directory.path, evaluation, data)


def compare_in_pairs(
    methods: Sequence[Method],
    baseline: Method,
    *,
    percentile: float | None = 90,
    level: float = 0.95,
) -> tuple[Comparison, ...]:
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
    paired = {pair for method in others for pair in _pairs(method, baseline)}
    counted = [
        run.evaluation for pair, run in baseline.runs.items() if pair in paired or not others
    ]
    return summarise(baseline.label, counted, percentile), *corrected(found)


def _compared(
    method: Method, baseline: Method, percentile: float | None, level: float
) -> Comparison:
    pairs = sorted(_pairs(method, baseline))
    if not pairs:
        raise UserError(
            f"{method.label} and {baseline.label} have no seed in common: run both with the same "
            "experiment.seed and data.split_seed"
        )
    ours, theirs = ([one.runs[pair] for pair in pairs] for one in (method, baseline))
    for pair, mine, other in zip(pairs, ours, theirs, strict=True):
        if why := mine.met.unlike(other.met):
            raise UserError(f"{method.label} and {baseline.label}, seed {pair[1]}: {why}")
    splits = {split for split, _ in pairs}
    data = method.config.data
    has_new_devices = data.split == "devices" and len(splits) == len(pairs)
    return compare_runs(
        method.label,
        [run.evaluation for run in ours],
        [run.evaluation for run in theirs],
        same_devices=len(splits) == 1,
        test_share=float(data.test_fraction) if has_new_devices else None,
        percentile=percentile,
        level=level,
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
    theirs = baseline.settings
    return tuple(
        f"{key} = {show(value)}, not {show(theirs[key])}"
        for key, value in method.settings.items()
        if value != theirs[key] and not key.startswith(_OF_ALGORITHMS)
    )
