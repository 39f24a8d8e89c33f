"""What a run directory holds at a moment, whether its run is in progress or over.

The run may be writing meanwhile: one state of its record is read, as the last transaction left it.
What is damaged costs what it holds, and becomes a sentence: the rest is shown all the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from deltafl.sim.errors import UserError, damaged
from deltafl.sim.record.attacked import Attacked, read_attacked
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.database import with_journals
from deltafl.sim.record.evaluations import Evaluation, read_evaluations
from deltafl.sim.record.events import NUMBERS, Event, follow_events
from deltafl.sim.record.labels import name_of, of_level
from deltafl.sim.record.record import SUMMARY, VERSIONS, Record, read_measured
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.settings.config import REMOTE, RunConfig
from deltafl.sim.settings.config_io import show

Errors = npt.NDArray[np.float64]
T = TypeVar("T")

MAX_PROBLEMS: Final = 20
"""The most sentences on damaged files that are given at a time."""

_KEPT: Final = (*NUMBERS, "aborted", "stage_s", "dropped_by_stage")
_MOST_ROUNDS: Final = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class Tested:
    """A model on the test devices.

    Attributes:
        round: how many rounds it has been trained for.
        devices: their ids.
        errors: the share of its samples that each gets wrong, float64 [devices].
    """

    round: int
    devices: tuple[str, ...]
    errors: Errors


@dataclass(slots=True, eq=False)
class Trained:
    """One run of a method, so far.

    Attributes:
        seed: its seed.
        rounds: of the settings, when it is over.
        path: its directory.
        events: what is shown of its rounds, of this conformity level.
        tested: its evaluations, by round.
        summed: of a federation: the share of all test samples that the model got wrong, by round.
        attacked: what the simulator knows of devices that lie; None without any, or not yet.
    """

    seed: int
    rounds: int
    path: Path
    events: list[Event] = field(default_factory=list)
    tested: list[Tested] = field(default_factory=list)
    summed: dict[int, float] = field(default_factory=dict)
    attacked: Attacked | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """An algorithm at a conformity level, over seeds.

    Attributes:
        label: what to call it.
        config: settings of its first run, of the one level.
        runs: one for each seed.
        data: digest of their data, as the run noted it; None where it is not there.
    """

    label: str
    config: RunConfig
    runs: Sequence[Trained] = ()
    data: object = None


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What a run directory holds.

    Attributes:
        path: the directory.
        given: what somebody called it; "" for nothing.
        config: the settings; None if they are not there yet, or cannot be read.
        methods: the main algorithm, by level, then the baselines.
        versions: software, machine and data, as the run noted them.
        summary: of a finished run.
        is_finished: whether it is over.
        written: when one of its files was written last, in seconds since the epoch; 0 if unknown.
        problems: what cannot be read, in sentences.
    """

    path: Path
    config: RunConfig | None
    given: str = ""
    methods: Sequence[Method] = ()
    versions: dict[str, object] = field(default_factory=dict)
    summary: dict[str, object] = field(default_factory=dict)
    is_finished: bool = False
    written: float = 0.0
    problems: Sequence[str] = ()

    @property
    def runs(self) -> list[Trained]:
        """All runs, in the order in which they are played; levels of one run count once."""
        found = {run.path: run for method in self.methods for run in method.runs}
        return list(found.values())


class _Known:
    """What was read of one run so far; its record only grows.

    Args:
        config: its settings.
        path: its directory.
        begun: how its record begins; that of another run begins otherwise.

    Attributes:
        levels: the same by conformity level.
    """

    def __init__(self, config: RunConfig, path: Path, begun: Mark | None = None) -> None:
        of_all = config.experiment.seed, config.federation.rounds, path
        self.begun, self._last = begun, -1
        self.levels = {theta: Trained(*of_all) for theta in config.federation.thetas}

    def follow(self, record: Record) -> None:
        """Read new events, up to one that is damaged: of each level its own, with what all cost."""
        for event, number in follow_events(record, self._last):
            self._last = number
            levels = cast("dict[str, Event]", event.get("levels") or {})
            for theta, run in self.levels.items():
                shown = {**event, **levels.get(show(theta), {})}
                run.events.append({key: shown[key] for key in _KEPT if key in shown})

    def read_summed(self, record: Record) -> None:
        """Read what devices measured together, up to what is damaged."""
        runs = dict(enumerate(self.levels.values()))
        for level, found in read_measured(record):
            match found:
                case {"error": None}:  # a round was lost, or nobody has test data
                    pass
                case {"round": int(at), "error": float(error)} if (
                    level in runs and 0 <= at < _MOST_ROUNDS and 0 <= error <= 1
                ):
                    runs[level].summed[at] = error
                case _:
                    problem = f"what was measured after round {found.get('round')!r:.20}"
                    raise damaged(record.path, problem)

    def read_tested(self, record: Record, theta: Fraction) -> None:
        """Read new evaluations of a level, up to one that is damaged."""
        tested = self.levels[theta].tested
        for evaluation in read_evaluations(record, theta, tested[-1].round if tested else -1):
            tested.append(_reduced(record, evaluation, tested[-1].devices if tested else ()))


