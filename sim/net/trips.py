"""The trips of a federation's round: messages to the devices, their answers, how long to wait.

A device that has not answered by the deadline counts as lost, and the round goes on without it.
What arrives later is recorded and handed to the machine, which knows that it is late. The deadline
of a stage follows from how long devices took for it lately: some times as long as nine in ten of
those that were in time. So a few that are slow, or that answer as late as they may, do not make
everybody wait for them. It never falls below a minimum, because a network hesitates now and then,
and never exceeds the limit that also holds before anything is known.

Everything a device does takes the same time whatever its data, as far as it can (`own_work`), so
deadlines tell the server nothing that it would not see anyway.

A round outlives the server's process: the next one goes on where it was. Nothing is known of
durations then, so devices have the longest time to come back. The machine of a round's server has
no randomness and no clock: what it sends follows from what it was handed. So each message of a
device is in the run's record before the machine gets it, and the end of each trip is on the disk
before anything is sent that follows from it. A process that is started after another has ended
hands the same messages to a new machine, which comes to the same place, and asks nobody anything
else than what was asked before.
"""

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from threading import Event
from typing import Final, TypeAlias

from deltafl.protocol.levels import Levels
from deltafl.protocol.round import LostSearch, RoundOutcome
from deltafl.protocol.server import RoundServer
from deltafl.secagg import ClientId, FirstUse, SessionParams, TrustedKeys
from deltafl.secagg.messages import Outgoing
from deltafl.secagg.primitives import Primitives
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.session import Observer
from deltafl.secagg.states import Stage, Step
from deltafl.sim.errors import ChainError, RunError
from deltafl.sim.net.frames import TASK_SIZE, Carry, Reason, Task, encode
from deltafl.sim.net.identities import DeviceList
from deltafl.sim.net.own_work import SummedMetrics
from deltafl.sim.net.post import Answer, Post
from deltafl.sim.net.serve_flags import LEAST_WAIT_S, MOST_WAIT_S
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.record import Record
from deltafl.sim.record.transcript import Closed, Message, TranscriptWriter, read_rows, with_bytes
from deltafl.sim.run.algorithms import sessions_of
from deltafl.sim.settings.config import RunConfig

TRAINS: Final = -1
"""In place of a level, of a round in which devices train."""

_ABOUT: Final = "round"  # what the record says of the round that is under way


About: TypeAlias = Mapping[str, object]
"""What a round is about, JSON (`Site.about`): another one is not gone on with."""


class Journal:
    """What a record holds of the round under way, whose devices outlive the server's process.

    Args:
        record: writes it; None to keep nothing.
        about: the round.
        randomness: where the name of a new task comes from.
        mark: where the rows of the round begin that an earlier process has made; None of a new one.

    Attributes:
        task: the name of the round's task, `TASK_SIZE` bytes.
        closed: how many trips an earlier process has closed.
        answered: who had answered the one that was open.
    """

    def __init__(
        self,
        record: TranscriptWriter | None,
        about: About,
        randomness: Randomness,
        mark: Mark | None = None,
    ) -> None:
        self._record, self._trips = record, deque[list[Message]]()
        self.closed, self.answered = 0, frozenset[ClientId]()
        known = None if record is None or mark is None else self.task_in(record.record, about)
        self.task = randomness(TASK_SIZE) if known is None else known
        if record is None:
            return
        if known is None or mark is None:
            record.record.note(_ABOUT, {**about, "task": self.task.hex()})
            return
        self._trips.append([])
        for row in read_rows(record.record, mark):
            if isinstance(row, Closed):
                self._trips.append([])
            elif isinstance(row, Message) and not row.sent:
                self._trips[-1].append(row)
        self.closed = len(self._trips) - 1
        last = (row for row in self._trips[-1] if row.trip == self.closed)
        self.answered = frozenset(ClientId(row.peer) for row in last)

    @staticmethod
    def task_in(record: Record, about: About) -> bytes | None:
        """The name of a round's task, if a record has it and it can be gone on with."""
        said = record.json(_ABOUT) or {}
        task = said.pop("task", None)
        if said != about or not isinstance(task, str):
            return None
        return bytes.fromhex(task) if re.fullmatch(f"[0-9a-f]{{{2 * TASK_SIZE}}}", task) else None

    def again(self) -> Iterator[Answer]:
        """What an earlier process has received in the next trip, in its order."""
        record = self._record
        if record is None or not self._trips:
            return
        for row in self._trips.popleft():
            data = with_bytes(record.record, row).head
            yield Answer(ClientId(row.peer), data, trip=row.trip)

    def takes(self, answer: Answer) -> None:
        """Say which trip a message answers that is recorded next."""
        if self._record is not None:
            self._record.answers = answer.trip

    def keep(self) -> None:
        """Keep what is recorded, whenever this process ends."""
        if self._record is not None:
            self._record.record.keep()


