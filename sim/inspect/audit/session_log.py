"""What passed in one session, without what is long."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce, Ask
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg.graph import Members
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencySignature,
    MaskedInput,
    RosterMessage,
    ShareKeys,
    UnmaskShares,
)
from deltafl.secagg.params import SessionParams
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.record.transcript import Sum

_BOX_DIGEST: Final = 8  # bytes; boxes are the square of a cohort


class Breach(NamedTuple):
    """Something that a demand forbids.

    Attributes:
        detail: What was seen, one sentence without the full stop.
        places: Where.
        severity: How bad it is, if that is not as with the rule in general.
    """

    detail: str
    places: Sequence[Evidence]
    severity: Severity | None = None


class Passed(NamedTuple):
    """A message without its long parts.

    Attributes:
        peer: The device that sent it, or was sent it.
        sent: Whether the server sent it.
        number: The number of its row.
        place: Where it is.
        digest: Of all its bytes, 32 bytes.
        members: The devices that it lists, over the roster; None where it lists none.
        question: What it asks; None where it asks nothing.
    """

    peer: int
    sent: bool
    number: int
    place: Evidence
    digest: bytes
    members: Members | None
    question: Query | Threshold | None


@dataclass(slots=True, eq=False)
class Session:
    """What passed in one session.

    Attributes:
        params: Its parameters.
        levels: Its rounds, as they were announced first.
        number: The round, counted from 1.
        models: Its models, joined.
        colluding: Share of devices that may collude with an active server; None if it is curious.
        breaks_off: Whether the record of the round stops somewhere.
        ids: The roster, as it was sent first.
        by: The messages of each kind and slot, in order.
        told: What was sent of each kind and slot that all devices must be told alike, and where
            that was sent first.
        keys: The keys that devices advertised first, and where.
        sealed: Digests of the boxes that devices sealed first, by roster position.
        signed: Device, slot and signature of the lists that devices signed.
        committed: What devices committed to, by slot and device.
        given: The shares that came of a slot, each as a number; see `both_kinds`.
        proofs: The proofs of sums that were sent, each once.
        sums: What the server says that it learnt, in order.
    """

    params: SessionParams
    levels: Levels
    number: int
    models: bytes
    colluding: float | None = None
    breaks_off: bool = False
    ids: tuple[int, ...] = ()
    by: dict[tuple[Kind, int | None], list[Passed]] = field(default_factory=dict)
    told: dict[tuple[Kind, int | None], dict[Hashable, Evidence]] = field(default_factory=dict)
    keys: dict[int, tuple[AdvertiseKeys, Evidence]] = field(default_factory=dict)
    sealed: dict[int, Mapping[int, bytes]] = field(default_factory=dict)
    signed: set[tuple[int, int, bytes]] = field(default_factory=set)
    committed: dict[tuple[int, int], bytes] = field(default_factory=dict)
    given: dict[int, list[npt.NDArray[np.int64]]] = field(default_factory=lambda: defaultdict(list))
    proofs: set[Hashable] = field(default_factory=set)
    sums: list[Sum] = field(default_factory=list)

    @property
    def place(self) -> Evidence:
        """Where it was announced first."""
        return self.by[Kind.OPEN, None][0].place

    def of(self, kind: Kind, slot: int | None = None) -> Sequence[Passed]:
        """The messages of a kind about a slot, in order."""
        return self.by.get((kind, slot), ())

    def listed(self, slot: int) -> frozenset[int]:
        """The devices that a slot must be summed over, as devices were told last."""
        whole = self.params.slots[slot].whole
        told = self.of(Kind.SLOT if whole else Kind.REQUEST, slot)
        members = told[-1].members if told else None
        return frozenset() if members is None else frozenset(self.at(np.flatnonzero(members)))

    def at(self, positions: Iterable[int] | npt.NDArray[np.integer]) -> list[int]:
        """The devices at positions of the roster; −1 beyond its end."""
        return [self.ids[p] if p < len(self.ids) else -1 for p in map(int, positions)]

    def take(self, seen: Seen) -> Passed | None:
        """Take a message of the session, in its order; None if it is none of the protocol."""
        content, record = seen.content, seen.record
        kind, slot, peer, envelope = content.kind, content.slot, record.peer, content.envelope
        if kind is None:
            return None
        question = envelope.question if isinstance(envelope, Ask) else None
        place, members = seen.place, content.members
        one = Passed(peer, record.sent, record.number, place, record.sha256, members, question)
        self.by.setdefault((kind, slot), []).append(one)
        if record.sent:
            self.told.setdefault((kind, slot), {}).setdefault(_told(seen), one.place)
        match content.message:
            case AdvertiseKeys() as message:
                self.keys.setdefault(peer, (message, one.place))
            case ShareKeys() as message:
                self.sealed.setdefault(peer, digests(message.boxes))
            case ConsistencySignature() as message:
                self.signed.add((peer, message.slot, bytes(message.signature)))
            case MaskedInput() as message:
                self.committed.setdefault((message.slot, peer), message.committed)
            case UnmaskShares() as message:
                kept = message.positions < len(self.ids)
                owners = message.positions[kept].astype(np.int64) + peer * len(self.ids)
                self.given[message.slot].append(2 * owners + message.kinds[kept])
            case RosterMessage() as message:
                self.ids = self.ids or tuple(message.roster.tolist())
        return one


def _told(seen: Seen) -> Hashable:
    """What all devices must be told alike of a message."""
    content, envelope = seen.content, seen.content.envelope
    if isinstance(envelope, Announce):
        return seen.record.sha256
    asked = (envelope.question, envelope.opening) if isinstance(envelope, Ask) else ()
    lists = (content.members, getattr(content.message, "roster", None))
    return (*asked, *(None if one is None else one.tobytes() for one in lists))


def digests(boxes: Mapping[int, bytes]) -> dict[int, bytes]:
    """Of boxes, by roster position."""
    return {position: sha256(box).digest()[:_BOX_DIGEST] for position, box in boxes.items()}
