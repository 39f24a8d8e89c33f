"""A run played again: the real engine, given what the rounds of its record came to.

Nobody trains. The engine draws the cohorts, its strategy announces, and takes from the record what
its rounds came to. What it writes must then be what the record says: the events but for times, the
evaluations, and the state in the end.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.cohort import Cohort, SecureRoundResult, Weighing
from deltafl.fl.errors import DataError
from deltafl.fl.local import LocalTraining
from deltafl.fl.metrics import Summary
from deltafl.fl.registry import OWN
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import LostSearch
from deltafl.secagg.session import Observer
from deltafl.secagg.states import Stage
from deltafl.sim.cohort.backends.base import Backend
from deltafl.sim.cohort.backends.choice import choose, open_backend
from deltafl.sim.cohort.hardware import choose_device
from deltafl.sim.cohort.masked import as_bytes
from deltafl.sim.cohort.sampling import lost_outcomes
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.data.dataset import dataset_digest
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.rounds_again import Kept
from deltafl.sim.inspect.audit.server_replay import Departure
from deltafl.sim.record.checkpoint import read_checkpoint, read_state, saved_rounds
from deltafl.sim.record.evaluations import Evaluation, read_evaluations
from deltafl.sim.record.events import Event, read_events, to_json
from deltafl.sim.record.record import SUMMARY, VERSIONS, Record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import INTERRUPTED
from deltafl.sim.record.truth import Told
from deltafl.sim.record.versions import NAMES_OF_VERSIONS
from deltafl.sim.run.algorithms import dropouts_of, sessions_of
from deltafl.sim.run.drawing import Lying
from deltafl.sim.run.engine import Stop, play
from deltafl.sim.run.experiment import Subject, keep_models, settle, subject_of
from deltafl.sim.run.simulated import SimulatedDevices, SimulatedPopulation
from deltafl.sim.run.summary import DataSize, summarise_experiment, summarise_run
from deltafl.sim.settings.config import REMOTE, RunConfig

_TIMES: Final = frozenset({"train_cpu_s", "protocol_cpu_s", "wall_s", "stage_s"})
"""Of an event: what no replay can have as well."""

_STAGES: Final = frozenset(stage.name.lower() for stage in Stage)
_LONGEST_S: Final = 1e9

_MEMORY: Final = "peak_memory_mb"  # of a summary, likewise
_SHOWN: Final = 60  # characters of a value


class Unplayable(Exception):
    """Why a run cannot be played again, one phrase."""


@dataclass(slots=True, eq=False)
class RunReplay:
    """A run played again.

    Attributes:
        config: Its settings.
        kept: What its rounds came to, by number.
        departures: What the engine does otherwise than the record says.
        rounds: How many rounds the engine played.
        is_finished: Whether the run has a summary.
    """

    config: RunConfig
    kept: Mapping[int, Kept]
    departures: list[Departure] = field(default_factory=list)
    rounds: int = 0
    is_finished: bool = False

    def compare(self, theirs: Record) -> None:
        """Play the run, and compare what it writes with a record.

        Raises:
            Unplayable: it cannot be played again.
        """
        config, self.is_finished = self.config, theirs.json(SUMMARY) is not None
        if OWN in (config.model.name, config.training.loss, config.federation.algorithm):
            raise Unplayable("it has code of its owner's own, which an audit does not run")
        if config.federation.devices == REMOTE:
            raise Unplayable("its devices are machines, and their data are not here")
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            subject, backend = self._opened(theirs, stack)
            directory = RunDirectory(Path(folder) / "again")
            quiet = replace(config, privacy=replace(config.privacy, truth=False))
            ours = stack.enter_context(directory.claim(quiet, resume=False))
            population = _Population(subject.dataset, backend, None, self)
            with contextlib.suppress(Stop, RunError):  # as the run had to
                play(quiet, directory, ours, population, _Silent())
            self._events(read_events(theirs), read_events(ours))
            for theta in config.federation.thetas:
                said, due = (read_evaluations(one, theta) for one in (theirs, ours))
                self._evaluations(list(said), list(due))
            if self._states(theirs, ours):
                keep_models(config, directory, ours, subject, theirs.json(VERSIONS) or {})
                self._models(RunDirectory(theirs.path.parent), directory)

    def _opened(self, theirs: Record, stack: contextlib.ExitStack) -> tuple[Subject, Backend]:
        """The data of a run and what evaluates its models, as they were."""
        config, notes = self.config, list[str]()
        said = theirs.json(VERSIONS) or {}
        try:
            subject = subject_of(config).suited(config)
            device = choose_device(config.training.device)
            digest = dataset_digest(subject.dataset)
            choice = choose(config.training, config.model.name, 1.0)
            of_data = str(said.get("data_sha256"))
            versions, choice = settle(theirs, choice, device, of_data, notes.append)
            backend = open_backend(choice, subject.spec(config), device=device)
        except (UserError, DataError) as error:
            raise Unplayable(str(error)) from error
        stack.callback(backend.close)
        if strange := sorted(versions.keys() - NAMES_OF_VERSIONS):
            detail = f"the versions have {strange[0]} = {_short(versions[strange[0]])}"
            self.depart("record.disagrees", f"{detail}, which no run writes", Evidence())
        if notes:
            raise Unplayable(notes[0])
        if of_data != digest:
            detail = f"the versions have data_sha256 = {of_data}, and it is {digest}"
            self.depart("record.disagrees", detail, Evidence())
        return subject, backend

    def depart(self, rule: str, detail: str, place: Evidence) -> None:
        """Note what is otherwise."""
        self.departures.append(Departure(rule, detail, place))

    def _events(self, theirs: Sequence[Event], ours: Sequence[Event]) -> None:
        for one, other in zip(theirs, ours, strict=False):
            number = other["round"]
            place = Evidence(number if isinstance(number, int) else None)
            for path, said, due in _differences(_untimed(one), _untimed(other), ""):
                detail = f"the event of round {number} says {path} = {_short(said)}"
                self.depart("record.disagrees", f"{detail}, and it is {_short(due)}", place)
            for path, value in _no_times(one):
                detail = f"the event of round {number} says {path} = {_short(value)}"
                self.depart("record.disagrees", f"{detail}, and it is a time in seconds", place)
        self._count("events", len(theirs), len(ours))

    def _evaluations(self, theirs: Sequence[Evaluation], ours: Sequence[Evaluation]) -> None:
        for one, other in zip(theirs, ours, strict=False):
            different = list(_differences(one, other, f"evaluations[{other.round}]"))
            for path, said, due in different[:1]:
                detail = f"it says {path} = {_short(said)}, and it is {_short(due)}"
                more = f" ({len(different)} values differ)" if len(different) > 1 else ""
                self.depart("record.disagrees", f"{detail}{more}", Evidence(other.round))
        self._count("evaluations", len(theirs), len(ours))

    def _count(self, what: str, said: int, due: int) -> None:
        """Compare how many there are; a run that was stopped may lack the last one."""
        is_whole = all(one.outcomes or one.is_interrupted for one in self.kept.values())
        if is_whole and said != due and (self.is_finished or said != due - 1):
            detail = f"it has {said} {what}, and a run has {due}"
            self.depart("record.disagrees", detail, Evidence())

    def _states(self, theirs: Record, ours: Record) -> bool:
        """Compare what is saved of the last rounds; whether both were saved after the same."""
        said, due = ({n: read_state(one, n) for n in saved_rounds(one)} for one in (theirs, ours))
        for number in sorted(said.keys() & due.keys()):
            one, other = (dict(state) for state in (said[number], due[number]))
            for name in ("record_rows", "record_digest"):  # times are in the record, too
                other[name] = one.get(name, np.zeros(0))
            for path, value, wanted in _differences(one, other, f"checkpoint[{number}]"):
                detail = f"it says {path} = {_short(value)}, and it is {_short(wanted)}"
                self.depart("record.disagrees", detail, Evidence(number))
            mark = read_checkpoint(theirs, number).mark
            if (found := theirs.chain.mark_at(mark.num_frames).digest) != mark.digest:
                detail = f"it says checkpoint[{number}].record_digest = {mark.digest.hex()}"
                detail = f"{detail}, and it is {found.hex()}"
                self.depart("record.disagrees", detail, Evidence(number))
        return bool(said) and said.keys() == due.keys()

    def _models(self, theirs: RunDirectory, ours: RunDirectory) -> None:
        if not (theirs.bundle.exists() and ours.bundle.exists()):
            return
        said, due = (sha256(one.bundle.read_bytes()).hexdigest() for one in (theirs, ours))
        if said != due:
            detail = f"{theirs.bundle.name} has SHA-256 {said}, and a run writes {due}"
            self.depart("record.disagrees", detail, Evidence())


@dataclass(frozen=True, slots=True, eq=False)
class _Population(SimulatedPopulation):
    """All devices of the data set, which answer as the record says."""

    replay: "RunReplay | None" = None

    def of_run(self, config: RunConfig, observer: Observer) -> SimulatedDevices:
        """The devices of the run; see `Population`."""
        del observer
        assert self.replay is not None  # noqa: S101 - for mypy
        return _Devices(config, self.dataset, self.backend, self.replay)


class _Devices(SimulatedDevices):
    """Devices that answer as the record says."""

    def __init__(
        self, config: RunConfig, dataset: object, backend: object, replay: RunReplay
    ) -> None:
        super().__init__(config, dataset, backend, None)  # type: ignore[arg-type]
        self._replay = replay

    def cohort(  # type: ignore[override]
        self,
        ids: Sequence[int],
        round_index: int,
        training: LocalTraining,
        told: Told | None,
        lying: Lying | None = None,
        lost: Sequence[LostSearch] = (),
    ) -> "_Cohort":
        """Some of them; see `drawing.Devices`."""
        del training, told, lying, lost
        kept = self._replay.kept.get(round_index + 1)
        if kept is None:
            raise Stop
        if tuple(ids) != kept.cohort:
            detail = f"round {round_index + 1} was begun with other devices than a run draws"
            self._replay.depart("record.disagrees", detail, kept.place)
        return _Cohort({i: int(self._sizes[i]) for i in ids}, round_index, kept, self._replay)


@dataclass(frozen=True, slots=True, eq=False)
class _Cohort(Cohort):
    """The devices of a round, which have answered as the record says."""

    sizes: Mapping[int, int]
    index: int
    kept: Kept
    replay: RunReplay

    @property
    def weights(self) -> Mapping[int, int]:
        """n_k by device."""
        return self.sizes

    def secure_round(
        self, levels: Levels, models: Sequence[Vector], weighing: Weighing | None = None
    ) -> SecureRoundResult:
        """What the round came to; see `Cohort`."""
        del weighing
        kept, replay = self.kept, self.replay
        if kept.outcomes is None and not kept.is_interrupted:
            raise Stop
        replay.rounds += 1
        for rule, detail in _in_announcement(kept, levels, models, replay.config, self.index):
            replay.depart(rule, detail, kept.place)
        plan = dropouts_of(replay.config)(self.index, list(self.sizes), len(levels.slots()))
        for device, step in kept.silent.items():
            if step.stage is not Stage.ADVERTISE and (
                device not in plan or plan[device].answers(step)
            ):
                where = f"{step.stage.name.lower()} of slot {step.slot}"
                detail = f"device {device} did not answer ({where}), and by the settings it does"
                replay.depart("answers.vanished", detail, kept.place)
        if kept.outcomes is None:
            return SecureRoundResult(lost_outcomes(levels, kept.slots, INTERRUPTED), None)
        return SecureRoundResult(kept.outcomes, kept.received / len(kept.cohort))


def _in_announcement(
    kept: Kept, levels: Levels, models: Sequence[Vector], config: RunConfig, index: int
) -> Iterator[tuple[str, str]]:
    """What of a round's announcement does not follow from settings and sums."""
    if kept.announced is None:
        return
    path = f"rounds[{index + 1}]"
    shown, led_to = (np.frombuffer(m, "<f4") for m in (kept.announced.models, as_bytes(models)))
    for what, said, wanted in _differences(shown, led_to, f"{path}.models"):
        rule = "model.first-differs" if index == 0 else "model.unfounded"
        yield rule, f"{what} = {_short(said)} was announced, and is {_short(wanted)}"
    seed = Seeds(config.experiment.seed).digest(Purpose.GRAPH, round_index=index)
    params = sessions_of(config).params_of_levels(levels, kept.announced.models, seed)
    in_levels = list(_differences(kept.announced.levels, levels, f"{path}.levels"))
    in_session = _differences(kept.params, params, f"{path}.session")
    for what, said, due in in_levels or in_session:  # the session follows from the levels
        yield "record.disagrees", f"{what} = {_short(said)} was announced, and is {_short(due)}"


