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
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias, cast

import numpy as np
import torch

from deltafl.fl.bundle import Stored, read_stored
from deltafl.fl.data.registry import FORMATS
from deltafl.fl.errors import DataError
from deltafl.fl.registry import OWN
from deltafl.fl.vectors import Vector
from deltafl.secagg.states import Stage
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.cohort.backends.choice import Choice, open_backend
from deltafl.sim.cohort.hardware import usable_cores
from deltafl.sim.data.dataset import dataset_digest
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.replayed_devices import ReplayedDevices, is_near
from deltafl.sim.inspect.audit.rounds_again import Kept
from deltafl.sim.record.checkpoint import read_arrays, read_checkpoint
from deltafl.sim.record.evaluations import Evaluation, read_evaluations
from deltafl.sim.record.events import Event, read_events, to_json
from deltafl.sim.record.record import OF_STATE, SUMMARY, VERSIONS, Record, saved_rounds
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.versions import NAMES_OF_VERSIONS, versions_now
from deltafl.sim.run.engine import Stop, play
from deltafl.sim.run.experiment import Subject, origin_of, subject_of, write_bundle
from deltafl.sim.run.progress import Several
from deltafl.sim.run.simulated import SimulatedDevices, first_model
from deltafl.sim.run.summary import DataSize, summarise_experiment, summarise_run
from deltafl.sim.settings.config import PRIVATE, REFERENCE, RunConfig

_TIMES: Final = frozenset({"train_cpu_s", "protocol_cpu_s", "wall_s"})
"""Of an event: what no replay can have as well, beside the times of each stage."""

_STAGES: Final = frozenset(stage.name.lower() for stage in Stage)
_LONGEST_S: Final = 1e9

_MEMORY: Final = "peak_memory_mb"  # of a summary, likewise
_ABOUT: Final = ("data", "data_sha256", "scaled", "bytes")  # of a bundle, where the data are not

_Row: TypeAlias = Event | Evaluation


class Unplayable(Exception):
    """Why a run cannot be played again, one phrase."""


