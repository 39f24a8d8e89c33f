"""What is due to each device and from it: the exchange between a round and the connections.

The round runs in one thread and waits for answers; connections come and go in another. Both meet
here, and only here. Nothing in this module has a socket or a clock.

What a device has not answered is kept until it answers or the round goes on without it. So a device
whose connection breaks gets the same messages again when it is back, and answers as if nothing had
happened. Of each device at most one task and one envelope are kept, however slowly it reads, and it
may answer each envelope once. A second connection of a device replaces the first.

Who was waited for in vain is not waited for again at once: until he has sent something, he counts
as one who is not connected. A device that is only slow says so when the round is over: it is then
asked for an answer that it does not have, and declines.

A device that cannot train by the run's settings declines every round. So it does not count among
those that are there, until it has connected anew, as where it was started again.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from threading import Condition, Event
from typing import Final

from deltafl.secagg import ClientId, DecodeError
from deltafl.sim.net.frames import Carry, Decline, Over, Reason, Task, Welcome, decode, encode
from deltafl.sim.visible import visible

Clock = Callable[[], float]
"""Seconds since any fixed moment; never falls."""

_LOOK_S: Final = 0.5  # how often it is seen whether to stop: a signal's handler wakes nobody


@dataclass(frozen=True, slots=True)
class Answer:
    """What has arrived from a device.

    Attributes:
        client: who.
        data: its message; empty if it declines.
        declined: why it has no message, if it has none.
        detail: what it adds to that, in visible characters.
        trip: which it answers, if it is a message.
    """

    client: ClientId
    data: bytes = b""
    declined: Reason | None = None
    trip: int = -1
    detail: str = ""


@dataclass(slots=True, eq=False)
class Line:
    """One connection of a device, as this module sees it.

    Attributes:
        client: whose.
        wake: called when there is something to send, or the line is closed; from any thread.
        is_open: False once another connection has replaced it, or the device is admitted no more.
        sent: bytes that were taken to be sent on it.
        because: why it is not open, for its device.
    """

    client: ClientId
    wake: Callable[[], None]
    is_open: bool = True
    sent: int = 0
    because: str = ""
    pending: deque[bytes] = field(default_factory=deque)


@dataclass(slots=True)
class _Due:
    """A device's place in the round.

    Attributes:
        trip: the last envelope that it was sent; −1 before the first.
        envelope: it, while it is not answered.
        answered: the last that it answered.
        declined: whether it has said that it goes no further.
    """

    trip: int = -1
    envelope: bytes | None = None
    answered: int = -1
    declined: bool = False


class Post:
    """The exchange of one server.

    Args:
        clock: tells the time.
        rounds: of the whole run, which devices are told.
        rounds_done: of the run so far, likewise.

    Attributes:
        passed: how often something has passed: "in" and "out", bytes of frames of and to devices;
            "reconnections", connections of devices that had been connected before.
        declined: who has declined the last round that it was asked for, and why; until it answers
            or connects again, or the list is read again.
    """

    def __init__(self, clock: Clock, rounds: int, rounds_done: int = 0) -> None:
        self.passed: Counter[str] = Counter()
        self.declined: dict[ClientId, Answer] = {}
        self._clock = clock
        self._welcome = Welcome(rounds_done, rounds)
        self._seen: set[ClientId] = set()  # who has ever been connected
        self._lines: dict[ClientId, Line] = {}
        self._silent: set[ClientId] = set()
        self._task: Task | None = None
        self._opening = b""
        self._due: dict[ClientId, _Due] = {}
        self._arrived: deque[Answer] = deque()
        self._changed = Condition()

    # The connections' side.

    def connect(self, client: ClientId, wake: Callable[[], None]) -> Line:
        """A device that was admitted is connected; it gets what it has not answered yet."""
        line = Line(client, wake)
        with self._changed:
            if (earlier := self._lines.get(client)) is not None:
                self._close(earlier, "another connection has replaced this one")
            self._lines[client] = line
            self.declined.pop(client, None)
            self.passed["reconnections"] += client in self._seen
            self._seen.add(client)
            self._silent.discard(client)
            line.pending.append(encode(self._welcome))
            due = self._due.get(client)
            if due is not None and not due.declined:
                line.pending.append(self._opening)
                if due.envelope is not None:
                    line.pending.append(due.envelope)
            self._changed.notify_all()
        return line

    def disconnect(self, line: Line) -> None:
        """A connection is gone."""
        with self._changed:
            line.is_open = False
            if self._lines.get(line.client) is line:
                del self._lines[line.client]
            self._changed.notify_all()

    def keep_only(self, clients: Collection[ClientId]) -> None:
        """Close all other lines: their devices are admitted no more."""
        with self._changed:
            self.declined.clear()
            for line in list(self._lines.values()):
                if line.client not in clients:
                    self._close(line, "the device is not on the list any more")
            self._changed.notify_all()

    def take(self, line: Line) -> bytes | None:
        """The next frame to send on a connection; None if there is none yet."""
        with self._changed:
            if not (line.is_open and line.pending):
                return None
            line.sent += len(line.pending[0])
            self.passed["out"] += len(line.pending[0])
            return line.pending.popleft()

    def received(self, line: Line, data: bytes) -> None:
        """Take a frame of an admitted device.

        What belongs to another round, or repeats an answer, is ignored.

        Raises:
            DecodeError: the bytes are no frame that a device may send now; it is to be
                disconnected.
        """
        frame = decode(data)
        if not isinstance(frame, Carry | Decline):
            raise DecodeError(f"a {type(frame).__name__} from a device that was admitted")
        with self._changed:
            self.passed["in"] += len(data)
            due = self._due.get(line.client)
            if not line.is_open:
                return
            if line.client in self._silent:
                self._silent.remove(line.client)
                self._changed.notify_all()
            if self._task is None or due is None or frame.task != self._task.task:
                return
            if isinstance(frame, Decline):
                if not due.declined:
                    due.declined, due.envelope = True, None
                    detail = visible(frame.detail.decode(errors="replace"))
                    answer = Answer(line.client, declined=frame.reason, detail=detail)
                    self.declined[line.client] = answer
                    self._arrive(answer)
                return
            if frame.trip > due.trip:
                raise DecodeError(f"an answer to trip {frame.trip}, of {due.trip + 1} trips")
            if frame.trip <= due.answered:
                return
            due.answered = frame.trip
            self.declined.pop(line.client, None)
            if frame.trip == due.trip:
                due.envelope = None
            self._arrive(Answer(line.client, frame.data, trip=frame.trip))

    # The round's side.

    def begin(self, task: Task, cohort: Collection[ClientId]) -> None:
        """A round begins with these devices, whether they are connected or not."""
        with self._changed:
            self._task, self._opening = task, encode(task)
            self._due = {client: _Due() for client in cohort}
            self._arrived.clear()
            for client in cohort:
                self._put(client, self._opening)

    def send(self, client: ClientId, trip: int, envelope: bytes) -> None:
        """An envelope is due to a device of the round: a `Carry` of this trip, encoded."""
        with self._changed:
            due = self._due[client]
            due.trip, due.envelope = trip, envelope
            if due.declined:
                due.envelope = None
            else:
                self._put(client, envelope)

    def answers(self, expected: Collection[ClientId], seconds: float) -> Iterator[Answer]:
        """What arrives, until all have answered or declined, or the time is up.

        Answers to earlier trips come as well: they are late, and the round's machine knows it.

        Args:
            expected: who has been sent the current envelope.
            seconds: how long to wait at most.
        """
        end = self._clock() + seconds
        while True:
            with self._changed:
                while not self._arrived:
                    left = end - self._clock()
                    owing = list(filter(self._owes, expected))
                    if left <= 0 or not owing:
                        self._silent.update(owing)
                        return
                    self._changed.wait(left)
                answer = self._arrived.popleft()
            yield answer

    def give_up(self, cohort: Collection[ClientId]) -> None:
        """Wait no longer for these devices, of which something else says that they are gone."""
        with self._changed:
            for client in cohort:
                due = self._due.get(client)
                if due is not None and not due.declined:
                    due.declined, due.envelope = True, None
                    self._arrive(Answer(client, declined=Reason.UNKNOWN))

    def end(self, rounds_done: int) -> None:
        """The round has ended.

        Args:
            rounds_done: of the run.
        """
        with self._changed:
            if self._task is not None:
                over = encode(Over(self._task.task, rounds_done))
                asked = encode(Carry(self._task.task, 0, b""))  # of a round that is over
                for client in self._due:
                    self._renew(client, over)
                    if client in self._silent:
                        self._put(client, asked)
            self._welcome = Welcome(rounds_done, self._welcome.rounds)
            for client in self._lines.keys() - self._due.keys():
                self._renew(client, encode(self._welcome))
            self._task, self._due = None, {}
            self._arrived.clear()

    def finish(self) -> None:
        """The run is over: devices are told so, also those that connect from now on."""
        with self._changed:
            self._welcome = replace(self._welcome, is_over=True)
            for client in self._lines:
                self._renew(client, encode(self._welcome))

    def is_drained(self) -> bool:
        """Whether all that was due has been taken by the connections that there are."""
        with self._changed:
            return not any(line.pending for line in self._lines.values())

    @property
    def connected(self) -> frozenset[ClientId]:
        """The devices that are connected."""
        with self._changed:
            return frozenset(self._lines)

    def silent(self, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Those of some devices who were waited for in vain, and have sent nothing since."""
        with self._changed:
            return frozenset(self._silent.intersection(clients))

    def wait_for(
        self, enough: Callable[[frozenset[ClientId]], bool], seconds: float, stop: Event
    ) -> frozenset[ClientId]:
        """Wait until enough devices are there, the time is up, or `stop` is set.

        Returns:
            Those that are connected, for whom the settings fit, and that have said something since
            they were waited for in vain.
        """
        end = self._clock() + seconds
        with self._changed:
            while not enough(there := frozenset(self._lines.keys() - self._silent) - self._unfit):
                left = end - self._clock()
                if left <= 0 or stop.is_set():
                    break
                self._changed.wait(min(left, _LOOK_S))
            return there

    @property
    def _unfit(self) -> frozenset[ClientId]:
        """Who would decline another round as well: its settings are the same."""
        declined = self.declined.items()
        return frozenset(one for one, said in declined if said.declined is Reason.SETTINGS)

    def _close(self, line: Line, because: str) -> None:
        line.is_open, line.because = False, because
        line.pending.clear()
        del self._lines[line.client]
        line.wake()

    def _owes(self, client: ClientId) -> bool:
        """Whether a device still may answer the envelope that it was sent last."""
        due = self._due[client]
        return not due.declined and due.answered < due.trip

    def _arrive(self, answer: Answer) -> None:
        self._arrived.append(answer)
        self._changed.notify_all()

    def _renew(self, client: ClientId, frame: bytes) -> None:
        """Send a frame in place of those that have not been read yet."""
        if (line := self._lines.get(client)) is not None:
            line.pending.clear()
            self._put(client, frame)

    def _put(self, client: ClientId, frame: bytes) -> None:
        if (line := self._lines.get(client)) is not None:
            line.pending.append(frame)
            line.wake()