class _Silent:
    """Progress that nobody follows."""

    def begin(self, config: RunConfig, rounds_done: int) -> None:
        """Nothing."""

    def played(self, event: Event) -> None:
        """Nothing."""

    def evaluated(self, round_number: int, errors: Mapping[str, Summary]) -> None:
        """Nothing."""


def summary_differs(directory: RunDirectory, arms: Sequence[RunConfig]) -> Iterator[str]:
    """What the summary of a finished experiment says otherwise than the records of its runs.

    Args:
        directory: Of the first run.
        arms: The settings of all runs, the first one's first.

    Raises:
        UserError: a record is damaged.
    """
    if (said := directory.summary()) is None:
        return
    of_data = DataSize(*(said.get(name) for name in ("data", "train_devices", "test_devices")))  # type: ignore[arg-type] # compared as they are
    runs = []
    for number, arm in enumerate(arms):
        own = directory.arm(arm.federation.algorithm, arm.experiment.seed) if number else directory
        with own.read() as record:
            runs.append(summarise_run(arm, record, of_data))
    due = json.loads(json.dumps(to_json(summarise_experiment(runs))))
    known = {name: value for name, value in said.items() if name != _MEMORY}
    due.pop(_MEMORY, None)
    for path, value, wanted in _differences(known, due, ""):
        path = path.removeprefix(".")
        yield f"the summary says {path} = {_short(value)}, and it is {_short(wanted)}"


