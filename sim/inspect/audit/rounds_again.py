"""The rounds of a record played again, in their order, with what one round hands on to the next."""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import TypeAlias

import numpy as np

from deltafl.protocol import wire as round_wire
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce
from deltafl.protocol.round import LostSearch, RoundOutcome
from deltafl.protocol.server import RoundServer
from deltafl.secagg import ClientId, DecodeError, FirstUse, SessionParams, SlotSum, UsageError
from deltafl.secagg.states import Step
from deltafl.secagg.wire import decode_open
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.server_replay import ServerReplay
from deltafl.sim.record.transcript import (
    INTERRUPTED,
    Begin,
    Message,
    Record,
    Resumed,
    RoundEnd,
    Sum,
)

Shelved: TypeAlias = Callable[[], bytes]
"""Gives back what was put away."""


class _Shelf:
    """What is long, in a file without a name."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115 - closed once nobody can ask for anything
        weakref.finalize(self, self._file.close)

    def put(self, data: bytes) -> Shelved:
        start, size = self._file.seek(0, os.SEEK_END), len(data)
        self._file.write(data)

        def back() -> bytes:
            self._file.seek(start)
            return self._file.read(size)

        return back

    def put_outcome(self, one: RoundOutcome) -> Callable[[], RoundOutcome]:
        if one.update is None:
            return lambda: one
        back, rest = self.put(one.update.tobytes()), replace(one, update=None)
        return lambda: replace(rest, update=np.frombuffer(back()).copy())


@dataclass(slots=True, eq=False)
class Kept:
    """What is known of a round once its record is read.

    Attributes:
        cohort: The devices that it may have reached, ascending.
        place: Where it begins.
        levels: The levels that were announced; None if nothing was.
        models: The models that were announced; nothing if none were.
        params: The session's parameters; None if nothing was announced.
        outcomes: Each gives what it came to at a level; nothing where it was not played to its end.
        slots: Of the sums that are recorded, indices into the session's slots.
        silent: Devices that did not answer in time, each with the first step that it missed.
        received: Bytes that devices sent.
        is_interrupted: Whether it was lost because the server's process ended.
        refused: Devices that refused to answer; None where nobody knows.
    """

    cohort: tuple[int, ...]
    place: Evidence
    levels: Levels | None = None
    models: Shelved = bytes
    params: SessionParams | None = None
    outcomes: Sequence[Callable[[], RoundOutcome]] = ()
    slots: list[int] = field(default_factory=list)
    silent: Mapping[int, Step] = field(default_factory=dict)
    received: int = 0
    is_interrupted: bool = True
    refused: frozenset[int] | None = None


@dataclass(slots=True, eq=False)
class RoundsAgain:
    """Plays the server of each round of a record again.

    Attributes:
        keeps_cohort: Whether devices insist that nobody is lost after the first level.
        played: How many rounds were played to their ends.
        sums: How many sums were learnt again.
        kept: What the rounds came to, by number.
    """

    keeps_cohort: bool
    played: int = 0
    sums: int = 0
    kept: dict[int, Kept] = field(default_factory=dict)
    _shelf: _Shelf = field(default_factory=_Shelf)
    _kept: Kept = field(default_factory=lambda: Kept((), Evidence()))  # of the last round
    _is_begun: bool = False  # and nothing of it was sent
    _replay: ServerReplay | None = None
    _starts: dict[int, int] = field(default_factory=dict)
    _directory: FirstUse = field(default_factory=FirstUse)
    _lost: dict[tuple[bytes, tuple[int, ...]], Sequence[LostSearch]] = field(default_factory=dict)

    def learnt(self, slot: int) -> SlotSum | None:
        """The sum of a slot, if the server has just learnt it."""
        replay = self._replay
        revealed = None if replay is None or replay.lost_track else replay.server.revealed
        return revealed if revealed is not None and revealed.slot == slot else None

    def take(
        self, record: Record, data: bytes = b""
    ) -> Iterator[tuple[str, str, *tuple[Evidence, ...]]]:
        """Take a record, in its order; what an honest server does otherwise.

        It yields the rule that is broken, what there is, and where, if not at this record.

        Args:
            record: The record.
            data: The message, if it is one.
        """
        match record:
            case Begin():
                self._is_begun, self._replay = True, None
                place = Evidence(record.round, record.number)
                self._kept = self.kept[record.round] = Kept(record.cohort, place)
            case Message() if record.size and not data:  # it is not kept
                self._is_begun, self._replay = False, None
            case Message() if record.sent and self._is_begun:
                self._is_begun = False
                yield from self._open(data)
            case Message() if not record.sent:
                self._kept.received += len(data)
            case Sum():
                self._kept.slots.append(record.slot)
            case Resumed():
                self._directory = FirstUse()
        if self._replay is not None:
            departures = list(self._replay.take(record, data))
            self.sums += isinstance(record, Sum) and not (departures or self._replay.lost_track)
            yield from departures
        if isinstance(record, RoundEnd):
            self._end(record.aborted)

    def _open(self, data: bytes) -> Iterator[tuple[str, str]]:
        kept = self._kept
        try:
            envelope = round_wire.decode(data)
        except DecodeError:  # the check of what is no message says so
            return
        if not isinstance(envelope, Announce):
            yield "messages.untimely", "a round begins without an announcement"
            return
        models, ids = envelope.models, map(ClientId, kept.cohort)
        lost = self._lost.get((models, kept.cohort), ())
        try:
            params = decode_open(envelope.session).params
            about = envelope.levels, models, params, ids, self._directory
            server = RoundServer(*about, keeps_cohort=self.keeps_cohort, lost=lost)
        except (DecodeError, UsageError) as error:
            yield "session.impossible", f"no server announces this: {error}"
            return
        for level, config in enumerate(envelope.levels.rounds):
            known = self._starts.get(level, config.warm_start)
            if config.warm_start not in (None, known):
                detail = f"its search starts at {config.warm_start}, and the last ended at {known}"
                yield "question.unfounded", detail
        kept.levels, kept.params, kept.models = envelope.levels, params, self._shelf.put(models)
        self._replay = ServerReplay(server, params, frozenset(kept.cohort))

    def _end(self, aborted: str) -> None:
        """Keep what the round came to, and what the next one may go on with."""
        kept, replay = self._kept, self._replay
        self._lost, starts, self._starts = {}, self._starts, {}
        kept.is_interrupted = aborted == INTERRUPTED
        if replay is None or replay.lost_track or (outcomes := replay.server.outcomes) is None:
            return
        self.played += 1
        kept.silent = replay.silent
        kept.outcomes = [self._shelf.put_outcome(one) for one in outcomes]
        self._starts = starts
        for level, one in enumerate(outcomes):
            found, grid = one.search, replay.server.levels.rounds[level].search.grid
            if found is None or found.tail is None or one.aborted is not None or not found.eta:
                continue  # η = 0 keeps all, and is no place to search from
            self._starts[level] = grid.tick(found.eta)[0]
        searches = tuple(one.lost for one in outcomes if one.lost is not None)
        if len(searches) == len(outcomes):
            self._lost = {(kept.models(), kept.cohort): searches}
