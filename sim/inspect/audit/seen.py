"""The records of a transcript as the messages that they are.

The protocol's own strict readers decode whole messages. For other messages, the first bytes are
enough for most checks: they tell kind, session, slot, and the set of devices that they name.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from deltafl.protocol import wire as round_wire
from deltafl.protocol.messages import Announce, Ask, Envelope
from deltafl.secagg import DecodeError, SessionParams, ring
from deltafl.secagg import wire as session_wire
from deltafl.secagg.codec import Value, write_fields
from deltafl.secagg.graph import Members
from deltafl.secagg.messages import Message as SessionMessage
from deltafl.secagg.messages import SumOpening
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.prefixes import scan
from deltafl.sim.record.transcript import Message

NUM_FIELDS: Final = {
    Kind.ADVERTISE: 6,
    Kind.SHARE_KEYS: 5,
    Kind.RECEIPT: 4,
    Kind.MASKED: 6,
    Kind.SIGNATURE: 5,
    Kind.SHARES: 5,
}
"""Fields of the messages of devices, with version, kind and tag."""

_WITH_SLOT: Final = frozenset(
    {
        Kind.SLOT,
        Kind.CHECK,
        Kind.REQUEST,
        Kind.OPENING,
        Kind.MASKED,
        Kind.SIGNATURE,
        Kind.SHARES,
    }
)
_WITH_MEMBERS: Final = frozenset({Kind.DELIVERY, Kind.SLOT, Kind.CHECK, Kind.REQUEST})
_BEFORE_FIELDS: Final = 3  # version, kind, tag


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a message says, as far as the transcript has it.

    Attributes:
        kind: Kind of the session's message; None where it is none that is known.
        tag: The session's tag, 16 bytes; b"" where unknown.
        slot: Index of the slot; None where the message has none.
        members: The devices that it names, over the roster; None where it names none.
        envelope: The envelope around it; of the server's messages only. What is not whole is empty
            in it: the model of an announcement, the session's message of a question.
        message: The session's message; None where it is not whole or cannot be decoded.
        proof: The proof of a sum that comes with a question; None where there is none.
        problem: Why it is not a message of the protocol; "" if nothing is wrong.
        data: Its first bytes, where there is a problem with them; else b"".
    """

    kind: Kind | None
    tag: bytes = b""
    slot: int | None = None
    members: Members | None = None
    envelope: Envelope | None = None
    message: SessionMessage | None = None
    proof: SumOpening | None = None
    problem: str = ""
    data: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A message in its place.

    Attributes:
        record: The record of the transcript.
        content: What it says.
        data: All that the transcript has of it, wherever that is.
    """

    record: Message
    content: Content
    data: bytes = b""

    @property
    def place(self) -> Evidence:
        """Where it is."""
        return Evidence(self.record.round, self.record.number)


class Decoder:
    """Decodes the messages of one round, in the order in which they passed.

    Attributes:
        params: The sessions that were announced so far, by tag.
        is_opaque: Whether there was an announcement of which the transcript keeps too little.
    """

    def __init__(self) -> None:
        self.params: dict[bytes, SessionParams] = {}
        self.is_opaque = False
        self._sent: dict[int, Seen] = {}

    def decode(self, record: Message) -> Seen:
        """Decode one record; never raises, whatever the bytes are."""
        if record.repeats is not None:
            unknown = Content(
                None, problem=f"record {record.repeats}, which it repeats, is no other"
            )
            first = self._sent.get(record.repeats, Seen(record, unknown))
            return replace(first, record=record)
        try:
            if record.size and not record.head:  # it is not kept
                self.is_opaque = True
                seen = Seen(record, Content(None))
                self._sent |= {record.number: seen} if record.sent else {}
                return seen
            read = self._sent_content if record.sent else self._session_content
            content = read(record.head, whole=record.is_whole)
        except DecodeError as error:
            content = Content(None, problem=str(error), data=record.head)
        seen = Seen(record, content, record.head)
        if record.sent:
            self._sent[record.number] = seen
        return seen

    def _sent_content(self, data: bytes, *, whole: bool) -> Content:
        if whole:
            envelope = round_wire.decode(data)
            session = envelope.session
        else:
            found = _cut_envelope(data)
            if found is None:
                self.is_opaque = True
                return Content(None)
            envelope, session = found
        if isinstance(envelope, Announce):
            opened = session_wire.decode_open(session)
            self.params[opened.params.tag] = opened.params
            return Content(Kind.OPEN, opened.params.tag, envelope=envelope, message=opened)
        content, proof = self._session_content(session, whole=whole), None
        if isinstance(envelope, Ask) and envelope.opening:
            proof = self._proof(envelope.opening)
        return replace(content, envelope=envelope, proof=proof)

    def _proof(self, data: bytes) -> SumOpening | None:
        """The proof of a sum that comes with a question; None if its session is not known."""
        content = self._session_content(data, whole=True)
        if content.kind is not Kind.OPENING:
            raise DecodeError("it has another message in place of the proof of a sum")
        return content.message if isinstance(content.message, SumOpening) else None

    def _session_content(self, data: bytes, *, whole: bool) -> Content:
        tag = session_wire.tag_of(data) or b""
        params = self.params.get(tag)
        if params is None and not self.is_opaque:
            raise DecodeError("it belongs to no session that was announced in this round")
        prefix = scan(data)
        if (
            prefix is None
            or len(prefix.fields) < _BEFORE_FIELDS
            or prefix.fields[1] not in set(Kind)
        ):
            raise DecodeError("it does not begin as a message of a session does")
        kind = Kind(prefix.fields[1])
        if prefix.num_fields != NUM_FIELDS.get(kind, prefix.num_fields):
            raise DecodeError(
                f"it has {prefix.num_fields} fields, and a {kind.name} message has not"
            )
        message = session_wire.decode(data, params) if whole and params is not None else None
        slot, members = _slot_and_members(kind, list(prefix.fields[_BEFORE_FIELDS:]))
        if slot is not None and params is not None and slot >= len(params.slots):
            raise DecodeError(f"it is about slot {slot} of {len(params.slots)}")
        return Content(kind, tag, slot, members, message=message)


def _cut_envelope(data: bytes) -> tuple[Envelope, bytes] | None:
    """The public part of an envelope that is cut, and what is there of the session's message."""
    prefix = scan(data)
    if prefix is None:
        raise DecodeError("it does not begin as an envelope does")
    if (
        not prefix.begins_all
        or not prefix.fields
        or not isinstance(last := prefix.fields[-1], bytes)
    ):
        return None
    envelope = round_wire.decode(write_fields([*prefix.fields[:-1], b""]))
    if isinstance(envelope, Announce):
        return envelope, envelope.session  # what is cut are the models, which come last
    return envelope, last


def _slot_and_members(kind: Kind, fields: list[Value]) -> tuple[int | None, Members | None]:
    """What a message says of slot and devices, if its first bytes reach so far."""
    slot: int | None = None
    if kind in _WITH_SLOT and fields and isinstance(fields[0], int):
        slot = fields[0]
        fields = fields[1:]
    if kind not in _WITH_MEMBERS or len(fields) < 2:
        return slot, None
    count, bits = fields[:2]
    if not isinstance(count, int) or not isinstance(bits, bytes):
        return slot, None
    if len(bits) != ring.packed_size(count, 1):
        return slot, None
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little")
    return slot, unpacked.astype(np.bool_)
