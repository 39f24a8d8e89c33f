"""What a transcript adds to the events: bytes by kind of message, and the steps of single searches.

A transcript may be long, and its run in progress: it is read on from where the last reading ended,
for a limited time.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Ask
from deltafl.protocol.quantile.search import Query
from deltafl.secagg.states import Stage
from deltafl.secagg.wire import Kind
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

_OF_STAGE: Final = {
    Kind.OPEN: (Stage.ADVERTISE,),
    Kind.ADVERTISE: (Stage.ADVERTISE,),
    Kind.ROSTER: (Stage.SHARE,),
    Kind.SHARE_KEYS: (Stage.SHARE,),
    Kind.DELIVERY: (Stage.RECEIPT,),
    Kind.RECEIPT: (Stage.RECEIPT,),
    Kind.SLOT: (Stage.MASK,),
    Kind.OPENING: (Stage.MASK,),  # it comes with a question
    Kind.MASKED: (Stage.MASK,),
    Kind.CHECK: (Stage.LIST, Stage.CONFIRM),
    Kind.SIGNATURE: (Stage.LIST, Stage.CONFIRM),
    Kind.REQUEST: (Stage.UNMASK,),
    Kind.SHARES: (Stage.UNMASK,),
}
"""The stage of each kind of message; of some, their slot tells."""

_QUERY: Final = "question of the search"
_UPDATES: Final = "request for updates"


@dataclass(frozen=True, slots=True)
class Carried:
    """All messages of a kind.

    Attributes:
        name: what they are.
        stage: of the session, as events call it; of some kinds, two; "" if unknown.
        sent: whether the server sent them; else it received them.
        count: how many.
        size: their bytes.
    """

    name: str
    stage: str
    sent: bool
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Steps:
    """The questions of one search, in their order.

    Attributes:
        round: the round.
        pivots: of each question, the losses that it asks about, in nats, ascending.
    """

    round: int
    pivots: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Seen:
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
    _counts: Counter[tuple[bool, str]] = field(default_factory=Counter)
    _sizes: Counter[tuple[bool, str]] = field(default_factory=Counter)
    _stages: dict[str, str] = field(default_factory=dict)
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
        return Seen(tuple(self.carried), tuple(self.searches), self.share, self.problem)

    @property
    def carried(self) -> list[Carried]:
        """The messages read so far: sent ones first, the kinds with most bytes first."""
        order = sorted(self._sizes, key=lambda key: (not key[0], -self._sizes[key]))
        return [
            Carried(
                name,
                self._stages[name],
                sent,
                self._counts[sent, name],
                self._sizes[sent, name],
            )
            for sent, name in order
        ]

    @property
    def searches(self) -> list[Steps]:
        """The first search, and the last one that is over."""
        known = [one for one in (self._first, self._over) if one is not None]
        return known[:1] if len(known) > 1 and known[0].round == known[1].round else known

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
        self._counts.clear()
        self._sizes.clear()
        self._first = self._last = self._over = None

    @property
    def share(self) -> float:
        """How much of the file has been read, from 0 to 1."""
        try:
            size = self.path.stat().st_size
        except OSError:
            size = 0
        return min(1.0, self.mark.size / size) if size else 1.0

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
        of_stage = () if content.kind is None else _OF_STAGE[content.kind]
        self._stages[name] = " or ".join(stage.name.lower() for stage in of_stage)
        self._counts[record.sent, name] += 1
        self._sizes[record.sent, name] += record.size

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
