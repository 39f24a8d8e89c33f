"""What the server saw in one round: sessions and slots, and which device was told and said what.

This module judges nothing, and does not keep long messages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from deltafl.protocol.configuration import RoundConfig, binding
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce, Ask
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import SessionParams
from deltafl.secagg.graph import Graph, Members
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import AdvertiseKeys
from deltafl.secagg.params import SessionId
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.seen import Decoder, Seen
from deltafl.sim.inspect.audit.truth_rounds import HiddenInRound
from deltafl.sim.record.transcript import INTERRUPTED, Message, RoundEnd, Sum

Question = Query | Threshold
_ANSWERS = Kind.ADVERTISE - Kind.OPEN  # an answer's kind is that of what it answers, plus this


@dataclass(slots=True, eq=False)
class SlotView:
    """One slot of a session, as the server saw it.

    Attributes:
        index: Index into the session's slots.
        opened: The messages that opened it, one for each device.
        inputs: The masked vectors that came, without their bytes.
        requests: The requests for shares that were sent.
        shares: The shares that came.
        sums: What the server says that it learnt; one, or none.
    """

    index: int
    opened: list[Seen] = field(default_factory=list)
    inputs: list[Seen] = field(default_factory=list)
    requests: list[Seen] = field(default_factory=list)
    shares: list[Seen] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)

    @property
    def question(self) -> Question | None:
        """The question that the first device was asked; None where it is not known."""
        for seen in self.opened:
            if isinstance(seen.content.envelope, Ask):
                return seen.content.envelope.question
        return None

    @property
    def members(self) -> Members | None:
        """The first set of devices that it was opened with; None where it is not known."""
        return next((s.content.members for s in self.opened if s.content.members is not None), None)


@dataclass(slots=True, eq=False)
class SessionView:
    """One session, as the server saw it.

    Attributes:
        params: Its parameters.
        announcements: The announcements that opened it, one for each device.
        advertisements: What came as devices' keys, by device; the first of each.
        rosters: The rosters that were sent; without the keys.
        slots: By index; of a level's view, counted from the level's first.
        unasked: Messages of devices that nothing recorded had asked for.
        level: Which of the session's levels this view is of, counted from 0.
    """

    params: SessionParams
    announcements: list[Seen] = field(default_factory=list)
    advertisements: dict[int, Seen] = field(default_factory=dict)
    rosters: list[Seen] = field(default_factory=list)
    slots: dict[int, SlotView] = field(default_factory=dict)
    unasked: list[Seen] = field(default_factory=list)
    level: int = 0
    _asked: set[tuple[int, int | None, int]] = field(default_factory=set)
    _context: bytes | None = None
    _positions: dict[int, int] | None = None

    @property
    def announce(self) -> Announce | None:
        """The first announcement."""
        envelope = self.announcements[0].content.envelope if self.announcements else None
        return envelope if isinstance(envelope, Announce) else None

    @property
    def levels(self) -> Levels | None:
        """The rounds that the session is of, as first announced; one, or one for each level."""
        return self.announce.levels if self.announce else None

    @property
    def config(self) -> RoundConfig | None:
        """The round's configuration, as first announced; of several levels, see `by_level`."""
        return self.levels.common if self.levels and len(self.levels.rounds) == 1 else None

    @property
    def model(self) -> bytes | None:
        """The model; None without an announcement, and of several levels: see `by_level`."""
        return self.announce.models if self.announce and self.config else None

    def by_level(self) -> tuple["SessionView", ...]:
        """The session as one of each of its levels; of a single level, the session itself.

        A level's view has what concerns its round alone: announcement, roster and slots.
        """
        announce, views = self.announce, []
        if announce is None or len(announce.levels.rounds) == 1:
            return (self,)
        levels = announce.levels
        for level, model in enumerate(levels.split(announce.models)):
            alone = Announce(Levels((levels.rounds[level],)), model, announce.session)
            seen = self.announcements[0]
            first, end = levels.first_slot(level), levels.first_slot(level + 1)
            views.append(
                SessionView(
                    self.params,
                    announcements=[replace(seen, content=replace(seen.content, envelope=alone))],
                    rosters=self.rosters,
                    slots={i - first: slot for i, slot in self.slots.items() if first <= i < end},
                    level=level,
                    _context=self.context,
                )
            )
        return tuple(views)

    @property
    def context(self) -> bytes | None:
        """The digest of configurations and models; None without an announcement."""
        announce = self.announce
        if self._context is None and announce is not None:
            self._context = announce.levels.context(announce.models)
        return self._context

    @property
    def ids(self) -> npt.NDArray[np.uint32]:
        """The roster: whom the server sent one, ascending; uint32."""
        return np.array(sorted({seen.record.peer for seen in self.rosters}), dtype=np.uint32)

    @property
    def positions(self) -> dict[int, int]:
        """Roster position by device."""
        if self._positions is None or len(self._positions) != len(self.rosters):
            self._positions = {device: p for p, device in enumerate(self.ids.tolist())}
        return self._positions

    @property
    def session_id(self) -> SessionId:
        """The id that parameters and roster give."""
        return self.params.session_id(self.ids.astype("<u4").tobytes())

    @property
    def graph(self) -> Graph:
        """The neighbourhoods of the roster."""
        return Graph(len(self.ids), self.params.degree, self.params.graph_seed)

    def slot_context(self, slot: SlotView) -> SlotContext | None:
        """What the masks of a slot are bound to; None where that is not known."""
        if self.context is None or slot.question is None:
            return None
        bound = binding(self.context, slot.question)
        return SlotContext.of(self.params, self.session_id, slot.index, bound)

    def slot(self, index: int) -> SlotView:
        """The slot of an index, new where it was not heard of before."""
        return self.slots.setdefault(index, SlotView(index))

    def add(self, seen: Seen) -> None:
        """Sort a message of this session in."""
        self._note_question(seen)
        match seen.content.kind:
            case Kind.OPEN:
                self.announcements.append(seen)
            case Kind.ADVERTISE:
                self.advertisements.setdefault(seen.record.peer, seen)
            case Kind.ROSTER:
                self.rosters.append(_without_message(seen))
            case kind:
                self._add_to_slot(kind, seen)

    def _note_question(self, seen: Seen) -> None:
        kind, slot, peer = seen.content.kind, seen.content.slot, seen.record.peer
        if kind is None:
            return
        if seen.record.sent:
            self._asked.add((kind, slot, peer))
            return
        if (kind - _ANSWERS, slot, peer) not in self._asked:
            self.unasked.append(_without_message(seen))

    def _add_to_slot(self, kind: Kind | None, seen: Seen) -> None:
        if seen.content.slot is None:
            return
        slot = self.slot(seen.content.slot)
        match kind:
            case Kind.SLOT:
                slot.opened.append(seen)
            case Kind.MASKED:
                slot.inputs.append(_without_message(seen))
            case Kind.REQUEST:
                slot.requests.append(seen)
            case Kind.SHARES:
                slot.shares.append(seen)

    def advertised(self) -> Iterator[tuple[int, AdvertiseKeys, Seen]]:
        """Device, keys and place of every advertisement."""
        for device, seen in self.advertisements.items():
            if isinstance(seen.content.message, AdvertiseKeys):
                yield device, seen.content.message, seen


