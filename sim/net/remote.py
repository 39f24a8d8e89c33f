"""The devices of a run that are machines of their own, as the engine asks them.

A round is that of a simulation (`deltafl.sim.cohort.masked`), but for who carries the messages: the
same machine of the server, the same parameters but for the seed of the graph, which binds the
session to all that devices are told of the round (`frames.Task`). So a federation and a simulation
with the same cohorts, data, seeds and drop-outs come to the same model, bit for bit.

The server waits for each trip's answers up to a deadline (`deadlines`). Who is silent by then is
lost, and the round goes on without it. What arrives later is recorded and handed to the machine,
which knows that it is late.

A round outlives the server's process (`journal`): the next one goes on where it was. Nothing is
known of durations then, so devices have the longest time to come back.
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from threading import Event
from typing import Final

import numpy as np

from deltafl.fl.cohort import Cohort, SecureRoundResult, Weighing
from deltafl.fl.local import LocalTraining
from deltafl.fl.strategies.masked import InUnits
from deltafl.fl.vectors import Vector, vector_sha256
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.levels import Levels
from deltafl.protocol.round import LostSearch, RoundOutcome
from deltafl.protocol.server import RoundServer
from deltafl.secagg import ClientId, SessionParams, TrustedKeys
from deltafl.secagg.errors import SecAggError, UsageError
from deltafl.secagg.outgoing import Outgoing
from deltafl.secagg.primitives import PLAIN, Primitives, pairwise_with
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.session import Observer
from deltafl.secagg.stages import Step
from deltafl.sim.cohort.backends.base import CpuClock, ModelSpec
from deltafl.sim.cohort.masked import as_bytes, round_server
from deltafl.sim.cohort.masks.choice import masks_of_this_machine
from deltafl.sim.cohort.sampling import Indices
from deltafl.sim.errors import ChainError, RunError
from deltafl.sim.net.deadlines import Deadlines, Waiting
from deltafl.sim.net.frames import Carry, Reason, Task, encode
from deltafl.sim.net.journal import TRAINS, About, Journal, is_kept
from deltafl.sim.net.measuring import SummedMetrics, marked, measuring_levels, summed
from deltafl.sim.net.post import Answer, Clock, Post
from deltafl.sim.record.rundir import read_json, write_json
from deltafl.sim.record.transcript import (
    INTERRUPTED,
    TRANSCRIPT,
    BegunRound,
    TranscriptWriter,
    read_beyond,
)
from deltafl.sim.record.truth import Told
from deltafl.sim.run.algorithms import sessions_of
from deltafl.sim.run.engine import Stop
from deltafl.sim.run.population import Lying
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import to_toml

_MODEL: Final = "model_sha256"  # of what was measured


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """All that the server of a federation has beside its settings.

    Attributes:
        post: the exchange with the connections.
        devices: the federation's list.
        clock: tells the time.
        waiting: how deadlines are set.
        patience: seconds to wait until enough devices are connected.
        gathering: seconds to wait until all are, before each round; fewer will do afterwards.
        randomness: where the names of tasks come from.
        journal: where to keep what was received in the current round; None to keep nothing, so that
            a round ends with the process.
        stop: set when no further round is to begin.
        records: where to keep what is measured, and the messages by which it was; None to measure
            nothing.
        measured: told of all that is.
        declined: told of each device that does not go on with a round, and why.
        stage: told of each trip as it begins: the round's machine, and how many are asked.
        beside: a digest of what devices are told of a round in another way (`frames.Task`).
        note: told what becomes of a round of an earlier process, in a sentence.
    """

    post: Post
    devices: TrustedKeys
    clock: Clock
    waiting: Waiting = field(default_factory=Waiting)
    patience: float = 3600.0
    gathering: float = 0.0
    randomness: Randomness = system_randomness
    journal: Path | None = None
    stop: Event = field(default_factory=Event)
    records: Path | None = None
    measured: Callable[[SummedMetrics], None] = lambda _sums: None
    declined: Callable[[ClientId, Reason], None] = lambda _client, _reason: None
    stage: Callable[[RoundServer, int], None] = lambda _server, _asked: None
    beside: Callable[[], bytes] = bytes
    note: Callable[[str], None] = lambda _sentence: None

    def about(self, round_index: int, cohort: Iterable[int], level: int = TRAINS) -> About:
        """What the journal of a round says of it."""
        listed = self.devices.fingerprint()
        return About(round_index, tuple(cohort), listed, metadata.version("deltafl"), level)


@dataclass(frozen=True, slots=True, eq=False)
class RemotePopulation:
    """All devices on a federation's list; a `Population`.

    Attributes:
        site: where they connect.
        shapes: the model of the settings, with the shapes of the devices' data.
    """

    site: Site
    shapes: ModelSpec

    @property
    def num_devices(self) -> int:
        """One more than the largest id on the list."""
        return max(self.site.devices.keys, default=-1) + 1

    def spec(self, config: RunConfig) -> ModelSpec:
        """The model; see `Population`."""
        return replace(self.shapes, name=config.model.name)

    def of_run(self, config: RunConfig, observer: Observer) -> "RemoteDevices":
        """The devices of one run; see `Population`."""
        return RemoteDevices(config, self.site, observer)

    def keeps(self, begun: BegunRound) -> bool:
        """Whether the journal has all of the round; see `Population`."""
        journal = self.site.journal
        if journal is None:
            return False
        if is_kept(journal, self.site.about(begun.round - 1, begun.cohort)):
            self.site.note(f"round {begun.round} goes on where it was")
            return True
        self.site.note(
            f"round {begun.round} is given up: {journal} is missing or damaged, or the list of "
            "devices or the version of deltafl is another"
        )
        journal.unlink(missing_ok=True)
        return False


class RemoteDevices:
    """The devices of one run; see `population.Devices`.

    Args:
        config: the settings of one run.
        site: where they connect.
        observer: sees all messages of secure rounds.
    """

    def __init__(self, config: RunConfig, site: Site, observer: Observer) -> None:
        self._site = site
        self.clock = CpuClock()
        masks = masks_of_this_machine(config.training.device)
        primitives = replace(PLAIN, add_masks=masks.add, add_pairwise=pairwise_with(masks.add))
        self._rounds = _Rounds(config, site, observer, primitives, Deadlines(site.waiting))
        # devices that measure are sooner done than those that train
        self._measuring = replace(self._rounds, deadlines=Deadlines(site.waiting))
        self._measured: dict[int, object] = {}  # by level: the model that was measured last
        self._journal: Journal | None = None  # of the round that began last

    @property
    def attackers(self) -> None:
        """Nobody knows who of them lies."""
        return

    @property
    def to_lose_fewer(self) -> str:
        """They are lost because they are late, killed, or cut off."""
        return (
            "see why devices were lost or declined, wait longer for them (--least-wait, "
            "--most-wait, --gather)"
        )

    def num_others(self, without: AbstractSet[int]) -> int:
        """Those on the list; see `population.Devices`."""
        return len(self._site.devices.keys.keys() - without)

    def present(self, size: int, without: AbstractSet[int], hoped: int = 0) -> Indices:
        """Devices that are connected, once they are enough; see `population.Devices`.

        Raises:
            Stop: no further round is to begin.
            RunError: too few are connected for too long.
        """
        connected = self._connected(size, without, hoped)
        if self._site.stop.is_set():
            raise Stop
        return connected

    def _connected(self, size: int, without: AbstractSet[int], hoped: int = 0) -> Indices:
        """The same, also if no further round is to begin, once they are enough."""
        site, listed = self._site, self._site.devices.keys
        wanted = min(size, len(listed.keys() - without))

        def enough(connected: frozenset[ClientId], wanted: int = wanted) -> bool:
            return len((connected & listed.keys()) - without) >= wanted

        if site.gathering:
            site.post.wait_for(listed.keys().__le__, site.gathering, site.stop)
        if hoped:
            site.post.wait_for(partial(enough, wanted=hoped), site.waiting.least, site.stop)
        connected = site.post.wait_for(enough, site.patience, site.stop)
        if not enough(connected):
            if site.stop.is_set():
                raise Stop
            raise RunError(
                f"gave up: of the {wanted} devices that the next round needs, "
                f"{len((connected & listed.keys()) - without)} were connected after "
                f"{site.patience:g} s; start more devices, then resume"
            )
        return np.array(sorted((connected & listed.keys()) - without), np.int64)

    def begin(self, ids: Sequence[int], round_index: int) -> None:
        """Bring the round to the journal, or go on with it from there; see `population.Devices`."""
        self._journal = self._opened(self._site.about(round_index, ids))

    def _opened(self, about: About) -> Journal:
        return Journal(self._site.journal, about, self._site.randomness)

    def cohort(
        self,
        ids: Sequence[int],
        round_index: int,
        training: LocalTraining,
        told: Told | None,
        lying: Lying | None = None,
        lost: Sequence[LostSearch] = (),
    ) -> "RemoteCohort":
        """Some of them; see `population.Devices`. They find out themselves how to train."""
        del training, told, lying
        cohort = tuple(map(ClientId, ids))
        return RemoteCohort(cohort, round_index, self._rounds, self._journal, lost)

    def of_round(self, ids: Sequence[ClientId], round_index: int) -> "RemoteCohort":
        """Some of them, ascending, for a round that is counted from 0."""
        self.begin(ids, round_index)
        return RemoteCohort(ids, round_index, self._rounds, self._journal)

    def forget(self) -> None:
        """Nothing: a device drops by itself what is not needed."""

    def evaluate(self, models: Sequence[Vector], round_number: int) -> None:
        """Have all connected devices measure the models; see `measuring` and `population.Devices`.

        What comes out is kept at `Site.records`, each with the messages by which it was learnt.
        What was begun by an earlier process goes on by the journal, or is not begun again, and a
        model that is still the same is not measured again: devices would refuse. What cannot be
        measured is no reason to end the run.

        Raises:
            RunError: too few devices are connected for too long.
        """
        records = self._site.records
        if records is None:
            return
        records.mkdir(parents=True, exist_ok=True)
        for level, model in enumerate(models):
            path = records / f"round-{round_number:06}-level-{level}"
            digest = vector_sha256(model).hex()
            if level not in self._measured:
                self._measured[level] = _last_measured(records, level)
            if path.with_suffix(".json").exists() or self._measured[level] == digest:
                continue
            self._measured[level] = digest
            sums = self._measure(model, round_number, level, path.with_suffix(".bin"))
            write_json(path.with_suffix(".json"), {**sums.as_table(), _MODEL: digest})
            self._site.measured(sums)

    def _measure(self, model: Vector, number: int, level: int, path: Path) -> SummedMetrics:
        """Have a model measured, and record at `path` how.

        If there is a record, an earlier process has asked, and has ended before it knew. Without
        its journal, nobody will.
        """
        config, site = self._rounds.config, self._site

        def nothing(because: str) -> SummedMetrics:
            return SummedMetrics(number, level, 0, 0, None, None, because)

        begun = self._going_on(number, level, path)
        if begun is None and path.exists() and was_begun(path, config.privacy.transcript):
            return nothing(INTERRUPTED)
        asked: Iterable[int] = (
            self._connected(config.federation.cohort_size, frozenset())
            if begun is None
            else begun.cohort
        )
        ids = [ClientId(int(one)) for one in asked]
        announced = as_bytes([marked(model)])
        settings = to_toml(config).encode()
        with closing(self._opened(site.about(number, ids, level))) as journal:
            task = Task(journal.task, number, 0, settings, measures=True)
            try:
                levels = measuring_levels(config, len(ids))
                params = sessions_of(config).params_of_levels(levels, announced, task.graph_seed)
            except (ProtocolError, SecAggError) as error:
                return nothing(str(error))
            mark, kept = (begun.before, begun.sent) if begun else (TRANSCRIPT.start, None)
            with TranscriptWriter(path, config.privacy.transcript, mark, kept=kept) as record:
                record.begin_round(1, ids)
                rounds = replace(self._measuring, observer=record)
                (outcome,), _ = rounds.play(levels, announced, params, ids, task, number, journal)
                record.end_round(outcome.aborted)
                record.finish(1)
                record.flush()
        return summed(outcome, number, level)

    def _going_on(self, number: int, level: int, path: Path) -> BegunRound | None:
        """A measurement that an earlier process began, if the journal has it all."""
        journal, site = self._site.journal, self._site
        if journal is None or not path.exists():
            return None
        try:
            rounds = read_beyond(path, TRANSCRIPT.start).rounds
        except ChainError:
            return None
        kept = (one for one in rounds if is_kept(journal, site.about(number, one.cohort, level)))
        return next(kept, None)


@dataclass(frozen=True, slots=True, eq=False)
class _Rounds:
    """What the rounds of a run share."""

    config: RunConfig
    site: Site
    observer: Observer
    primitives: Primitives
    deadlines: Deadlines

    def play(
        self,
        levels: Levels,
        models: bytes,
        params: SessionParams,
        ids: Sequence[ClientId],
        task: Task,
        rounds_done: int,
        journal: Journal,
        lost: Sequence[LostSearch] = (),
    ) -> tuple[tuple[RoundOutcome, ...], int]:
        """Play a round with connected devices; its outcomes, and the bytes that all have sent.

        Args:
            levels: what is announced.
            models: `as_bytes` of the levels' models.
            params: of the session.
            ids: the devices, ascending.
            task: what they are told before.
            rounds_done: of the run, once it is over.
            journal: of the round.
            lost: what earlier rounds over the models have revealed.

        Raises:
            RunError: the round goes on, and it is not the recorded one.
        """
        site = self.site
        policy = sessions_of(self.config).policy
        server = round_server(
            levels, models, params, ids, site.devices, self.primitives, policy, lost
        )
        trips = _Trips(server, self, task, journal)
        site.post.begin(task, ids)
        try:
            outgoing = server.start()
            while outgoing:
                outgoing = trips.carry(outgoing)
                if server.revealed is not None:
                    self.observer.revealed(server.revealed)
        except ChainError as error:
            raise RunError(f"{error}; to give the round up, remove {site.journal}") from error
        finally:
            if server.outcomes is not None or site.journal is None:
                site.post.end(rounds_done)  # else devices wait for the process that goes on
        if server.outcomes is None:
            raise RuntimeError("the round stopped without an outcome: this is a bug")
        return server.outcomes, trips.bytes_up


@dataclass(frozen=True, slots=True, eq=False)
class RemoteCohort(Cohort):
    """Some devices, for one round; a `Cohort`.

    Attributes:
        ids: which, ascending.
        round_index: the round, counted from 0.
    """

    ids: Sequence[ClientId]
    round_index: int
    _rounds: _Rounds
    _journal: Journal | None
    _lost: Sequence[LostSearch] = ()

    @property
    def weights(self) -> dict[int, int]:
        """1 for each device: its number of samples is its own business."""
        return dict.fromkeys(self.ids, 1)

    def secure_round(
        self,
        levels: Levels,
        models: Sequence[Vector],
        weighing: Weighing | None = None,
    ) -> SecureRoundResult:
        """Play a round of Algorithm 3; see `Cohort`."""
        config, site = self._rounds.config, self._rounds.site
        unit = weighing.unit if isinstance(weighing, InUnits) else 0
        settings = to_toml(config).encode()
        if self._journal is None:
            raise UsageError("the round has not begun")
        with closing(self._journal) as journal:
            task = Task(journal.task, self.round_index, unit, settings, beside=site.beside())
            joined = as_bytes(models)
            params = sessions_of(config).params_of_levels(levels, joined, task.graph_seed)
            outcomes, bytes_up = self._rounds.play(
                levels, joined, params, self.ids, task, self.round_index + 1, journal, self._lost
            )
        return SecureRoundResult(outcomes, bytes_up / len(self.ids))


def _last_measured(records: Path, level: int) -> object:
    """The model of a level that was measured last, by an earlier process; None if there is none."""
    kept = sorted(records.glob(f"round-*-level-{level}.json"))
    return (read_json(kept[-1]) or {}).get(_MODEL) if kept else None


def was_begun(path: Path, mode: str) -> bool:
    """Whether an earlier process has asked devices, by its record, which is now ended.

    A record that is damaged in another way than by the end of its process stays as it is: the audit
    says what is wrong with it.
    """
    try:
        beyond = read_beyond(path, TRANSCRIPT.start)
    except ChainError:
        return True
    if not beyond.rounds:
        return False
    with TranscriptWriter(path, mode, beyond.mark) as record:
        record.resume(0, beyond.torn)
        record.finish(len(beyond.rounds))
        record.flush()
    return True


class _Trips:
    """Carries the envelopes of one round.

    Attributes:
        bytes_up: What all devices have sent.
    """

    def __init__(self, server: RoundServer, rounds: _Rounds, task: Task, journal: Journal) -> None:
        self.bytes_up = 0
        self._server = server
        self._rounds = rounds
        self._task = task.task
        self._journal = journal
        self._trip = -1

    def carry(self, outgoing: Outgoing) -> Outgoing:
        """Send the server's messages, wait for the answers, close the trip.

        What an earlier process has received comes first; where it has closed the trip, nothing else
        does, and nothing is sent.
        """
        server, journal = self._server, self._journal
        self._trip += 1
        step = server.step
        self._rounds.site.stage(server, len(outgoing))
        is_closed = self._trip < journal.closed
        done = journal.answered if self._trip == journal.closed else frozenset()
        expected = () if is_closed else tuple(c for c in outgoing if c not in done)
        self._send(outgoing, frozenset(expected))
        for answer in journal.again():
            self._take(step, answer)
        if not is_closed:
            self._collect(step, expected)
            journal.close_trip(self._trip)
        with self._rounds.observer.working(None, step):
            return server.close_round()

    def _send(self, outgoing: Outgoing, expected: AbstractSet[ClientId]) -> None:
        """Record all messages, and send those that are still to be answered."""
        observer, framed = self._rounds.observer, (b"", b"")
        for client in outgoing:
            with observer.working(None, self._server.step):
                data = outgoing[client]
            if data is not framed[0]:  # most often, all get the same message
                framed = data, encode(Carry(self._task, self._trip, data))
            observer.message(sent=True, peer=client, data=data)
            if client in expected:
                self._rounds.site.post.send(client, self._trip, framed[1])

    def _collect(self, step: Step, expected: Sequence[ClientId]) -> None:
        """Wait for answers until the deadline."""
        site, deadlines = self._rounds.site, self._rounds.deadlines
        trains = self._server.awaits_updates
        began, taken = site.clock(), list[float]()
        for answer in site.post.answers(expected, deadlines.seconds(step, trains=trains)):
            if answer.declined is not None:
                site.declined(answer.client, answer.declined)
                continue
            taken.append(site.clock() - began)
            self._journal.received(answer)
            self._take(step, answer)
        deadlines.note(step, taken, trains=trains)

    def _take(self, step: Step, answer: Answer) -> None:
        """Hand the machine what a device has sent, once it is written down."""
        self.bytes_up += len(answer.data)
        observer = self._rounds.observer
        observer.message(sent=False, peer=answer.client, data=answer.data)
        with observer.working(None, step):
            self._server.receive(answer.client, answer.data)