class Reader:
    """Reads a run directory again and again; only what is new is read.

    Args:
        path: the run directory.
        given: what somebody called it.
    """

    def __init__(self, path: Path, given: str = "") -> None:
        self._top, self._given = RunDirectory(path), given
        self._known: dict[Path, _Known] = {}
        self._problems: list[str] = []

    def read(self) -> Snapshot:
        """What is there now."""
        self._problems = []
        found = self._noted(self._top.ask, self._read) or Snapshot(self._top.path, None)
        return replace(found, given=self._given, problems=tuple(self._problems[:MAX_PROBLEMS]))

    def _noted(self, read: Callable[..., T | None], *of: object) -> T | None:
        """What can be read; of what cannot, a sentence is made."""
        try:
            return read(*of)
        except OSError as error:  # of the directory itself: it may not be entered, for one
            self._problems.append(f"{self._top.path}: {error.strerror}")
        except UserError as error:
            self._problems.append(str(error))
        return None

    def _read(self, record: Record) -> Snapshot:
        top, methods, written = self._top, dict[str, Method](), list[float]()
        config = self._noted(record.config)
        versions, summary = (self._noted(record.json, one) or {} for one in (VERSIONS, SUMMARY))
        for arm, directory in top.runs(config.arms() if config else ()):
            written.append(_written(directory.record))
            for level, run in self._runs(arm, directory):
                label, data = name_of(level), versions.get("data_sha256")
                method = methods.get(label) or Method(label, level, data=data)
                methods[label] = replace(method, runs=(*method.runs, run))
        return Snapshot(
            top.path,
            config,
            methods=tuple(methods.values()),
            versions=versions,
            summary=summary,
            is_finished=config is not None and bool(summary),
            written=max(written, default=_written(top.record)),
        )

    def _runs(
        self, config: RunConfig, directory: RunDirectory
    ) -> Iterator[tuple[RunConfig, Trained]]:
        """What one run has come to, by the settings of each of its levels."""
        if directory.record.exists():
            self._noted(self._read_on, config, directory)
        known = self._known.get(directory.path) or _Known(config, directory.path)
        for theta, run in known.levels.items():  # as it is now, whoever reads on meanwhile
            events, tested, rounds = list(run.events), list(run.tested), config.federation.rounds
            yield (
                of_level(config, theta),
                replace(run, rounds=rounds, events=events, tested=tested, summed=dict(run.summed)),
            )

    def _read_on(self, config: RunConfig, directory: RunDirectory) -> None:
        """Read what is new in a record; what is damaged costs what comes after it."""
        with directory.read() as record:
            begun, known = record.chain.mark_at(1), self._known.get(directory.path)
            if known is None or begun != known.begun:
                known = self._known[directory.path] = _Known(config, directory.path, begun)
            self._noted(known.follow, record)
            is_remote = config.federation.devices == REMOTE
            if is_remote:
                self._noted(known.read_summed, record)
            attacked = self._noted(read_attacked, record) if config.attackers.lie else None
            for theta, run in known.levels.items():
                run.attacked = attacked
                if not is_remote:
                    self._noted(known.read_tested, record, theta)


def _reduced(record: Record, evaluation: Evaluation, before: tuple[str, ...]) -> Tested:
    """What is shown of an evaluation, whose devices are usually those of the one before.

    Raises:
        RunDirectoryError: it is damaged.
    """
    errors = np.array([device.error for device in evaluation.test], dtype=np.float64)
    if not ((errors >= 0) & (errors <= 1)).all():
        raise damaged(record.path, "an error is not a share from 0 to 1")
    devices = tuple(device.id for device in evaluation.test)
    return Tested(evaluation.round, before if devices == before else devices, errors)


def _written(path: Path) -> float:
    """When a record was written last; its journal is written first."""
    times = [one.stat().st_mtime for one in with_journals(path)[:2] if one.exists()]
    return max(times, default=0.0)
