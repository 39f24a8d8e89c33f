"""What a run directory holds at a moment, whether its run is in progress or over.

The run may be writing meanwhile: one state of its record is read, as the last transaction left it.
What is damaged costs what it holds, and becomes a sentence: the rest is shown all the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from deltafl.sim.errors import UserError, damaged
from deltafl.sim.record.attacked import Attacked, read_attacked
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


@dataclass(frozen=True, slots=True, eq=False)
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
    events: Sequence[Event]
    tested: Sequence[Tested]
    summed: Mapping[int, float]
    attacked: Attacked | None


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


@dataclass(slots=True)
class _Known:
    """What was read of one run so far; its record only grows.

    Attributes:
        run_id: of the run.
        events: of each, what is shown.
        last: the number of the last one's row.
        tested: its evaluations by level.
        summed: what the devices of a federation measured together, by the number of the level.
    """

    run_id: bytes = b""
    events: list[Event] = field(default_factory=list)
    last: int = -1
    tested: dict[Fraction, list[Tested]] = field(default_factory=dict)
    summed: dict[int, dict[int, float]] = field(default_factory=dict)

    def follow(self, record: Record) -> None:
        """Read new events, up to one that is damaged."""
        for event, number in follow_events(record, self.last):
            self.events.append(_shown_of(event))
            self.last = number

    def read_summed(self, record: Record) -> None:
        """Read what devices measured together, up to what is damaged."""
        self.summed = {}
        for level, found in read_measured(record):
            match found:
                case {"error": None}:  # a round was lost, or nobody has test data
                    pass
                case {"round": int(at), "error": float(error)} if (
                    0 <= at < _MOST_ROUNDS and 0 <= error <= 1
                ):
                    self.summed.setdefault(level, {})[at] = error
                case _:
                    problem = f"what was measured after round {found.get('round')!r:.20}"
                    raise damaged(record.path, problem)

    def test(self, record: Record, theta: Fraction) -> None:
        """Read new evaluations of a level, up to one that is damaged."""
        tested = self.tested.setdefault(theta, [])
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
        for number, arm in enumerate(config.arms() if config else ()):
            directory = top.arm(arm.federation.algorithm, arm.experiment.seed) if number else top
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
        attacked, federation = None, config.federation
        if directory.record.exists():
            attacked = self._noted(self._read_on, config, directory)
        known = self._known.get(directory.path, _Known())
        for level, theta in enumerate(federation.thetas):
            yield (
                of_level(config, theta),
                Trained(
                    config.experiment.seed,
                    federation.rounds,
                    directory.path,
                    _of_level(known.events, theta),
                    tuple(known.tested.get(theta, ())),
                    known.summed.get(level, {}),
                    attacked,
                ),
            )

    def _read_on(self, config: RunConfig, directory: RunDirectory) -> Attacked | None:
        """Read what is new in a record; what is damaged costs what comes after it."""
        with directory.read() as record:
            known = self._known.get(directory.path)
            if known is None or record.run_id != known.run_id:  # that of another run
                known = self._known[directory.path] = _Known(record.run_id)
            self._noted(known.follow, record)
            if config.federation.devices == REMOTE:
                self._noted(known.read_summed, record)
            else:
                for theta in config.federation.thetas:
                    self._noted(known.test, record, theta)
            return self._noted(read_attacked, record) if config.attackers.lie else None


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


def _shown_of(event: Event) -> Event:
    kept: Event = {key: event[key] for key in _KEPT if key in event}
    if levels := cast("dict[str, Event]", event.get("levels")):
        kept["levels"] = {name: _shown_of(level) for name, level in levels.items()}
    return kept


def _of_level(events: Sequence[Event], theta: Fraction) -> list[Event]:
    """The events as they concern one level: its own search, and the costs of all levels."""
    own = [cast("dict[str, Event]", event.get("levels") or {}).get(show(theta)) for event in events]
    return [{**event, **(one or {})} for event, one in zip(events, own, strict=True)]


def _written(path: Path) -> float:
    """When a record was written last; its journal is written first."""
    times = [one.stat().st_mtime for one in with_journals(path)[:2] if one.exists()]
    return max(times, default=0.0)
