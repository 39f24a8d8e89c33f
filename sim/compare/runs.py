"""Finished runs, sorted by method, and every method beside the baseline in pairs of runs.

Runs that differ in their seeds alone are one method.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from deltafl.sim.errors import UserError
from deltafl.sim.record.evaluations import Evaluation, read_last_evaluation
from deltafl.sim.record.rundir import RunDirectory, read_json
from deltafl.sim.reproduce.comparison import compare_runs, corrected, summarise
from deltafl.sim.reproduce.statistics import Comparison
from deltafl.sim.settings.config import WITH_LEVELS, RunConfig
from deltafl.sim.settings.config_io import build_config, flatten, read_config_file, show

Pair: TypeAlias = tuple[int, int]
"""What two runs of a pair have in common: the seed of the split, and the seed of the run."""

Settings: TypeAlias = tuple[tuple[str, object], ...]

_IGNORED: Final = frozenset(
    {
        "data.split_seed",  # of the pair
        "data.cache",
        "training.device",
        "training.backend",
        "training.workers",
        "privacy.transcript",
        "privacy.truth",
    }
)
"""Settings in which runs of one method may differ, beside those of the section experiment."""

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
        folder: of its evaluations; each level of a run has one of its own.
        evaluation: its last.
        data: digest of its data, hex; None where it is not recorded.
    """

    given: str
    config: RunConfig
    path: Path
    folder: Path
    evaluation: Evaluation
    data: str | None

    @property
    def pair(self) -> Pair:
        """What it has in common with the other run of a pair."""
        return self.config.data.split_seed, self.config.experiment.seed

    @property
    def name(self) -> str:
        """Its given name, its algorithm, and its level, as far as it has them."""
        federation = self.config.federation
        given = f"{self.given}: " if self.given else ""
        level = f" θ={show(federation.theta)}" if federation.algorithm in WITH_LEVELS else ""
        return f"{given}{federation.algorithm}{level}"

    @property
    def settings(self) -> Settings:
        """Those that all runs of a method have in common."""
        return tuple(
            (key, value)
            for key, value in flatten(self.config).items()
            if key not in _IGNORED and not key.startswith("experiment.")
        )


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
        return dict(next(iter(self.runs.values())).settings)


def read_methods(words: Sequence[str]) -> tuple[Method, ...]:
    """Read run directories, with all runs of each experiment, in the order in which they are named.

    Args:
        words: run directories, or NAME=DIRECTORY.

    Raises:
        UserError: one is no run directory, is not finished or has no evaluation of devices, two
            runs of a method have one seed and different results, two methods have one name, or one
            run has two names.
    """
    groups: dict[tuple[str, Settings], dict[Pair, Run]] = {}
    names: dict[Path, str] = {}
    for word in words:
        for run in _read(word):
            first = names.setdefault(run.folder.resolve(), run.given)
            if first != run.given:
                raise UserError(
                    f"{run.path} is named twice, {_as(first)} and {_as(run.given)}: it would be "
                    "compared with itself; name each run once"
                )
            known = groups.setdefault((run.given, run.settings), {})
            other = known.setdefault(run.pair, run)
            if other.evaluation != run.evaluation:
                raise UserError(
                    f"{other.path} and {run.path} have the same settings and seed and different "
                    "results: leave one out, or name them apart (NAME=RUN)"
                )
    firsts = [next(iter(runs.values())) for runs in groups.values()]
    labels = _labels(firsts)
    return tuple(
        Method(label, dict(sorted(runs.items())))
        for label, runs in zip(labels, groups.values(), strict=True)
    )


def _read(word: str) -> Iterator[Run]:
    name, equals, path = word.partition("=")
    given, place = (name, Path(path)) if equals and not Path(word).exists() else ("", Path(word))
    top = RunDirectory(place)
    if not top.config.exists():
        raise UserError(f"{place} is not a run directory (it has no config.toml)")
    arms = sorted(top.arms.iterdir()) if top.arms.is_dir() else []
    found = [top, *(one for one in map(RunDirectory, arms) if one.config.exists())]
    whole = len(build_config([read_config_file(top.config)]).arms())
    if len(found) < whole:
        raise UserError(
            f"{place} has {len(found)} of the {whole} runs of its experiment: finish it with "
            "`deltafl run --resume`, or name its single runs"
        )
    for directory in found:
        config = build_config([read_config_file(directory.config)])
        data = (read_json(directory.versions) or {}).get("data_sha256")
        for theta, folder in directory.metrics_of(config.federation).items():
            evaluation = read_last_evaluation(folder)
            if evaluation is None or not evaluation.test:
                raise UserError(
                    f"{directory.path} has no evaluation of single devices, so it cannot be "
                    "compared in pairs"
                )
            if evaluation.round != config.federation.rounds:
                raise UserError(
                    f"{directory.path} was evaluated last after round {evaluation.round} of "
                    f"{config.federation.rounds}: finish it with `deltafl run --resume`, or leave "
                    "it out"
                )
            level = _of_level(config, theta)
            digest = data if isinstance(data, str) else None
            yield Run(given, level, directory.path, folder, evaluation, digest)


def _as(given: str) -> str:
    return f"as {given!r}" if given else "without a name"


def _of_level(config: RunConfig, theta: Fraction) -> RunConfig:
    """The settings of one level, in one form: θ is 1 for algorithms without levels."""
    federation = config.federation
    theta = theta if federation.algorithm in WITH_LEVELS else Fraction(1)
    return replace(config, federation=replace(federation, theta=theta, levels=()))


def _labels(firsts: Sequence[Run]) -> list[str]:
    """Short names; the settings that tell them apart are added where two would be the same."""
    names = [run.given for run in firsts]
    short = [run.given if run.given and names.count(run.given) == 1 else run.name for run in firsts]
    labels = []
    for label, run in zip(short, firsts, strict=True):
        alike = [
            dict(one.settings) for other, one in zip(short, firsts, strict=True) if other == label
        ]
        differing = [
            f"{key}={show(value)}"
            for key, value in run.settings
            if any(settings[key] != value for settings in alike)
        ]
        labels.append(", ".join((label, *differing)))
    if len(set(labels)) < len(labels):
        raise UserError("two methods have one name: name each differently (NAME=RUN)")
    return labels


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
        devices, others = ({one.id for one in run.evaluation.test} for run in (mine, other))
        if devices != others:
            raise UserError(
                f"{method.label} and {baseline.label}, seed {pair[1]}: their test devices are not "
                "the same, so they are no pair"
            )
        if mine.data != other.data:
            raise UserError(
                f"{method.label} and {baseline.label}, seed {pair[1]}: their data are not the same "
                "(data_sha256 in versions.json), so they are no pair"
            )
    splits = {split for split, _ in pairs}
    return compare_runs(
        method.label,
        [run.evaluation for run in ours],
        [run.evaluation for run in theirs],
        same_devices=len(splits) == 1,
        test_share=float(method.config.data.test_fraction) if len(splits) == len(pairs) else None,
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