_REMEMBERED: Final = 8  # trips of a stage
_COUNTED: Final = 0.9  # of the devices that were in time


@dataclass(frozen=True, slots=True)
class Waiting:
    """How deadlines are set.

    Attributes:
        most: seconds, before anything is known and at most.
        least: seconds, at least.
        factor: how many times as long as nine in ten devices took of late.
    """

    most: float = MOST_WAIT_S
    least: float = LEAST_WAIT_S
    factor: float = 4.0

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.most:
            raise ValueError(f"least={self.least} is not above 0 and at most most={self.most}")
        if self.factor < 1:
            raise ValueError(f"factor={self.factor} is less than 1")


@dataclass(slots=True)
class Deadlines:
    """What is known of the stages' durations.

    Attributes:
        waiting: how deadlines are set.
    """

    waiting: Waiting
    _taken: dict[tuple[Stage, bool], deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_REMEMBERED))
    )

    def seconds(self, step: Step, *, trains: bool) -> float:
        """How long to wait for the answers of a step.

        Args:
            step: the message that is due.
            trains: whether devices may have to train first.
        """
        waiting = self.waiting
        if taken := self._taken.get((step.stage, trains)):
            expected = waiting.factor * max(taken)
        elif others := [max(known) for (_, trained), known in self._taken.items() if not trained]:
            expected = math.inf if trains else waiting.factor**2 * max(others)
        else:
            expected = math.inf
        return min(waiting.most, max(waiting.least, expected))

    def note(self, step: Step, taken: Sequence[float], *, trains: bool) -> None:
        """Devices that answered in time took so many seconds, ascending; nobody is nothing new."""
        if taken:
            self._taken[step.stage, trains].append(taken[math.ceil(_COUNTED * len(taken)) - 1])


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """All that the server of a federation has beside its settings.

    Attributes:
        post: the exchange with the connections.
        devices: the federation's list; an empty one if each node has a new identity in each round.
        clock: tells the time.
        waiting: how deadlines are set.
        patience: seconds to wait until enough devices are connected.
        gathering: seconds to wait until all are, before each round; fewer will do afterwards.
        randomness: where the names of tasks come from.
        record: the run's, by which a round that was begun goes on; None to keep nothing, so that a
            round ends with the process.
        stop: set when no further round is to begin.
        again: reads the list anew where that was asked for; called between rounds only, because a
            round that loses a device may be lost, and not be repeated without it.
        records: where to keep what is measured, and the messages by which it was; None to measure
            nothing.
        measured: told of all that is.
        declined: told of each device that does not go on with a round, why, and its detail.
        late: told of each device that has not answered in time.
        taken: told of the seconds that the devices in time have taken for a stage, ascending.
        stage: told of each trip as it begins: the round's machine, and how many are asked.
        beside: a digest of what devices are told of a round in another way (`frames.Task`).
        note: told what becomes of a round of an earlier process, in a sentence.
    """

    post: Post
    devices: TrustedKeys | DeviceList
    clock: Callable[[], float]
    waiting: Waiting = field(default_factory=Waiting)
    patience: float = 3600.0
    gathering: float = 0.0
    randomness: Randomness = system_randomness
    record: Record | None = None
    stop: Event = field(default_factory=Event)
    again: Callable[[], None] = lambda: None
    records: Path | None = None
    measured: Callable[[SummedMetrics], None] = lambda _sums: None
    declined: Callable[[ClientId, Reason, str], None] = lambda _client, _reason, _detail: None
    late: Callable[[ClientId], None] = lambda _client: None
    taken: Callable[[Stage, Sequence[float]], None] = lambda _stage, _seconds: None
    stage: Callable[[RoundServer, int], None] = lambda _server, _asked: None
    beside: Callable[[], bytes] = bytes
    note: Callable[[str], None] = lambda _sentence: None

    def about(self, round_index: int, cohort: Iterable[int], level: int = TRAINS) -> About:
        """What a round is about.

        Args:
            round_index: the round, counted from 0.
            cohort: its devices, ascending.
            level: the conformity level whose model is measured; `TRAINS` where devices train.
        """
        told = {"round_index": round_index, "cohort": list(cohort), "level": level}
        # another version may have other messages, and another list other keys
        program, listed = metadata.version("deltafl"), self.devices.fingerprint()
        return {**told, "listed": listed, "program": program}


