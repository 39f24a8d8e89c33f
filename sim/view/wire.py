"""What a transcript adds to the events: bytes by kind of message, and the steps of single searches.

A transcript may be long, and its run in progress: each look reads on from where the last one ended,
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
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.inspect.audit.inventory import name_of
from deltafl.sim.inspect.audit.seen import Decoder
from deltafl.sim.record.chain import Mark
from deltafl.sim.record.transcript import (
    TRANSCRIPT,
    Begin,
    Message,
    Record,
    RoundEnd,
    follow_transcript,
)

SECONDS_PER_LOOK: Final = 0.4
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


@dataclass(frozen=True, slots=True)
class Steps:
    """The questions of one search, in their order.

    Attributes:
        round: the round.
        pivots: of each question, the losses that it asks about, in nats, ascending.
    """

    round: int
    pivots: tuple[tuple[float, ...], ...]


@dataclass(slots=True)
class Wire:
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
    _decoder: Decoder = field(default_factory=Decoder)
    _first: Steps | None = None
    _last: Steps | None = None
    _over: Steps | None = None

    @property
    def carried(self) -> list[Carried]:
        """The messages read so far: sent ones first, the kinds with most bytes first."""
        order = sorted(self._sizes, key=lambda key: (not key[0], -self._sizes[key]))
        return [
            Carried(name, sent, self._counts[sent, name], self._sizes[sent, name])
            for sent, name in order
        ]

    @property
    def searches(self) -> list[Steps]:
        """The first search, and the last one that is over."""
        known = [one for one in (self._first, self._over) if one is not None]
        return known[:1] if len(known) > 1 and known[0].round == known[1].round else known

    def read_on(self, seconds: float = SECONDS_PER_LOOK) -> None:
        """Read what is new, for so long at most."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if self.problem or size < TRANSCRIPT.start.size:  # not even its first line is there yet
            return
        until = time.monotonic() + seconds
        if size < self.mark.size:  # cut back by a resumed run
            self.mark = TRANSCRIPT.start
            self._counts.clear()
            self._sizes.clear()
            self._first = self._last = self._over = None
        try:
            for record, mark in follow_transcript(self.path, self.mark):
                self._add(record)
                self.mark = mark
                if time.monotonic() > until:
                    return
        except ChainError as error:
            if error.damage is not Damage.CUT:
                self.problem = str(error)  # else it is still being written
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}"

    @property
    def share(self) -> float:
        """How much of the file has been read, from 0 to 1."""
        size = self.path.stat().st_size if self.path.exists() else 0
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