@dataclass(slots=True, eq=False)
class RunReplay(ReplayedDevices):
    """A run played again, with its devices.

    Attributes:
        data: Where its data are, if the auditor says so.
        passed_over: What was not compared, phrases.
    """

    data: Path | None = None
    passed_over: list[str] = field(default_factory=list)
    _is_finished: bool = False

    def compare(self, theirs: Record) -> None:
        """Play the run, and compare what it writes with a record.

        Raises:
            Unplayable: it cannot be played again.
            UserError: what it says of itself cannot be read.
        """
        config, there = self.config, RunDirectory(theirs.path.parent)
        if config.federation.algorithm in (OWN, PRIVATE + OWN):
            raise Unplayable("its strategy is its owner's own code, which an audit does not run")
        self._is_finished = theirs.json(SUMMARY) is not None
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            subject, stored = self._subject(), self._stored(there)
            spec = subject.spec(config) if subject else self._spec(stored)
            versions, model = self._versions(theirs, subject, spec), self._first(spec)
            self.number = len(subject.dataset.train) if subject else self._number(theirs)
            self.measuring = self._measuring(subject, versions, stack)
            here = RunDirectory(Path(folder) / "again")
            quiet = replace(config, privacy=replace(config.privacy, truth=False))
            ours = stack.enter_context(here.claim(quiet, resume=False))
            self._play(partial(play, quiet, here, ours, self, Several(()), model=model))
            self._written(theirs, ours, is_measured=bool(subject) or self.is_remote)
            saved = saved_rounds(theirs)
            if not saved or saved != saved_rounds(ours) or stored is None or spec is None:
                return
            origin = {name: stored.provenance[name] for name in _ABOUT if name in stored.provenance}
            scale = stored.scale
            if subject:
                scale, origin = subject.dataset.scale, origin_of(subject.dataset, versions)
            write_bundle(config, here, ours, spec, scale, origin)
            one, other = (sha256(each.bundle.read_bytes()).hexdigest() for each in (there, here))
            self._compare(f"SHA-256 of {there.bundle.name}", one, other)

    def compare_summary(self, directory: RunDirectory, arms: Sequence[RunConfig]) -> None:
        """Compare the summary of a finished experiment with the records of its runs.

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
        for arm, own in directory.runs(arms):
            with own.read() as record:
                runs.append(summarise_run(arm, record, of_data))
        due = json.loads(json.dumps(to_json(summarise_experiment(runs))))
        unknown = {_MEMORY: said[_MEMORY]} if _MEMORY in said else {}
        self._compare("summary", said, due | unknown)

    def _play(self, go_on: Callable[[], None]) -> None:
        """Play as far as the record goes; a run that gave up may have been resumed."""
        before = -1
        with contextlib.suppress(Stop):
            while before < self.rounds:
                before = self.rounds
                with contextlib.suppress(RunError):
                    go_on()
        if self.untold:
            self.passed_over.append(
                "why all devices that were left fell silent at once: without a truth file, nobody "
                f"can tell whether they refused (rounds {sorted(self.untold)})"
            )

    def _subject(self) -> Subject | None:
        """What was trained on which data; None unless both can be had without the run's files."""
        config, data = self.config, self.config.data
        parts = config.model.name, config.training.loss, config.training.optimizer
        name = data.source if data.format == "auto" else data.format
        is_made = name in FORMATS and not FORMATS[name].needs
        if self.is_remote:
            why = (
                "devices on machines: what they draw, whether they could have answered, and what "
                "they were told beside messages, which the graph's seed is a digest of"
            )
        elif OWN in parts or config.own.paths:
            why = "evaluations: they take its owner's own code, which is not run"
        elif data.vectors or not (is_made or self.data):
            why = (
                f"evaluations: the data are in {data.source!r}, and no file is opened because a "
                "record names it (--data)"
            )
        else:
            source = str(self.data) if self.data and not is_made else data.source
            data = replace(data, source=source)
            try:
                return subject_of(replace(config, data=data)).suited(config)
            except (UserError, DataError) as error:
                why = f"evaluations: {error}"
        self.passed_over.append(why)
        return None

    def _stored(self, there: RunDirectory) -> Stored | None:
        """The models that a finished run hands on, with the shapes of what they take."""
        if not self._is_finished and not there.bundle.exists():
            return None
        try:
            return read_stored(there.bundle)
        except DataError as error:
            self.depart("record.disagrees", str(error))
            return None

    def _spec(self, stored: Stored | None) -> ModelSpec | None:
        """The model with the shapes of data that are not here, if it can be built."""
        name = self.config.model.name
        if stored is None or name == OWN or stored.architecture.embedding_sha256 is not None:
            return None
        return ModelSpec(name, stored.architecture.input_shape, stored.architecture.num_classes)

    def _number(self, theirs: Record) -> int | None:
        """How many simulated devices train, by the first evaluation; None if that does not say."""
        if self.is_remote or self.config.attackers.lie:
            return None
        first = next(read_evaluations(theirs), None)
        return None if first is None else len(first.train)

    def _versions(
        self, theirs: Record, subject: Subject | None, spec: ModelSpec | None
    ) -> Mapping[str, object]:
        """What the run says of its software and its data; what is here is compared with it."""
        said = theirs.json(VERSIONS) or {}
        due = {name: said[name] for name in said.keys() & NAMES_OF_VERSIONS}
        if subject is not None:
            due["data_sha256"] = dataset_digest(subject.dataset)
        elif self.is_remote and spec is not None:
            due["data_sha256"] = spec.shapes_sha256
        self._compare("versions", said, due)
        now = versions_now(torch.device("cpu"), {}, str(due.get("data_sha256")))
        others = [one for one in now if str(due.get(one)) != now[one]]
        if others:
            each = ", ".join(f"{one} {due.get(one)!r:.60} ({now[one]} here)" for one in others)
            self.passed_over.append(f"last bits of evaluations: the run says that it had {each}")
        return due

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

    def _first(self, spec: ModelSpec | None) -> Vector:
        """The first model: as it was announced, once it is compared with that of the settings."""
        kept = self.kept.get(1, Kept((), Evidence()))
        shown = np.frombuffer(kept.models(), "<f4").astype(np.float32)
        if spec is None:
            if not shown.size:
                raise Unplayable("nothing says what its first model is")
            self.passed_over.append("the first model: what it is built of is not here")
            return shown
        due = first_model(self.config, spec)
        if not shown.size:
            return due
        rule = "run.rounding" if is_near(shown, due) else "model.first-differs"
        self._compare("rounds[1].models", shown, due, kept.place, rule)
        return shown if shown.shape == due.shape else due

    def _written(self, theirs: Record, ours: Record, *, is_measured: bool) -> None:
        """Compare what is written of rounds."""
        both = theirs, ours
        self._table("events", *(list(map(_untimed, read_events(record))) for record in both))
        for theta in self.config.federation.thetas if is_measured else ():
            self._table("evaluations", *(list(read_evaluations(one, theta)) for one in both))
        for number in sorted({*saved_rounds(theirs)} & {*saved_rounds(ours)}):
            said, due = (_state(record, number) for record in both)
            self._compare(f"checkpoint[{number}]", said, due, Evidence(number))

    def _table(self, what: str, said: Sequence[_Row], due: Sequence[_Row]) -> None:
        """Compare what is there of each round; a run that was stopped may lack the last one."""
        for one, other in zip(said, due, strict=False):
            number = cast(int, other.round if isinstance(other, Evaluation) else other["round"])
            self._compare(f"{what}[{number}]", one, other, Evidence(number))
        is_whole = all(one.outcomes or one.is_interrupted for one in self.kept.values())
        may_lack = 0 if self._is_finished else 1
        if is_whole and not 0 <= len(due) - len(said) <= may_lack:
            self._compare(f"the number of {what}", len(said), len(due))


def _state(record: Record, number: int) -> Mapping[str, object]:
    """What is saved of a round; in place of a mark of the record, whether it is one."""
    mark = read_checkpoint(record, number).mark
    is_mark = record.chain.mark_at(mark.num_frames) == mark  # times are in the record, too
    arrays = read_arrays(record, f"{OF_STATE}{number}")
    return {**arrays, "record_rows": None, "record_digest": is_mark}


def _untimed(event: Event) -> Event:
    """An event without what no replay can have as well."""
    return {name: "a time" if _is_time(name, value) else value for name, value in event.items()}


def _is_time(name: str, value: object) -> bool:
    """Whether it can be a time in seconds, or one for each stage."""
    if name == "stage_s":
        return isinstance(value, dict) and value.keys() <= _STAGES
    return name in _TIMES and type(value) in (int, float) and 0 <= value <= _LONGEST_S  # type: ignore[operator]
