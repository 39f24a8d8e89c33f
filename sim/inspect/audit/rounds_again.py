"""The rounds of a record played again, in their order, with what one round hands on to the next."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from deltafl.protocol import wire as round_wire
from deltafl.protocol.messages import Announce
from deltafl.protocol.round import LostSearch, RoundOutcome
from deltafl.protocol.server import RoundServer
from deltafl.secagg import ClientId, DecodeError, FirstUse, SessionParams, SlotSum, UsageError
from deltafl.secagg.states import Step
from deltafl.secagg.wire import decode_open
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.server_replay import Departure, ServerReplay
from deltafl.sim.record.transcript import (
    INTERRUPTED,
    Begin,
    Closed,
    Message,
    Record,
    Resumed,
    RoundEnd,
    Sum,
)


@dataclass(slots=True, eq=False)
class Kept:
    """What is known of a round once its record is read.

    Attributes:
        cohort: The devices that it may have reached, ascending.
        place: Where it begins.
        announced: What was announced; None if nothing was.
        params: The session's parameters, likewise.
        outcomes: What it came to, level by level; None where it was not played to its end.
        slots: Of the sums that are recorded, indices into the session's slots.
        silent: Devices that did not answer in time, each with the first step that it missed.
        received: Bytes that devices sent.
        lost: What earlier rounds over the model had revealed, with which it went on.
        is_interrupted: Whether it was lost because the server's process ended.
        refused: Devices that refused to answer; None where nobody knows.
    """

    cohort: tuple[int, ...]
    place: Evidence
    announced: Announce | None = None
    params: SessionParams | None = None
    outcomes: tuple[RoundOutcome, ...] | None = None
    slots: list[int] = field(default_factory=list)
    silent: Mapping[int, Step] = field(default_factory=dict)
    received: int = 0
    lost: Sequence[LostSearch] = ()
    is_interrupted: bool = True
    refused: frozenset[int] | None = None


@dataclass(slots=True, eq=False)
class RoundsAgain:
    """Plays the server of each round of a record again.

    Attributes:
        keeps_cohort: Whether devices insist that nobody is lost after the first level.
    """

    keeps_cohort: bool
    rounds: int = 0
    played: int = 0
    sums: int = 0
    kept: dict[int, Kept] = field(default_factory=dict)
    _kept: Kept = field(default_factory=lambda: Kept((), Evidence()))  # of the last round
    _begin: Begin | None = None
    _replay: ServerReplay | None = None
    _envelope: Announce | None = None
    _starts: dict[int, int | None] = field(default_factory=dict)
    _directory: FirstUse = field(default_factory=FirstUse)
    _lost: tuple[bytes, tuple[int, ...], tuple[LostSearch, ...]] | None = None

    def learnt(self, slot: int) -> SlotSum | None:
        """The sum of a slot, if the server has just learnt it."""
        replay = self._replay
        revealed = None if replay is None or replay.lost_track else replay.server.revealed
        return revealed if revealed is not None and revealed.slot == slot else None

    def take(self, record: Record, data: bytes = b"") -> Iterator[Departure]:
        """Take a record, in its order; what an honest server does otherwise.

        Args:
            record: The record.
            data: The message, if it is one.
        """
        match record:
            case Begin():
                self._begin, self._replay = record, None
                self._kept = self.kept[record.round] = Kept(record.cohort, _place(record))
                self.rounds += 1
            case Message():
                place = Evidence(record.round, record.number)
                if record.size and not data:  # it is not kept
                    self._begin = self._replay = None
                elif record.sent:
                    if self._replay is None and self._begin is not None:
                        yield from self._open(data, place)
                    if self._replay is not None:
                        yield from self._replay.sent(record.peer, data, place)
                elif self._replay is not None:
                    self._kept.received += len(data)
                    yield from self._replay.received(record.peer, data, place)
            case Closed():
                if self._replay is not None:
                    yield from self._replay.closed(_place(record))
            case Sum():
                if self._replay is not None:
                    self._kept.slots.append(record.slot)
                    departures = list(self._replay.learnt(record, _place(record)))
                    self.sums += not departures and not self._replay.lost_track
                    yield from departures
            case RoundEnd():
                yield from self._ended(record)
            case Resumed():
                self._directory = FirstUse()

    def _open(self, data: bytes, place: Evidence) -> Iterator[Departure]:
        begin, self._begin = self._begin, None
        try:
            envelope = round_wire.decode(data)
        except DecodeError:  # the check of what is no message says so
            return
        if begin is None or not isinstance(envelope, Announce):
            yield Departure("messages.untimely", "a round begins without an announcement", place)
            return
        try:
            params = decode_open(envelope.session).params
            lost: Sequence[LostSearch] = ()
            if self._lost is not None and self._lost[:2] == (envelope.models, begin.cohort):
                lost = self._lost[2]
            server = RoundServer(
                envelope.levels,
                envelope.models,
                params,
                [ClientId(i) for i in begin.cohort],
                self._directory if params.signed else None,
                keeps_cohort=self.keeps_cohort,
                lost=lost,
            )
        except (DecodeError, UsageError) as error:
            yield Departure("session.impossible", f"no server announces this: {error}", place)
            return
        yield from self._started(envelope, place)
        self._begin, kept = begin, self._kept
        kept.announced, kept.params, kept.lost = envelope, params, lost
        self._replay = ServerReplay(server, params, frozenset(begin.cohort))
        self._envelope = envelope

    def _started(self, envelope: Announce, place: Evidence) -> Iterator[Departure]:
        """Where a search may start: nowhere in particular, or at the threshold before."""
        for level, config in enumerate(envelope.levels.rounds):
            known = self._starts.get(level, config.warm_start)
            if config.warm_start not in (None, known):
                detail = f"its search starts at {config.warm_start}, and the last ended at {known}"
                yield Departure("question.unfounded", detail, place)

    def _ended(self, record: RoundEnd) -> Iterator[Departure]:
        replay, envelope, begin = self._replay, self._envelope, self._begin
        self._lost, starts, self._starts = None, self._starts, {}
        if replay is None or envelope is None or begin is None:
            self._kept.is_interrupted = False
            return
        if record.aborted == INTERRUPTED:
            detail = "it was ended by a server that says that it did not come to its end"
            yield Departure("round.given-up", detail, _place(record))
            return
        kept = self._kept
        kept.is_interrupted, kept.silent = False, replay.silent
        yield from replay.ended(record.aborted, _place(record))
        outcomes = replay.server.outcomes
        if replay.lost_track or outcomes is None:
            return
        self.played += 1
        kept.outcomes = outcomes
        self._starts = starts
        for level, (config, one) in enumerate(zip(envelope.levels.rounds, outcomes, strict=True)):
            found = one.search
            if found is None or found.tail is None or one.aborted is not None:
                continue
            if found.eta:  # 0 keeps all, and is no place to search from
                self._starts[level] = config.search.grid.tick(found.eta)[0]
        searches = tuple(one.lost for one in outcomes if one.lost is not None)
        if len(searches) == len(outcomes):
            self._lost = envelope.models, begin.cohort, searches


def _place(record: Begin | Sum | RoundEnd | Closed) -> Evidence:
    return Evidence(record.round, record.number)
