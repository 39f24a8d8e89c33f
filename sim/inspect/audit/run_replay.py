"""A run played again: the real engine, given what the rounds of its record came to.

Nobody trains. The engine draws the cohorts, its strategy announces, and takes from the record what
its rounds came to. What it writes must then be what the record says: the events but for times, the
evaluations, and the state in the end.

No code and no file that the record names is opened. Data that are generated, and those that the
auditor names, are there to be evaluated. Of other devices, such as machines, no more is known than
what the run says, and it is compared as far as that goes.
"""

import contextlib
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np
import torch

from deltafl.fl.bundle import Stored, read_stored
from deltafl.fl.data.registry import FORMATS
from deltafl.fl.errors import DataError
from deltafl.fl.registry import OWN
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.secagg.states import Stage
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.cohort.backends.choice import Choice, open_backend
from deltafl.sim.cohort.hardware import usable_cores
from deltafl.sim.cohort.masked import as_bytes
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.data.dataset import dataset_digest
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.replayed_devices import ReplayedPopulation, Silences
from deltafl.sim.inspect.audit.rounds_again import Kept
from deltafl.sim.inspect.audit.server_replay import Departure
from deltafl.sim.record.checkpoint import read_checkpoint, read_state
from deltafl.sim.record.evaluations import Evaluation, read_evaluations
from deltafl.sim.record.events import Event, read_events, to_json
from deltafl.sim.record.record import SUMMARY, VERSIONS, Record, saved_rounds
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.versions import NAMES_OF_VERSIONS, versions_now
from deltafl.sim.run.algorithms import sessions_of
from deltafl.sim.run.engine import Stop, play
from deltafl.sim.run.experiment import Subject, keep_models, subject_of, write_bundle
from deltafl.sim.run.progress import Several
from deltafl.sim.run.simulated import SimulatedDevices, first_model
from deltafl.sim.run.summary import DataSize, summarise_experiment, summarise_run
from deltafl.sim.settings.config import PRIVATE, REFERENCE, REMOTE, RunConfig

_TIMES: Final = frozenset({"train_cpu_s", "protocol_cpu_s", "wall_s", "stage_s"})
"""Of an event: what no replay can have as well."""

_STAGES: Final = frozenset(stage.name.lower() for stage in Stage)
_LONGEST_S: Final = 1e9

_MEMORY: Final = "peak_memory_mb"  # of a summary, likewise
_SHOWN: Final = 60  # characters of a value
_ROUNDING: Final = 1e-4  # by which processors differ, of a number or of 1
_ABOUT: Final = ("data", "data_sha256", "scaled", "bytes")  # of a bundle, where the data are not


class Unplayable(Exception):
    """Why a run cannot be played again, one phrase."""


