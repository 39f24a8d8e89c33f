"""A run played again: the real engine, given what the rounds of its record came to.

Nobody trains. The engine draws the cohorts, its strategy announces, and takes from the record what
its rounds came to. What it writes must then be what the record says: the events but for times, the
evaluations, and the state in the end.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from deltafl.fl.cohort import Cohort, SecureRoundResult, Weighing
from deltafl.fl.local import LocalTraining
from deltafl.fl.metrics import Summary
from deltafl.fl.registry import OWN
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import LostSearch
from deltafl.secagg.session import Observer
from deltafl.secagg.states import Stage
from deltafl.sim.cohort.backends.choice import choose, open_backend
from deltafl.sim.cohort.hardware import choose_device
from deltafl.sim.cohort.masked import as_bytes
from deltafl.sim.cohort.sampling import lost_outcomes
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.rounds_again import Kept
from deltafl.sim.inspect.audit.server_replay import Departure
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.evaluations import Evaluation, read_evaluations
from deltafl.sim.record.events import Event, read_events, to_json
from deltafl.sim.record.record import Record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import INTERRUPTED
from deltafl.sim.record.truth import Told
from deltafl.sim.run.algorithms import dropouts_of, sessions_of
from deltafl.sim.run.drawing import Lying
from deltafl.sim.run.engine import Stop, play
from deltafl.sim.run.simulated import SimulatedDevices, SimulatedPopulation, spec_of
from deltafl.sim.run.summary import DataSize, summarise_experiment, summarise_run
from deltafl.sim.settings.config import REMOTE, RunConfig

_TIMES: Final = frozenset({"train_cpu_s", "protocol_cpu_s", "wall_s", "stage_s"})
"""Of an event: what no replay can have as well."""

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
    """

    config: RunConfig
    kept: Mapping[int, Kept]
    departures: list[Departure] = field(default_factory=list)
    rounds: int = 0

    def compare(self, theirs: Record) -> None:
        """Play the run, and compare what it writes with a record.

        Raises:
            Unplayable: it cannot be played again.
        """
        config = self.config
        if OWN in (config.model.name, config.training.loss, config.federation.algorithm):
            raise Unplayable("it has code of its owner's own, which an audit does not run")
        if config.federation.devices == REMOTE:
            raise Unplayable("its devices are machines, and their data are not here")
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            try:
                data = build_dataset(config.data)
                spec = spec_of(config, data)
                choice = choose(config.training, config.model.name, 1.0)
                backend = open_backend(choice, spec, device=choose_device(config.training.device))
            except UserError as error:
                raise Unplayable(str(error)) from error
            stack.enter_context(contextlib.closing(backend))
            directory = RunDirectory(Path(folder) / "again")
            quiet = replace(config, privacy=replace(config.privacy, truth=False))
            ours = stack.enter_context(directory.claim(quiet, resume=False))
            population = _Population(data, backend, None, self)
            with contextlib.suppress(Stop):
                play(quiet, directory, ours, population, _Silent())
            self._events(read_events(theirs), read_events(ours))
            self._evaluations(list(read_evaluations(theirs)), list(read_evaluations(ours)))
            self._state(theirs, ours)

    def depart(self, rule: str, detail: str, place: Evidence) -> None:
        """Note what is otherwise."""
        self.departures.append(Departure(rule, detail, place))

    def _events(self, theirs: Sequence[Event], ours: Sequence[Event]) -> None:
        for one, other in zip(theirs, ours, strict=False):
            number = other["round"]
            place = Evidence(number if isinstance(number, int) else None)
            for name in sorted({*one, *other} - _TIMES):
                if (said := one.get(name)) != (due := other.get(name)):
                    detail = f"the event of round {number} says {name} = {_short(said)}"
                    self.depart("record.disagrees", f"{detail}, and it is {_short(due)}", place)
        if len(theirs) != len(ours) and self.rounds == len(self.kept):
            detail = f"it has {len(theirs)} events, and a run has {len(ours)}"
            self.depart("record.disagrees", detail, Evidence())

    def _evaluations(self, theirs: Sequence[Evaluation], ours: Sequence[Evaluation]) -> None:
        for one, other in zip(theirs, ours, strict=False):
            for side, due in other.sides.items():
                said = one.sides[side]
                different = [(a, b) for a, b in zip(said, due, strict=False) if a != b]
                if different or len(said) != len(due) or one.round != other.round:
                    such = f", such as {different[0][0]} for {different[0][1]}" if different else ""
                    detail = (
                        f"the evaluation after round {other.round} says something else of "
                        f"{len(different)} of {len(due)} {side} devices{such}"
                    )
                    self.depart("record.disagrees", detail, Evidence(other.round))

    def _state(self, theirs: Record, ours: Record) -> None:
        said, due = load_checkpoint(theirs), load_checkpoint(ours)
        if said is None or due is None or said.state.round != due.state.round:
            return
        one = {"model": said.state.model, **said.state.memory}
        other = {"model": due.state.model, **due.state.memory}
        for name, array in other.items():
            if name not in one or one[name].tobytes() != array.tobytes():
                detail = f"{name} after round {said.state.round} does not follow from the sums"
                self.depart("record.disagrees", detail, Evidence(said.state.round))
        if said.state.eta != due.state.eta:
            detail = f"the last threshold is {said.state.eta}, and it was {due.state.eta}"
            self.depart("record.disagrees", detail, Evidence(said.state.round))


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
        replay.rounds += 1
        for rule, detail in _in_announcement(kept, levels, models, replay.config, self.index):
            replay.depart(rule, detail, kept.place)
        plan = dropouts_of(replay.config)(self.index, list(self.sizes), len(levels.slots()))
        for device, step in kept.silent.items():
            if step.stage is not Stage.ADVERTISE and (
                device not in plan or plan[device].answers(step)
            ):
                detail = f"device {device} did not answer at {step}, and drops out at no such step"
                replay.depart("answers.vanished", detail, kept.place)
        if kept.is_interrupted:
            return SecureRoundResult(lost_outcomes(levels, kept.slots, INTERRUPTED), None)
        if kept.outcomes is None:
            raise Stop
        return SecureRoundResult(kept.outcomes, kept.received / len(kept.cohort))


def _in_announcement(
    kept: Kept, levels: Levels, models: Sequence[Vector], config: RunConfig, index: int
) -> Iterator[tuple[str, str]]:
    """What of a round's announcement does not follow from settings and sums."""
    if kept.announced is None:
        return
    if kept.announced.models != (data := as_bytes(models)):
        rule = "model.first-differs" if index == 0 else "model.unfounded"
        yield rule, f"round {index + 1} was announced with another model than the sums lead to"
    if kept.announced.levels != levels:
        yield "record.disagrees", f"round {index + 1} was announced with other settings"
    seed = Seeds(config.experiment.seed).digest(Purpose.GRAPH, round_index=index)
    if kept.params != sessions_of(config).params_of_levels(levels, data, seed):
        yield "record.disagrees", f"the session of round {index + 1} has other parameters"


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
    for name in sorted(due.keys() | said.keys() - {_MEMORY}):
        if (value := due.get(name)) != said.get(name):
            detail = f"the summary says {name} = {_short(said.get(name))}"
            yield f"{detail}, and it is {_short(value)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
