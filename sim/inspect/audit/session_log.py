"""What passed in one session, without what is long.

This module judges nothing.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce, Ask
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg.graph import Members
from deltafl.secagg.links import TAG_SIZE
from deltafl.secagg.messages import (
    AdvertiseKeys,
    MaskedInput,
    RosterMessage,
    ShareDelivery,
    ShareKeys,
    ShareReceipt,
)
from deltafl.secagg.messages import Message as SessionMessage
from deltafl.secagg.params import DIGEST_SIZE, SessionId, SessionParams
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.record.transcript import Sum

ANSWERS: Final = Kind.ADVERTISE - Kind.OPEN
"""An answer's kind is that of what it answers, plus this."""

Question = Query | Threshold

_BOX_DIGEST: Final = 8  # bytes; boxes are the square of a cohort

_Step = tuple[Kind, int | None]
"""Messages of a kind about a slot, or about none."""


@dataclass(slots=True, eq=False)
class Session:
    """What passed in one session, as the server saw it.

    Of what devices send, boxes and what is said of keys of links are replaced by digests, and
    vectors and their proofs are left out;
    of what they are sent, rosters and boxes are left out.

    Attributes:
        params: Its parameters.
        number: The round, counted from 1.
        levels: The rounds that it is of, as first announced: one, or one for each level.
        models: Their models, joined.
        place: Where it was announced first.
        ids: The roster as it was sent first, ascending.
        positions: Roster position by device.
        by: The messages of each kind and slot, in order.
        told: What was sent of each kind and slot that all devices must be told alike, and where
            that was sent first.
        proofs: The proofs of sums that were sent, each once.
        sums: What the server says that it learnt, in order.
    """

    params: SessionParams
    number: int
    levels: Levels
    models: bytes
    place: Evidence
    ids: Sequence[int] = ()
    positions: Mapping[int, int] = field(default_factory=dict)
    by: dict[_Step, list[Seen]] = field(default_factory=dict)
    told: dict[_Step, dict[Hashable, Evidence]] = field(default_factory=dict)
    proofs: set[Hashable] = field(default_factory=set)
    sums: list[Sum] = field(default_factory=list)
    _first: dict[_Step, dict[int, Seen]] = field(default_factory=dict)

    @property
    def session_id(self) -> SessionId:
        """The id that parameters and roster give."""
        return self.params.session_id(np.array(self.ids, dtype="<u4").tobytes())

    @property
    def slots(self) -> list[int]:
        """The slots that were heard of, ascending."""
        return sorted({slot for _, slot in self.by if slot is not None})

    def by_level(self) -> Iterator["Level"]:
        """Its levels, each with its configuration and model."""
        models = self.levels.split(self.models)
        for index, (config, model) in enumerate(zip(self.levels.rounds, models, strict=True)):
            first = self.levels.first_slot(index)
            last = first + config.update_slot
            slots = [slot for slot in self.slots if first <= slot <= last]
            yield Level(self, index, config, model, slots, last)

    def of(self, kind: Kind, slot: int | None = None) -> Sequence[Seen]:
        """The messages of a kind about a slot, in order."""
        return self.by.get((kind, slot), ())

    def first(self, kind: Kind, slot: int | None = None) -> Mapping[int, Seen]:
        """The first message of a kind about a slot of each device, or to each."""
        return self._first.get((kind, slot), {})

    def said(self, device: int, kind: Kind, slot: int | None = None) -> SessionMessage | None:
        """What a device sent first of a kind about a slot, or was sent; None if nothing."""
        seen = self.first(kind, slot).get(device)
        return None if seen is None else seen.content.message

    def advertised(self) -> Iterator[tuple[int, AdvertiseKeys, Evidence]]:
        """Device, keys and place of each device's first advertisement."""
        for device, seen in self.first(Kind.ADVERTISE).items():
            if isinstance(seen.content.message, AdvertiseKeys):
                yield device, seen.content.message, seen.place

    def question(self, slot: int) -> Question | None:
        """The question that the first device was asked; None where it is not known."""
        asked = (seen.content.envelope for seen in self.of(Kind.SLOT, slot))
        return next((one.question for one in asked if isinstance(one, Ask)), None)

    def members(self, slot: int) -> Members | None:
        """The first set of devices that a slot was opened with; None where it is not known."""
        told = (seen.content.members for seen in self.of(Kind.SLOT, slot))
        return next((one for one in told if one is not None), None)

    def listed(self, slot: int) -> frozenset[int]:
        """The devices that a slot must be summed over, as devices were told last."""
        whole = self.params.slots[slot].whole
        told = self.of(Kind.SLOT if whole else Kind.REQUEST, slot)
        members = told[-1].content.members if told else None
        return frozenset() if members is None else frozenset(self.at(np.flatnonzero(members)))

    def at(self, positions: Iterable[int] | npt.NDArray[np.integer]) -> list[int]:
        """The devices at positions of the roster; −1 beyond its end."""
        return [self.ids[p] if p < len(self.ids) else -1 for p in map(int, positions)]

    def sum_of(self, slot: int) -> Sum | None:
        """The first sum of a slot; None without one."""
        return next((learnt for learnt in self.sums if learnt.slot == slot), None)

    def take(self, seen: Seen) -> None:
        """Take a message of the session, in its order."""
        content, message = seen.content, seen.content.message
        if content.kind is None:
            return
        step = content.kind, content.slot
        record = replace(seen.record, head=b"")
        kept = Seen(record, replace(content, message=_without_long_parts(message)))
        self.by.setdefault(step, []).append(kept)
        self._first.setdefault(step, {}).setdefault(seen.peer, kept)
        if record.sent:
            self.told.setdefault(step, {}).setdefault(_told(seen), seen.place)
        if isinstance(message, RosterMessage) and not self.ids:
            self.ids = message.roster.tolist()
            self.positions = {device: position for position, device in enumerate(self.ids)}


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """One of a session's levels, with what concerns its round alone.

    Attributes:
        session: The session.
        index: Which level, counted from 0.
        config: The configuration of its round.
        model: Its model.
        slots: Those of the session's slots that are its own and were heard of, ascending.
        update_slot: The session's slot for its update, its last one.
    """

    session: Session
    index: int
    config: RoundConfig
    model: bytes
    slots: Sequence[int]
    update_slot: int

    def answered(self) -> Iterator[tuple[int, Question, Sum]]:
        """Slot, question and first sum, of those of its slots of which both are known, in order."""
        for slot in self.slots:
            question, learnt = self.session.question(slot), self.session.sum_of(slot)
            if question is not None and learnt is not None:
                yield slot, question, learnt


