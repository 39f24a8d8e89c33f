"""The messages of a record, decoded."""

from dataclasses import dataclass, replace
from typing import Final

from deltafl.protocol import wire as round_wire
from deltafl.protocol.messages import Announce, Ask, Envelope
from deltafl.secagg import DecodeError, SessionParams
from deltafl.secagg import wire as session_wire
from deltafl.secagg.graph import Members
from deltafl.secagg.messages import Message as SessionMessage
from deltafl.secagg.messages import SumOpening
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.record.transcript import Message

_AT_KIND: Final = 2  # after the header of the fields, and the version


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a message says.

    Attributes:
        kind: Kind of the session's message; None where it is no message of the protocol.
        tag: The session's tag, 16 bytes; b"" where unknown.
        envelope: The envelope around it; of the server's messages only.
        message: The session's message; None where it cannot be decoded.
        proof: The proof of a sum that comes with a question; None where there is none.
        problem: Why it is not a message of the protocol; "" if nothing is wrong.
        slot: Index of the slot; None where the message has none.
        members: The devices that it names, over the roster; None where it names none.
    """

    kind: Kind | None
    tag: bytes = b""
    envelope: Envelope | None = None
    message: SessionMessage | None = None
    proof: SumOpening | None = None
    problem: str = ""
    slot: int | None = None
    members: Members | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A message in its place.

    Attributes:
        record: The row of the record.
        content: What it says.
        data: The message.
    """

    record: Message
    content: Content
    data: bytes = b""

    @property
    def peer(self) -> int:
        """The device that sent it, or was sent it."""
        return self.record.peer

    @property
    def place(self) -> Evidence:
        """Where it is."""
        return Evidence(self.record.round, self.record.number)


class Decoder:
    """Decodes the messages of one round, in the order in which they passed.

    Attributes:
        params: The sessions that were announced so far, by tag.
    """

    def __init__(self) -> None:
        self.params: dict[bytes, SessionParams] = {}
        self._sent: dict[bytes, Seen] = {}

    def decode(self, record: Message) -> Seen:
        """Decode one message; never raises, whatever the bytes are."""
        if record.sent and (first := self._sent.get(record.head)) is not None:
            return replace(first, record=record)
        try:
            content = (self._of_server if record.sent else self._of_session)(record.head)
            if content.kind is None or (content.kind < Kind.ADVERTISE) != record.sent:
                raise DecodeError("it is a message that only the other side sends")
        except DecodeError as error:
            content = Content(None, problem=str(error))
        seen = Seen(record, content, record.head)
        if record.sent:
            self._sent[record.head] = seen
        return seen

    def _of_server(self, data: bytes) -> Content:
        envelope = round_wire.decode(data)
        if isinstance(envelope, Announce):
            opened = session_wire.decode_open(envelope.session)
            self.params[opened.params.tag] = opened.params
            return Content(Kind.OPEN, opened.params.tag, envelope, opened)
        content, proof = self._of_session(envelope.session), None
        if isinstance(envelope, Ask) and envelope.opening:
            opening = self._of_session(envelope.opening).message
            if not isinstance(opening, SumOpening):
                raise DecodeError("it has another message in place of the proof of a sum")
            proof = opening
        return replace(content, envelope=envelope, proof=proof)

    def _of_session(self, data: bytes) -> Content:
        tag = session_wire.tag_of(data)
        params = self.params.get(tag or b"")
        if tag is None or params is None:
            raise DecodeError("it belongs to no session that was announced in this round")
        message = session_wire.decode(data, params)
        return Content(
            Kind(data[_AT_KIND]),
            tag,
            message=message,
            slot=getattr(message, "slot", None),
            members=getattr(message, "members", getattr(message, "survivors", None)),
        )