@dataclass(slots=True, eq=False)
class Rounds:
    """What the rounds of a run share."""

    config: RunConfig
    site: Site
    observer: Observer
    primitives: Primitives
    deadlines: Deadlines = field(init=False)

    def __post_init__(self) -> None:
        self.deadlines = Deadlines(self.site.waiting)

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
        keeps = sessions_of(self.config).policy.expects_active
        directory = site.devices if site.devices.keys else FirstUse()
        about = levels, models, params, ids, directory, self.primitives
        server = RoundServer(*about, keeps_cohort=keeps, lost=lost)
        trips = _Trips(server, self, task, journal)
        site.post.begin(task, ids)
        try:
            outgoing = server.start()
            while outgoing:
                outgoing = trips.carry(outgoing)
                if server.revealed is not None:
                    self.observer.revealed(server.revealed)
        except ChainError as error:
            raise RunError(
                f"{error}; to give the round up, delete what the record says of it, the name "
                f"{_ABOUT!r} of the table `about`"
            ) from error
        finally:
            if server.outcomes is not None or site.record is None:
                site.post.end(rounds_done)  # else devices wait for the process that goes on
        if server.outcomes is None:
            raise RuntimeError("the round stopped without an outcome: this is a bug")
        return server.outcomes, trips.bytes_up


class _Trips:
    """Carries the envelopes of one round.

    Attributes:
        bytes_up: What all devices have sent.
    """

    def __init__(self, server: RoundServer, rounds: Rounds, task: Task, journal: Journal) -> None:
        self.bytes_up, self._trip = 0, -1
        self._server, self._rounds = server, rounds
        self._task, self._journal = task.task, journal

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
        with self._rounds.observer.working(None, step):
            following = server.close_round()
        self._rounds.observer.closed()
        return following

    def _send(self, outgoing: Outgoing, expected: AbstractSet[ClientId]) -> None:
        """Record all messages, and send those that are still to be answered."""
        observer, framed = self._rounds.observer, (b"", b"")
        due: list[tuple[ClientId, bytes]] = []
        for client in outgoing:
            with observer.working(None, self._server.step):
                data = outgoing[client]
            if data is not framed[0]:  # most often, all get the same message
                framed = data, encode(Carry(self._task, self._trip, data))
            observer.message(sent=True, peer=client, data=data)
            if client in expected:
                due.append((client, framed[1]))
        self._journal.keep()
        for client, frame in due:
            self._rounds.site.post.send(client, self._trip, frame)

    def _collect(self, step: Step, expected: Sequence[ClientId]) -> None:
        """Wait for answers until the deadline."""
        site, deadlines = self._rounds.site, self._rounds.deadlines
        trains = self._server.awaits_updates
        began, taken = site.clock(), list[float]()
        for answer in site.post.answers(expected, deadlines.seconds(step, trains=trains)):
            if answer.declined is not None:
                site.declined(answer.client, answer.declined, answer.detail)
                continue
            taken.append(site.clock() - began)
            self._take(step, answer)
        for client in site.post.silent(expected):
            site.late(client)
        deadlines.note(step, taken, trains=trains)
        site.taken(step.stage, taken)

    def _take(self, step: Step, answer: Answer) -> None:
        """Hand the machine what a device has sent, once it is written down."""
        self.bytes_up += len(answer.data)
        observer = self._rounds.observer
        self._journal.takes(answer)
        observer.message(sent=False, peer=answer.client, data=answer.data)
        self._journal.keep()
        with observer.working(None, step):
            self._server.receive(answer.client, answer.data)