@dataclass(slots=True, eq=False)
class RoundView:
    """One round, as the server saw it.

    Attributes:
        number: The round, counted from 1.
        sessions: By tag, in the order in which they were announced; as a rule one.
        strange: Messages that do not belong to the protocol.
        sums: What the server says that it learnt, in order.
        end: The record that ends the round; None where there is none.
        cohort: The devices that the record of its begin names; None where there is none.
        truth: What is known beside what the server saw.
    """

    number: int
    sessions: dict[bytes, SessionView] = field(default_factory=dict)
    strange: list[Seen] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    end: RoundEnd | None = None
    cohort: tuple[int, ...] | None = None
    truth: HiddenInRound = field(default_factory=HiddenInRound)
    _decoder: Decoder = field(default_factory=Decoder)

    @property
    def breaks_off(self) -> bool:
        """Whether its record stops somewhere, because the server did, or is still going."""
        return self.end is None or self.end.aborted == INTERRUPTED

    def add(self, record: Message) -> Seen:
        """Sort a message in; what it is."""
        seen = self._decoder.decode(record)
        content = seen.content
        if content.problem:
            self.strange.append(seen)
        elif content.kind is not None and content.tag in self._decoder.params:
            params = self._decoder.params[content.tag]
            session = self.sessions.setdefault(content.tag, SessionView(params))
            session.add(seen)
        return seen

    def add_sum(self, record: Sum) -> tuple[SessionView, SlotView] | None:
        """Sort a sum in; where it belongs, or None where no session can have given it."""
        self.sums.append(record)
        for session in reversed(self.sessions.values()):
            if record.slot in session.slots and not session.slots[record.slot].sums:
                slot = session.slots[record.slot]
                slot.sums.append(record)
                return session, slot
        return None


def _without_message(seen: Seen) -> Seen:
    """A message without its long parts; it can be read again by its number."""
    return Seen(replace(seen.record, head=b""), replace(seen.content, message=None))


def place_of(record: Sum | RoundEnd) -> Evidence:
    """Where a record is."""
    return Evidence(record.round, record.number)
