"""Which runs somebody names, and what their methods are called: the same in all tables and pages.

`deltafl.compare` leaves a folder of run directories and, in `comparison.json`, what its user called
them: from the name of each directory to its label, the baseline last. Whoever names the folder
names all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, cast

from deltafl.fl.read.regular import read_regular
from deltafl.sim.errors import RunDirectoryError, damaged
from deltafl.sim.record.own_files import write_file
from deltafl.sim.record.record import as_json, json_object
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.settings.config import WITH_LEVELS, RunConfig
from deltafl.sim.settings.config_io import flatten, show

Settings: TypeAlias = tuple[tuple[str, object], ...]

FEDAVG: Final = "fedavg"
_COMPARISON: Final = "comparison.json"
_MAX_BYTES: Final = 1 << 26
_AS_IT_TRAINS: Final = "training.device", "training.backend", "training.workers"
_IGNORED: Final = frozenset(  # the seed of the split is of the pair
    {"data.split_seed", "privacy.transcript", "privacy.truth", *_AS_IT_TRAINS}
)
"""Settings in which runs of one method may differ, beside those of the section experiment."""


class Named(NamedTuple):
    """A run directory that somebody named, and what it is to be called; "" for nothing."""

    given: str
    path: Path


def named_runs(words: Sequence[str]) -> list[Named]:
    """The run directories that are meant, each once.

    Args:
        words: run directories, folders that `deltafl.compare` has made, or NAME=DIRECTORY.

    Raises:
        UserError: one is neither, or the file of labels is damaged, or one directory is named in
            two ways, which would count its runs twice.
    """
    found: dict[Path, Named] = {}
    for one in (named for word in words for named in _named(word)):
        if found.setdefault(one.path.resolve(), one) != one:
            raise RunDirectoryError(f"{one.path} is named twice: name each run once")
    return list(found.values())


def _named(word: str) -> Iterator[Named]:
    name, equals, path = word.partition("=")
    given, place = (name, Path(path)) if equals and not Path(word).exists() else ("", Path(word))
    if RunDirectory(place).is_run:
        yield Named(given or read_comparison(place.absolute().parent).get(place.name, ""), place)
        return
    compared = read_comparison(place)
    if not compared:
        raise RunDirectoryError(f"{place} is not a run directory (it has no record.sqlite)")
    for run, label in compared.items():
        yield Named(f"{given}: {label}" if given else label, place / run)


def write_comparison(folder: Path, labels: Mapping[str, str]) -> None:
    """Note the labels of the runs in a folder, which is made, by the names of their directories.

    Raises:
        RunDirectoryError: it is a file, or has a run that was given another label.
    """
    for run, label in read_comparison(folder).items():
        if labels.get(run) != label and (folder / run).exists():
            raise RunDirectoryError(
                f"{folder} has another comparison, in which {run} is {label!r}: give another folder"
            )
    if folder.is_file():
        raise RunDirectoryError(f"{folder} is a file: give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / _COMPARISON, as_json(labels).encode() + b"\n")


def read_comparison(folder: Path) -> dict[str, str]:
    """What `write_comparison` has noted; empty where it has noted nothing.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    path = folder / _COMPARISON
    if not path.exists():
        return {}
    try:
        found = json_object(path, read_regular(path, _MAX_BYTES).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, error) from error
    for run, label in found.items():
        if not isinstance(label, str) or Path(run).name != run or run in ("", ".."):
            raise damaged(path, "it is not a table of directories and labels")
    return cast("dict[str, str]", found)


def of_level(config: RunConfig, theta: Fraction) -> RunConfig:
    """The settings of one level, in one form: θ is 1 for algorithms without levels."""
    federation = config.federation
    theta = theta if federation.algorithm in WITH_LEVELS else Fraction(1)
    return replace(config, federation=replace(federation, theta=theta, levels=()))


def name_of(config: RunConfig) -> str:
    """What a method is called by itself: its algorithm, and its θ if it has one."""
    federation = config.federation
    level = f", θ = {show(federation.theta)}" if federation.algorithm in WITH_LEVELS else ""
    return f"{federation.algorithm}{level}"


def common_settings(config: RunConfig) -> Settings:
    """Those that all runs of a method have in common."""
    return tuple(
        (key, value)
        for key, value in flatten(config).items()
        if key not in _IGNORED and not key.startswith("experiment.")
    )


def labels_of(methods: Sequence[tuple[str, RunConfig]]) -> list[str]:
    """Short names; the settings that tell them apart are added where two would be the same.

    Args:
        methods: of each, the name that somebody gave it, or "", and its settings, of one level.

    Returns:
        As many; two are alike only if their settings are.
    """
    names = [given for given, _ in methods]
    short = [
        given if names.count(given) == 1 and given else f"{given}: {name_of(config)}".lstrip(": ")
        for given, config in methods
    ]
    both = [(label, dict(common_settings(m[1]))) for label, m in zip(short, methods, strict=True)]
    labels = []
    for label, own in both:
        alike = [one for other, one in both if other == label]
        differing = [key for key in own if any(one[key] != own[key] for one in alike)]
        labels.append(", ".join((label, *(f"{key}={show(own[key])}" for key in differing))))
    return labels


def usual_baseline(algorithms: Sequence[str]) -> int:
    """Which of some methods the others are compared with: the only FedAvg, else the last."""
    averaging = [at for at, algorithm in enumerate(algorithms) if algorithm == FEDAVG]
    return averaging[0] if len(averaging) == 1 else len(algorithms) - 1
