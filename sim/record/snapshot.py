"""What a run directory holds at a moment, whether its run is in progress or over.

The run may be writing meanwhile. Evaluations and summaries appear as a whole. The last line of the
events may be half there, and does not count until it is whole. A file that is damaged costs what
it holds, and becomes a sentence: the rest is shown all the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from deltafl.fl.read.regular import open_regular
from deltafl.sim.errors import UserError, damaged
from deltafl.sim.record.attacked import Attacked, read_attacked
from deltafl.sim.record.evaluations import evaluation_files, read_evaluation
from deltafl.sim.record.events import Event, follow_events
from deltafl.sim.record.labels import name_of, of_level
from deltafl.sim.record.rundir import RunDirectory, read_json
from deltafl.sim.settings.config import REMOTE, RunConfig
from deltafl.sim.settings.config_io import build_config, read_config_file, show

Errors = npt.NDArray[np.float64]
T = TypeVar("T")

MAX_PROBLEMS: Final = 20
"""The most sentences on damaged files that are given at a time."""

_KEPT: Final = (
    "aborted",
    "bytes_up_per_device",
    "delta",
    "dropped_by_stage",
    "epsilon",
    "eta",
    "half_width",
    "kept_devices",
    "num_queries",
    "protocol_cpu_s",
    "round",
    "secure_sums",
    "stage_s",
    "train_cpu_s",
    "wall_s",
)

_MOST_STAGES: Final = 16  # there are seven
_LONGEST_STAGE: Final = 60


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


@dataclass(frozen=True, slots=True)
class Summed:
    """A model on the test samples of a federation's devices together.

    Attributes:
        round: how many rounds it has been trained for.
        error: the share of the samples that it gets wrong.
        devices: how many devices answered.
    """

    round: int
    error: float
    devices: int

    @property
    def is_possible(self) -> bool:
        """Whether the numbers are in their ranges."""
        return 0 <= self.round < 1 << 31 and 0 <= self.error <= 1 and self.devices >= 0


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """One run of a method, so far.

    Attributes:
        seed: its seed.
        rounds: of the settings, when it is over.
        path: its directory.
        events: what is shown of its rounds, of this conformity level.
        tested: its evaluations, by round.
        summed: of a federation: what its devices measured together, by round.
        attacked: what the simulator knows of devices that lie; None without any, or not yet.
    """

    seed: int
    rounds: int
    path: Path
    events: Sequence[Event] = ()
    tested: Sequence[Tested] = ()
    summed: Sequence[Summed] = ()
    attacked: Attacked | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """An algorithm at a conformity level, over seeds.

    Attributes:
        label: what to call it.
        config: settings of its first run, of the one level.
        runs: one for each seed.
        data: digest of their data, as versions.json has it; None where it is not there.
    """

    label: str
    config: RunConfig
    runs: Sequence[Trained] = ()
    data: object = None

    @property
    def algorithm(self) -> str:
        """Its name."""
        return self.config.federation.algorithm

    @property
    def is_private(self) -> bool:
        """Whether its rounds are secure sums."""
        return self.config.federation.is_private


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


class Reader:
    """Reads a run directory again and again; only what is new is read.

    Args:
        path: the run directory.
        given: what somebody called it.
    """

    def __init__(self, path: Path, given: str = "") -> None:
        self._top = RunDirectory(path)
        self._given = given
        self._logs: dict[Path, _Log] = {}
        self._files: dict[Path, tuple[tuple[int, int], object]] = {}
        self._ids: tuple[str, ...] = ()
        self._problems: list[str] = []

    def read(self) -> Snapshot:
        """What is there now."""
        self._problems = []
        try:
            found = self._read()
        except OSError as error:  # of the directory itself: it may not be entered, for one
            self._problems.append(f"{self._top.path}: {error.strerror}")
            found = Snapshot(self._top.path, None)
        return replace(found, given=self._given, problems=tuple(self._problems[:MAX_PROBLEMS]))

    def _read(self) -> Snapshot:
        top = self._top
        written = max(map(_written, (top.events, top.summary, top.config)))
        if not top.config.exists():
            return Snapshot(top.path, None)
        try:
            config = build_config([read_config_file(top.config)])
        except UserError as error:
            self._problems.append(str(error))
            return Snapshot(top.path, None, written=written)
        methods: dict[str, Method] = {}
        versions = self._json(top.versions)
        data = versions.get("data_sha256")
        for number, arm in enumerate(config.arms()):
            algorithm, seed = arm.federation.algorithm, arm.experiment.seed
            directory = top.arm(algorithm, seed) if number else top
            written = max(written, _written(directory.events), _written(directory.summary))
            for level, run in self._runs(arm, directory):
                label = name_of(level)
                method = methods.get(label) or Method(label, level, data=data)
                methods[label] = replace(method, runs=(*method.runs, run))
        summary = self._json(top.summary)
        return Snapshot(
            top.path,
            config,
            methods=tuple(methods.values()),
            versions=versions,
            summary=summary,
            is_finished=bool(summary),
            written=written,
        )

    def _runs(
        self, config: RunConfig, directory: RunDirectory
    ) -> Iterator[tuple[RunConfig, Trained]]:
        """What one run has come to, by the settings of each of its levels."""
        federation = config.federation
        events = self._events(directory.events)
        folders = directory.metrics_of(federation)
        lying = config.attackers.lie
        attacked = self._reread(directory.attacked, read_attacked) if lying else None
        for number, (theta, folder) in enumerate(folders.items()):
            run = Trained(
                config.experiment.seed,
                federation.rounds,
                directory.path,
                _of_level(events, theta),
                attacked=attacked,
            )
            if federation.devices == REMOTE:
                run = replace(run, summed=tuple(self._summed(directory.measured, number)))
            else:
                run = replace(run, tested=tuple(self._tested(folder)))
            yield of_level(config, theta), run

    def _reread(self, path: Path, read: Callable[[Path], T]) -> T | None:
        """What a file holds, read again if it has changed; None where it is gone, or damaged."""
        try:
            stat = path.stat()
            stamp = stat.st_size, stat.st_mtime_ns
            if path not in self._files or self._files[path][0] != stamp:
                self._files[path] = stamp, read(path)
            return cast("T", self._files[path][1])
        except FileNotFoundError:  # the run has not begun, or is resumed and drops it
            return None
        except OSError as error:
            self._problems.append(str(damaged(path, error.strerror)))
        except UserError as error:
            self._problems.append(str(error))
        return None

    def _events(self, path: Path) -> list[Event]:
        log = self._logs.setdefault(path, _Log())
        try:
            log.read_on(path)
        except UserError as error:
            self._problems.append(str(error))
        return log.events

    def _tested(self, folder: Path) -> Iterator[Tested]:
        """The evaluations of a folder, by round; those that are damaged are left out."""
        try:
            for path in evaluation_files(folder):
                if (found := self._reread(path, self._reduced)) is not None:
                    yield found
        except UserError as error:
            self._problems.append(str(error))

    def _reduced(self, path: Path) -> Tested:
        """What is shown of an evaluation.

        Raises:
            RunDirectoryError: it is damaged.
        """
        evaluation = read_evaluation(path)
        errors = np.array([device.error for device in evaluation.test], dtype=np.float64)
        if not ((errors >= 0) & (errors <= 1)).all():
            raise damaged(path, "an error is not a share from 0 to 1")
        if (ids := tuple(device.id for device in evaluation.test)) != self._ids:
            self._ids = ids  # usually those of all evaluations, and then kept once
        return Tested(evaluation.round, self._ids, errors)

    def _summed(self, folder: Path, level: int) -> Iterator[Summed]:
        for path in sorted(folder.glob(f"round-*-level-{level}.json")):
            found = self._json(path)
            number, error, devices = (found.get(key) for key in ("round", "error", "devices"))
            if error is None:  # the round was lost, or nobody has test data
                continue
            if type(number) is int and type(error) is float and type(devices) is int:
                summed = Summed(number, error, devices)
                if summed.is_possible:
                    yield summed
                    continue
            problem = "round, error or devices is not a number of its kind"
            self._problems.append(str(damaged(path, problem)))

    def _json(self, path: Path) -> dict[str, object]:
        try:
            return read_json(path) or {}
        except UserError as error:
            self._problems.append(str(error))
            return {}


@dataclass(slots=True)
class _Log:
    """The events of one run, read so far; of each, what is shown.

    The file is known again by its last line that was read. A file that another run has written, or
    that was cut back and has grown again, has something else there: lines have times in them.
    """

    events: list[Event] = field(default_factory=list)
    _begin: int = 0  # of the last line
    _end: int = 0  # of it, where what is new begins
    _last: bytes = b""

    def read_on(self, path: Path) -> None:
        """Read what is new.

        Raises:
            RunDirectoryError: a line is damaged; the events before it are kept.
        """
        if self._line_in(path) != self._last:  # cut back by a resumed run, or that of another
            self.events, self._begin, self._end = [], 0, 0
        known = len(self.events)
        try:
            for event, after in follow_events(path, self._end):
                self.events.append(_shown_of(event))
                self._begin, self._end = self._end, after
        finally:
            if len(self.events) > known:
                self._last = self._line_in(path)

    def _line_in(self, path: Path) -> bytes:
        """SHA-256 of what the file has where the last line was; empty where it cannot be read."""
        try:
            with open_regular(path) as file:
                file.seek(self._begin)
                return sha256(file.read(self._end - self._begin)).digest()
        except (OSError, ValueError):
            return b""


def _shown_of(event: Event) -> Event:
    kept: Event = {key: event[key] for key in _KEPT if key in event}
    if dropped := cast("Mapping[str, int]", event.get("dropped_by_stage") or {}):
        several = list(dropped.items())[:_MOST_STAGES]
        kept["dropped_by_stage"] = {name[:_LONGEST_STAGE]: number for name, number in several}
    if levels := event.get("levels"):
        kept["levels"] = {
            name: _shown_of(level) for name, level in cast("dict[str, Event]", levels).items()
        }
    return kept


def _of_level(events: Sequence[Event], theta: Fraction) -> list[Event]:
    """The events as they concern one level: its own search, and the costs of all levels."""
    own = [cast("dict[str, Event]", event.get("levels") or {}).get(show(theta)) for event in events]
    return [{**event, **(one or {})} for event, one in zip(events, own, strict=True)]


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