def _told(seen: Seen) -> Hashable:
    """What all devices must be told alike of a message."""
    content, envelope = seen.content, seen.content.envelope
    if isinstance(envelope, Announce):
        return seen.record.sha256
    asked = (envelope.question, envelope.opening) if isinstance(envelope, Ask) else ()
    lists = (content.members, getattr(content.message, "roster", None))
    return (*asked, *(None if one is None else one.tobytes() for one in lists))


def _without_long_parts(message: SessionMessage | None) -> SessionMessage | None:
    match message:
        case RosterMessage() | ShareDelivery():
            return None
        case ShareKeys():
            return replace(message, boxes=digests(message.boxes))
        case ShareReceipt():
            return replace(message, links={p: _said_of(own) for p, own in message.links.items()})
        case MaskedInput():
            return replace(message, packed=b"", proof=b"")
    return message


def _said_of(link: bytes) -> bytes:
    """The tag, and a digest of what both ends must say alike (docs/spec.md §8.9)."""
    said = np.frombuffer(link[TAG_SIZE:], np.uint8).reshape(-1, TAG_SIZE + DIGEST_SIZE)
    return link[:TAG_SIZE] + sha256(said[:, :TAG_SIZE].tobytes()).digest()[:_BOX_DIGEST]


def digests(boxes: Mapping[int, bytes]) -> dict[int, bytes]:
    """Of boxes, by roster position."""
    return {position: sha256(box).digest()[:_BOX_DIGEST] for position, box in boxes.items()}