def _untimed(event: Event) -> Event:
    return {name: value for name, value in event.items() if name not in _TIMES}


def _no_times(event: Event) -> Iterator[tuple[str, object]]:
    """What an event says of times that can be none."""
    stages = event.get("stage_s")
    if not isinstance(stages, dict) or stages.keys() - _STAGES:
        yield "stage_s", stages
    for name in sorted(_TIMES - {"stage_s"}):
        value = event.get(name)
        if type(value) not in (int, float) or not 0 <= value <= _LONGEST_S:  # type: ignore[operator]
            yield name, value


def _differences(said: object, due: object, path: str) -> Iterator[tuple[str, object, object]]:
    """Where two values differ: the path, and what each has there."""
    parts: Iterable[tuple[str, object, object]]
    if is_dataclass(said) and type(said) is type(due):
        parts = [
            (f".{f.name}", getattr(said, f.name), getattr(due, f.name))
            for f in fields(said)
            if f.init
        ]
    elif isinstance(said, Mapping) and isinstance(due, Mapping):
        names = sorted({*said, *due}, key=str)
        parts = [(f".{name}", said.get(name), due.get(name)) for name in names]
    elif isinstance(said, list | tuple) and isinstance(due, list | tuple) and len(said) == len(due):
        parts = [(f"[{n}]", *both) for n, both in enumerate(zip(said, due, strict=True))]
    elif isinstance(said, np.ndarray) and isinstance(due, np.ndarray):
        if (said.dtype, said.shape) != (due.dtype, due.shape):
            yield path, said, due
        elif said.tobytes() != due.tobytes():
            same = said.reshape(-1).view(np.uint8) == due.reshape(-1).view(np.uint8)
            at = int(np.flatnonzero(~same)[0]) // said.itemsize
            where = f"{path}[{at}]" if said.ndim else path
            yield where, said.reshape(-1)[at], due.reshape(-1)[at]
        return
    else:
        if said != due or type(said) is not type(due):
            yield path.removeprefix("."), said, due
        return
    for name, one, other in parts:
        yield from _differences(one, other, f"{path}{name}")


def _short(value: object) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
