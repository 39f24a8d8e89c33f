"""What passed in one session, without what is long, and what was amiss with it when it came."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce, Ask
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ring
from deltafl.secagg.graph import Members
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencySignature,
    MaskedInput,
    OpenSlot,
    RosterMessage,
    ShareDelivery,
    ShareKeys,
    ShareKind,
    ShareReceipt,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.params import SessionParams
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.record.transcript import Sum, sum_sha256

_BOX_DIGEST: Final = 8  # bytes; boxes are the square of a cohort


@dataclass(frozen=True, slots=True)
class Breach:
    """Something that an invariant forbids.

    Attributes:
        detail: What was seen, one sentence without the full stop.
        places: Where.
        severity: How bad it is, if that is not as with the rule in general.
    """

    detail: str
    places: Sequence[Evidence]
    severity: Severity | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """A message without its long parts.

    Attributes:
        kind: Its kind.
        slot: The slot that it is about; None without one.
        peer: The device that sent it, or was sent it.
        sent: Whether the server sent it.
        place: Where it is.
        digest: Of all its bytes, 32 bytes.
        told: What every device must be told alike; b"" from a device.
        members: The devices that it lists, over the roster; None where it lists none.
        question: What it asks; None where it asks nothing.
    """

    kind: Kind
    slot: int | None
    peer: int
    sent: bool
    place: Evidence
    digest: bytes
    told: bytes = b""
    members: Members | None = None
    question: Query | Threshold | None = None

    @property
    def number(self) -> int:
        """The number of its row."""
        return self.place.record or 0


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
        keys: The keys that devices advertised first, and where.
        committed: What devices committed to, by slot and device.
        given: Whose shares came of a slot: the holder, and positions of owners with kinds.
        sums: What the server says that it learnt, in order.
        amiss: What was wrong with messages when they came, by the invariant that looks after it.
    """

    params: SessionParams
    levels: Levels
    number: int
    models: bytes
    colluding: float | None = None
    breaks_off: bool = False
    ids: tuple[int, ...] = ()
    by: dict[tuple[Kind, int | None], list[Passed]] = field(default_factory=dict)
    keys: dict[int, tuple[AdvertiseKeys, Evidence]] = field(default_factory=dict)
    committed: dict[tuple[int, int], bytes] = field(default_factory=dict)
    given: dict[int, list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.uint8]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    sums: list[Sum] = field(default_factory=list)
    amiss: dict[str, list[Breach]] = field(default_factory=lambda: defaultdict(list))
    _sealed: dict[int, Mapping[int, bytes]] = field(default_factory=dict)
    _signed: set[tuple[int, int, bytes]] = field(default_factory=set)
    _proofs: set[bytes] = field(default_factory=set)

    @property
    def place(self) -> Evidence:
        """Where it was announced first."""
        return self.by[Kind.OPEN, None][0].place

    def of(self, kind: Kind, slot: int | None = None) -> Sequence[Passed]:
        """The messages of a kind about a slot, in order."""
        return self.by.get((kind, slot), ())

    def lists(self) -> list[Passed]:
        """The messages that list devices, in order."""
        every = (one for group in self.by.values() for one in group if one.members is not None)
        return sorted(every, key=lambda one: one.number)

    def listed(self, slot: int) -> frozenset[int]:
        """The devices that a slot must be summed over, as devices were told last."""
        whole = self.params.slots[slot].whole
        told = self.of(Kind.SLOT if whole else Kind.REQUEST, slot)
        members = told[-1].members if told else None
        return frozenset() if members is None else frozenset(self.at(np.flatnonzero(members)))

    def opened(self, slot: int) -> bool:
        """Whether a slot was opened."""
        return (Kind.SLOT, slot) in self.by

    def at(self, positions: npt.NDArray[np.integer] | Sequence[int]) -> list[int]:
        """The devices at positions of the roster; −1 beyond its end."""
        return [self.ids[p] if p < len(self.ids) else -1 for p in map(int, positions)]

    def take(self, seen: Seen) -> None:
        """Take a message of the session, in its order."""
        content, record = seen.content, seen.record
        if content.kind is None:
            return
        envelope = content.envelope
        one = Passed(
            content.kind,
            content.slot,
            record.peer,
            record.sent,
            seen.place,
            record.sha256,
            _told(seen) if record.sent else b"",
            content.members,
            envelope.question if isinstance(envelope, Ask) else None,
        )
        self.by.setdefault((one.kind, one.slot), []).append(one)
        match content.message:
            case AdvertiseKeys() as message:
                self.keys.setdefault(one.peer, (message, one.place))
            case ShareKeys() as message:
                self._sealed.setdefault(one.peer, _digests(message.boxes))
            case ConsistencySignature() as message:
                self._signed.add((one.peer, message.slot, bytes(message.signature)))
            case MaskedInput() as message:
                self.committed.setdefault((message.slot, one.peer), message.committed)
            case UnmaskShares() as message:
                positions = message.positions.astype(np.int64)
                self.given[message.slot].append((one.peer, positions, message.kinds.copy()))
                self.amiss["answers"] += _unfitting_shares(self, message, one)
            case ShareReceipt() as message if message.refused:
                self.amiss["complaints"].append(_complaint(self, message, one))
            case RosterMessage() as message:
                self.ids = self.ids or tuple(message.roster.tolist())
                self.amiss["relayed"] += _exchanged_keys(self, message, one)
            case ShareDelivery() as message:
                self.amiss["relayed"] += _exchanged_boxes(self, message, one, self._sealed)
            case OpenSlot() | UnmaskRequest() as message:
                self.amiss["relayed"] += _strange_signers(self, message, one, self._signed)
        if content.proof is not None and one.told not in self._proofs:
            self._proofs.add(one.told)
            self.amiss["relayed"] += _other_proof(self, content.proof, one)