@dataclass(slots=True, eq=False)
class RunReplay:
    """A run played again.

    Attributes:
        config: Its settings.
        kept: What its rounds came to, by number.
        data: Where its data are, if the auditor says so.
        departures: What the engine does otherwise than the record says.
        passed_over: What was not compared, phrases.
        rounds: How many rounds the engine played.
        is_finished: Whether the run has a summary.
    """

    config: RunConfig
    kept: Mapping[int, Kept]
    data: Path | None = None
    departures: list[Departure] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    rounds: int = 0
    is_finished: bool = False
    _silences: Silences = field(init=False)

    def __post_init__(self) -> None:
        self._silences = Silences(self.config)

    def compare(self, theirs: Record) -> None:
        """Play the run, and compare what it writes with a record.

        Raises:
            Unplayable: it cannot be played again.
            UserError: what it says of itself cannot be read.
        """
        config, self.is_finished = self.config, theirs.json(SUMMARY) is not None
        if config.federation.algorithm in (OWN, PRIVATE + OWN):
            raise Unplayable("its strategy is its owner's own code, which an audit does not run")
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            there = RunDirectory(theirs.path.parent)
            subject, stored = self._subject(), self._stored(there)
            spec = subject.spec(config) if subject else self._spec(stored)
            said = self._versions(theirs, subject, spec)
            number = len(subject.dataset.train) if subject else self._number(theirs)
            measuring = self._measuring(subject, said, stack)
            model = self._first(spec)
            directory = RunDirectory(Path(folder) / "again")
            quiet = replace(config, privacy=replace(config.privacy, truth=False))
            ours = stack.enter_context(directory.claim(quiet, resume=False))
            population = ReplayedPopulation(spec, number, self.kept, self, measuring)
            self._play(quiet, directory, ours, population, model)
            if rounds := self._silences.untold:
                self.passed_over.append(
                    f"why all devices that were left fell silent at once, in rounds {rounds}: "
                    "without a truth file, nobody can tell whether they refused"
                )
            self._events(read_events(theirs), read_events(ours))
            if subject or self._is_remote:
                for theta in config.federation.thetas:
                    both = (read_evaluations(one, theta) for one in (theirs, ours))
                    self._evaluations(*map(list, both))
            if not self._states(theirs, ours) or stored is None or spec is None:
                return
            if subject:
                keep_models(config, directory, ours, subject, said)
            else:
                about = {n: stored.provenance[n] for n in _ABOUT if n in stored.provenance}
                write_bundle(config, directory, ours, spec, stored.scale, about)
            self._models(there, directory)

    def _play(
        self,
        config: RunConfig,
        directory: RunDirectory,
        ours: Record,
        population: ReplayedPopulation,
        model: Vector | None,
    ) -> None:
        """Play as far as the record goes; a run that gave up may have been resumed."""
        before = -1
        while before < self.rounds:
            before = self.rounds
            with contextlib.suppress(RunError):
                try:
                    play(config, directory, ours, population, Several(()), model=model)
                except Stop:
                    return

    @property
    def _is_remote(self) -> bool:
        return self.config.federation.devices == REMOTE

    def _subject(self) -> Subject | None:
        """What was trained on which data; None unless both can be had without the run's files."""
        config, data = self.config, self.config.data
        parts = config.model.name, config.training.loss, config.training.optimizer
        name = data.source if data.format == "auto" else data.format
        is_made = name in FORMATS and not FORMATS[name].needs
        if self._is_remote:
            self.passed_over.append(
                "devices on machines: what they draw, whether they could have answered, and what "
                "they were told beside messages, which the graph's seed is a digest of"
            )
        elif OWN in parts or config.own.paths:
            self.passed_over.append("evaluations: they take its owner's own code, which is not run")
        elif data.vectors or not (is_made or self.data):
            self.passed_over.append(
                f"evaluations: the data are in {data.source!r}, and no file is opened because a "
                "record names it (--data)"
            )
        else:
            source = str(self.data) if self.data and not is_made else data.source
            data = replace(data, source=source, cache=False)
            try:
                return subject_of(replace(config, data=data)).suited(config)
            except (UserError, DataError) as error:
                self.passed_over.append(f"evaluations: {error}")
        return None

    def _stored(self, there: RunDirectory) -> Stored | None:
        """The models that a finished run hands on, with the shapes of what they take."""
        if not there.bundle.exists():
            if self.is_finished:
                detail = f"it has no {there.bundle.name}, which a finished run writes"
                self.depart("record.disagrees", detail, Evidence())
            return None
        try:
            return read_stored(there.bundle)
        except DataError as error:
            self.depart("record.disagrees", str(error), Evidence())
            return None

    def _spec(self, stored: Stored | None) -> ModelSpec | None:
        """The model with the shapes of data that are not here, if it can be built."""
        name = self.config.model.name
        if stored is None or name == OWN or stored.architecture.embedding_sha256 is not None:
            return None
        return ModelSpec(name, stored.architecture.input_shape, stored.architecture.num_classes)

    def _number(self, theirs: Record) -> int | None:
        """How many simulated devices train, by the first evaluation; None if that does not say."""
        if self._is_remote or self.config.attackers.lie:
            return None
        first = next(read_evaluations(theirs), None)
        return None if first is None else len(first.train)

    def _versions(
        self, theirs: Record, subject: Subject | None, spec: ModelSpec | None
    ) -> dict[str, object]:
        """What the run says of its software and its data; what is here is compared with it."""
        said = theirs.json(VERSIONS) or {}
        if strange := sorted(said.keys() - NAMES_OF_VERSIONS):
            detail = f"the versions have {strange[0]} = {_short(said[strange[0]])}"
            self.depart("record.disagrees", f"{detail}, which no run writes", Evidence())
        digest = None
        if subject is not None:
            digest = dataset_digest(subject.dataset)
        elif self._is_remote and spec is not None:
            digest = spec.shapes_sha256
        if digest is not None and said.get("data_sha256") != digest:
            detail = f"the versions have data_sha256 = {str(said.get('data_sha256'))[:64]}"
            self.depart("record.disagrees", f"{detail}, and it is {digest}", Evidence())
            said = {**said, "data_sha256": digest}
        now = versions_now(torch.device("cpu"), {}, "")
        others = [one for one in now if one != "data_sha256" and said.get(one) != now[one]]
        if others:
            each = ", ".join(f"{one} {_short(said.get(one))} ({now[one]} here)" for one in others)
            self.passed_over.append(f"last bits of evaluations: the run says that it had {each}")
        return said

    def _measuring(
        self, subject: Subject | None, said: Mapping[str, object], stack: contextlib.ExitStack
    ) -> SimulatedDevices | None:
        """What evaluates models on the data: in this process, on the processor."""
        if subject is None:
            return None
        backend, threads = said.get("backend"), said.get("threads")
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        if type(threads) is int and 0 < threads <= usable_cores():
            torch.set_num_threads(threads)
        choice = Choice("batched" if backend == "batched" else REFERENCE, 0, 1)
        opened = open_backend(choice, subject.spec(self.config))
        stack.callback(opened.close)
        return SimulatedDevices(self.config, subject.dataset, opened, None)

    def _first(self, spec: ModelSpec | None) -> Vector | None:
        """The first model: as it was announced, once it is compared with that of the settings."""
        kept = self.kept.get(1)
        shown = None
        if kept is not None and kept.announced is not None:
            shown = np.frombuffer(kept.announced.models, "<f4").astype(np.float32)
        try:
            due = None if spec is None else first_model(self.config, spec)
        except ValueError as error:
            due, detail = None, f"its settings and shapes lead to no first model: {error}"
            self.depart("record.disagrees", detail, Evidence())
        if due is None:
            if shown is None:
                raise Unplayable("nothing says what its first model is")
            self.passed_over.append("the first model: what it is built of is not here")
            return shown
        if shown is None or kept is None or shown.tobytes() == due.tobytes():
            return due
        what, said, wanted = next(_differences(shown, due, "rounds[1].models"))
        is_near = shown.shape == due.shape and np.allclose(shown, due, _ROUNDING, _ROUNDING)
        detail = f"{what} = {_short(said)} was announced, and is {_short(wanted)}"
        self.depart("run.rounding" if is_near else "model.first-differs", detail, kept.place)
        return shown if shown.shape == due.shape else due

    def depart(self, rule: str, detail: str, place: Evidence) -> None:
        """Note what is otherwise."""
        self.departures.append(Departure(rule, detail, place))

    def drawn(self, kept: Kept, ids: Sequence[int], index: int) -> None:
        """The engine draws these devices; see `Follower`."""
        if tuple(ids) != kept.cohort:
            detail = f"round {index + 1} was begun with other devices than a run draws"
            self.depart("record.disagrees", detail, kept.place)

    def played(self, kept: Kept, levels: Levels, models: Sequence[Vector], index: int) -> None:
        """The engine announces this to them; see `Follower`."""
        self.rounds += 1
        for rule, detail in self._announced(kept, levels, models, index):
            self.depart(rule, detail, kept.place)
        if self._is_remote:
            return
        for device, step in self._silences.unfounded(kept, index, len(levels.slots())):
            where = f"{step.stage.name.lower()} of slot {step.slot}"
            detail = f"device {device} did not answer ({where}), and by the settings it does"
            self.depart("answers.vanished", detail, kept.place)

    def _announced(
        self, kept: Kept, levels: Levels, models: Sequence[Vector], index: int
    ) -> Iterator[tuple[str, str]]:
        """What of a round's announcement does not follow from settings and sums."""
        if kept.announced is None or kept.params is None:
            return
        path, seed = f"rounds[{index + 1}]", kept.params.graph_seed
        shown, led_to = (
            np.frombuffer(one, "<f4") for one in (kept.announced.models, as_bytes(models))
        )
        for what, said, wanted in _differences(shown, led_to, f"{path}.models"):
            detail = f"{what} = {_short(said)} was announced, and is {_short(wanted)}"
            yield "model.unfounded", detail
        if not self._is_remote:
            seed = Seeds(self.config.experiment.seed).digest(Purpose.GRAPH, round_index=index)
        params = sessions_of(self.config).params_of_levels(levels, kept.announced.models, seed)
        in_levels = list(_differences(kept.announced.levels, levels, f"{path}.levels"))
        in_session = _differences(kept.params, params, f"{path}.session")
        for what, said, due in in_levels or in_session:  # the session follows from the levels
            yield (
                "record.disagrees",
                f"{what} = {_short(said)} was announced, and is {_short(due)}",
            )

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
            is_near = all(_is_near(said, due) for _, said, due in different)
            for path, said, due in different[:1]:
                detail = f"it says {path} = {_short(said)}, and it is {_short(due)}"
                more = f" ({len(different)} values differ)" if len(different) > 1 else ""
                rule = "run.rounding" if is_near else "record.disagrees"
                self.depart(rule, f"{detail}{more}", Evidence(other.round))
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
        said, due = (sha256(one.bundle.read_bytes()).hexdigest() for one in (theirs, ours))
        if said != due:
            detail = f"{theirs.bundle.name} has SHA-256 {said}, and a run writes {due}"
            self.depart("record.disagrees", detail, Evidence())


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


def _is_near(said: object, due: object) -> bool:
    """Whether two numbers differ as much as processors do."""
    is_float = isinstance(said, float) and isinstance(due, float)
    return is_float and math.isclose(said, due, rel_tol=_ROUNDING, abs_tol=_ROUNDING)  # type: ignore[arg-type]


def _short(value: object) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
