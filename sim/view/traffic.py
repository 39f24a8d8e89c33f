"""What a transcript adds to the events: bytes by kind of message, and the steps of single searches.

A transcript may be long, and its run in progress: it is read on from where the last reading ended,
for a limited time.
"""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Ask
from deltafl.protocol.quantile.search import Query
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.inspect.audit.inventory import name_of
from deltafl.sim.inspect.audit.seen import Decoder
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.snapshot import Tail
from deltafl.sim.record.transcript import (
    TRANSCRIPT,
    Begin,
    Message,
    Record,
    RoundEnd,
    follow_transcript,
)

SECONDS_AT_A_TIME: Final = 0.4
"""So long is a transcript read on at a time while its run is watched."""

_QUERY: Final = "question of the search"
_UPDATES: Final = "request for updates"


@dataclass(frozen=True, slots=True)
class Carried:
    """All messages of a kind.

    Attributes:
        name: what they are.
        sent: whether the server sent them; else it received them.
        count: how many.
        size: their bytes.
    """

    name: str
    sent: bool
    count: int
    size: int


class Steps(NamedTuple):
    """The questions of one search, in their order.

    Attributes:
        round: the round.
        pivots: of each question, the losses that it asks about, in nats, ascending.
    """

    round: int
    pivots: tuple[tuple[float, ...], ...]


class Seen(NamedTuple):
    """What has been read of a transcript at a moment.

    Attributes:
        carried: all messages by kind: sent ones first, the kinds with most bytes first.
        searches: the first search, and the last one that is over.
        share: how much of the file has been read, from 0 to 1.
        problem: what is wrong with it, in a sentence; empty if nothing is known to be.
    """

    carried: tuple[Carried, ...]
    searches: tuple[Steps, ...]
    share: float
    problem: str


@dataclass(slots=True)
class Traffic:
    """Reads on in a transcript.

    Attributes:
        path: the file.
        grid: of the losses, by which pivots become nats.
        mark: how far it has been read.
        problem: what is wrong with it, in a sentence; empty if nothing is known to be.
    """

    path: Path
    grid: LossGrid
    mark: Mark = TRANSCRIPT.start
    problem: str = ""
    _carried: dict[tuple[bool, str], Carried] = field(default_factory=dict)
    _decoder: Decoder = field(default_factory=Decoder)
    _first: Steps | None = None
    _last: Steps | None = None
    _over: Steps | None = None
    _stamp: tuple[int, int, int] = 0, 0, 0  # of the file with the problem
    _begin: int = 0  # of the last record
    _tail: Tail = field(default_factory=Tail)

    @property
    def seen(self) -> Seen:
        """What has been read so far."""
        carried = sorted(self._carried.values(), key=lambda one: (not one.sent, -one.size))
        searches = [one for one in (self._first, self._over) if one is not None]
        if len(searches) > 1 and searches[0].round == searches[1].round:
            searches.pop()
        try:
            size = self.path.stat().st_size
        except OSError:
            size = 0
        share = min(1.0, self.mark.size / size) if size else 1.0
        return Seen(tuple(carried), tuple(searches), share, self.problem)

    def read_on(self, seconds: float = SECONDS_AT_A_TIME) -> None:
        """Read what is new, for so long at most."""
        try:
            stat = self.path.stat()
        except OSError:  # it is not there yet
            self._start_over()
            return
        stamp = stat.st_ino, stat.st_size, stat.st_mtime_ns
        if self.problem and stamp == self._stamp:
            return
        # mended, cut back by a resumed run, or that of another
        if self.problem or not self._tail.is_in(self.path):
            self._start_over()
        if stat.st_size < TRANSCRIPT.start.size:  # not even its first line is there
            return
        self._stamp = stamp
        before = self.mark
        try:
            self._follow(time.monotonic() + seconds)
        except ChainError as error:
            if error.damage is not Damage.CUT:
                self.problem = str(error)  # else it is still being written
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}"
        if before.size < self.mark.size:
            self._tail = Tail.of(self.path, self._begin, self.mark.size)

    def _follow(self, until: float) -> None:
        for record, mark in follow_transcript(self.path, self.mark):
            self._add(record)
            self._begin, self.mark = self.mark.size, mark
            if time.monotonic() > until:
                return

    def _start_over(self) -> None:
        self.mark, self.problem, self._tail = TRANSCRIPT.start, "", Tail()
        self._carried.clear()
        self._first = self._last = self._over = None

    def _add(self, record: Record) -> None:
        if isinstance(record, Begin):
            self._decoder = Decoder()
        if isinstance(record, RoundEnd):
            self._over = self._last
        if not isinstance(record, Message):
            return
        content = self._decoder.decode(record).content
        asked = content.envelope if record.sent else None
        name = name_of(content.kind)
        if isinstance(asked, Ask):
            name = _QUERY if isinstance(asked.question, Query) else _UPDATES
            self._note_question(record.round, asked)
        known = self._carried.get((record.sent, name), Carried(name, record.sent, 0, 0))
        self._carried[record.sent, name] = replace(
            known, count=known.count + 1, size=known.size + record.size
        )

    def _note_question(self, round_number: int, asked: Ask) -> None:
        if not isinstance(asked.question, Query):
            return
        scale = 2.0**-self.grid.resolution_bits
        pivots = tuple(pivot * scale for pivot in asked.question.pivots)
        last = self._last
        if last is None or last.round != round_number:
            self._last = Steps(round_number, (pivots,))
        elif last.pivots[-1] != pivots:
            self._last = Steps(round_number, (*last.pivots, pivots))
        if self._first is None or self._first.round == round_number:
            self._first = self._last