def _told(seen: Seen) -> bytes:
    """What all devices must be told alike of a message, as a digest."""
    content, message = seen.content, seen.content.message
    if isinstance(content.envelope, Announce):
        return seen.record.sha256
    told = sha256(b"" if content.members is None else content.members.tobytes())
    if isinstance(message, RosterMessage):
        told.update(message.roster.tobytes())
    if isinstance(content.envelope, Ask):
        told.update(content.envelope.question.canonical() + content.envelope.opening)
    return told.digest()


def _digests(boxes: Mapping[int, bytes]) -> dict[int, bytes]:
    return {position: sha256(box).digest()[:_BOX_DIGEST] for position, box in boxes.items()}


# What is looked at when a message comes, as its long parts are not kept.


def _exchanged_keys(s: Session, message: RosterMessage, one: Passed) -> Iterator[Breach]:
    ids = message.roster.tolist()
    for position, shown in message.keys.items():
        device = ids[position] if position < len(ids) else -1
        if s.keys.get(device, (None,))[0] != shown:
            yield Breach(
                f"device {one.peer} was shown other keys than device {device} sent", [one.place]
            )
            return


def _exchanged_boxes(
    s: Session, message: ShareDelivery, one: Passed, sealed: Mapping[int, Mapping[int, bytes]]
) -> Iterator[Breach]:
    own = s.ids.index(one.peer) if one.peer in s.ids else -1
    for position, digest in _digests(message.boxes).items():
        (sender,) = s.at([position])
        if sealed.get(sender, {}).get(own) != digest:
            yield Breach(
                f"device {one.peer} was sent another box than device {sender} sealed", [one.place]
            )
            return


def _strange_signers(
    s: Session, message: OpenSlot | UnmaskRequest, one: Passed, signed: set[tuple[int, int, bytes]]
) -> Iterator[Breach]:
    """A list for which too few devices speak, or others than those that it is made of."""
    if not s.params.signed or one.members is None or _is_agreed(s, one):
        return
    signers = dict(zip(s.at(list(message.signatures)), message.signatures.items(), strict=True))
    good = [
        device
        for device, (position, own) in signers.items()
        if position < len(one.members)
        and one.members[position]
        and (device, message.slot, bytes(own)) in signed
    ]
    if len(good) < max(s.params.threshold, len(signers)):
        yield Breach(
            f"device {one.peer} was shown {len(signers)} signatures of the list of slot "
            f"{message.slot}, of which {len(good)} came from devices of that list; "
            f"{s.params.threshold} must",
            [one.place],
        )


def _is_agreed(s: Session, one: Passed) -> bool:
    """Whether a slot is opened over a list that needs no signatures, or none any more."""
    if one.kind is not Kind.SLOT or one.slot is None:
        return False
    slots = s.params.slots
    return not slots[one.slot].whole or any(
        s.of(Kind.SLOT if slots[index].whole else Kind.REQUEST, index) for index in range(one.slot)
    )


def _other_proof(s: Session, proof: SumOpening, one: Passed) -> Iterator[Breach]:
    spec = s.params.slots[proof.slot]
    devices = dict(zip(s.at(list(proof.committed)), proof.committed.values(), strict=True))
    total = ring.unpack(proof.packed, spec.wire_length, spec.ring_bits)[: spec.length]
    said = {learnt.sha256 for learnt in s.sums if learnt.slot == proof.slot}
    if said != {sum_sha256(total)}:
        yield Breach(f"the proof of slot {proof.slot} is not of the sum in the record", [one.place])
    size = len(next(iter(devices.values()), b""))
    if any(s.committed.get((proof.slot, d), b"")[:size] != own for d, own in devices.items()):
        yield Breach(f"the proof of slot {proof.slot} has what no device sent", [one.place])
    if devices.keys() != s.listed(proof.slot):
        yield Breach(f"the proof of slot {proof.slot} is over other devices", [one.place])


def _unfitting_shares(s: Session, message: UnmaskShares, one: Passed) -> Iterator[Breach]:
    requests = [ask for ask in s.of(Kind.REQUEST, message.slot) if ask.peer == one.peer]
    opened = s.of(Kind.SLOT, message.slot)
    if not requests or not opened:
        return  # nobody asked for them; this is found by itself
    survivors, members = requests[-1].members, opened[0].members
    if survivors is None or members is None or len(survivors) != len(members):
        return
    positions = message.positions
    kinds = np.where(survivors, ShareKind.SEED, ShareKind.KEY)
    fits = (positions < len(members)).all() and members[positions].all()
    if not fits or (kinds[positions] != message.kinds).any():
        yield Breach(f"device {one.peer} gave shares that it was not asked for", [one.place])


def _complaint(s: Session, message: ShareReceipt, one: Passed) -> Breach:
    some = ", ".join(map(str, s.at(message.refused[:5])))
    more = f" and {len(message.refused) - 5} more" if message.refused[5:] else ""
    return Breach(f"device {one.peer} refused the boxes of devices {some}{more}", [one.place])
