"""A round's server played again: the real one, given what the record says that it received.

It must send what the record says that it sent, learn what it says that it learnt, and end as it
says. What it does otherwise is a departure, of a rule that follows from what is different.
"""

from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, fields
from hashlib import sha256
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np

from deltafl.protocol import wire as round_wire
from deltafl.protocol.configuration import UPDATE_SLOT
from deltafl.protocol.messages import Announce, Envelope
from deltafl.protocol.server import RoundServer
from deltafl.secagg import ClientId, DecodeError, SessionParams, SlotSum
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.messages import ConsistencySignature, Outgoing, UnmaskRequest
from deltafl.secagg.messages import Message as SessionMessage
from deltafl.secagg.states import Step
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.record.transcript import Closed, Message, Record, RoundEnd, Sum, sum_sha256

_SHOWN: Final = 5  # devices that are named

_Fields: TypeAlias = dict[str, Any]
"""What a message says, by the names of its fields; `type` is its own."""

_Found: TypeAlias = Iterator[tuple[str, str]]
"""What honest parties do otherwise: the rule that is broken, and in a sentence what there is."""

_Departures: TypeAlias = Iterator[tuple[str, str, *tuple[Evidence, ...]]]
"""The same, and where that is, if it is not at the record that is taken."""

_Signature: TypeAlias = tuple[int, int, bytes]  # of a device, for a slot

_DIFFERENT: Final = {
    "type": ("messages.untimely", "was sent {said} where {due} was due"),
    "slot": ("messages.untimely", "was sent a message about slot {said}, where {due} is the next"),
    "models": ("broadcast.announcement", "was sent another model"),
    "levels": ("broadcast.announcement", "was told other settings of the round"),
    "session": ("broadcast.announcement", "was told other parameters of the session"),
    "question": ("question.unfounded", "was asked {said}, where the sums lead to {due}"),
    "keys": ("keys.substituted", "was shown other keys than its neighbours sent"),
    "boxes": ("boxes.exchanged", "was sent other boxes than devices have sealed for it"),
    "tags": ("links.tags", "was shown other tags than those of the neighbours it has a link with"),
}
"""Of fields that are compared as they are: the rule, and what was otherwise."""


def _fields_of(message: Envelope | SessionMessage) -> _Fields:
    """What a message says, by the names of its fields."""
    said = {one.name: getattr(message, one.name) for one in fields(message)}
    return {"type": type(message).__name__, **said}


def different(
    expected: SessionMessage | _Fields, actual: SessionMessage | _Fields
) -> Iterator[tuple[str, Any, Any]]:
    """In which fields two messages differ, if they are about the same, and what each has there."""
    due, said = (one if isinstance(one, dict) else _fields_of(one) for one in (expected, actual))
    for name in {**due, **said}:
        both = due.get(name), said.get(name)
        one, other = (v.tobytes() if isinstance(v, np.ndarray) else v for v in both)
        if one != other:
            yield name, one, other
            if name in ("type", "slot", "roster"):
                return


@dataclass(slots=True, eq=False)
class ServerReplay:
    """A round's server, played again.

    Once it departs, it is no longer known what devices answered; the rest of the round is passed
    over. A message too many or too few is no reason to.

    Attributes:
        server: The server; it has not been started.
        params: Of its session.
        cohort: Who may be invited.
        lost_track: Whether the rest of the round is passed over.
        silent: Devices that did not answer in time, each with the first step that it missed.
    """

    server: RoundServer
    params: SessionParams
    cohort: frozenset[int]
    lost_track: bool = False
    silent: dict[int, Step] = field(default_factory=dict)
    _due: Outgoing = field(default_factory=dict)
    _sent: set[int] = field(default_factory=set)
    _answered: set[int] = field(default_factory=set)
    _answers: dict[tuple[object, ...], bytes] = field(default_factory=dict)  # the first of each
    _signed: set[_Signature] = field(default_factory=set)
    _roster: Sequence[int] = ()
    _unlearnt: SlotSum | None = None  # a sum that is not recorded yet
    _early: Sequence[Evidence] = ()  # where what follows from it was sent
    _goes_on: bool = False  # after an honest server has given up

    def __post_init__(self) -> None:
        self._due = self.server.start()

    def take(self, record: Record, data: bytes) -> _Departures:
        """Take what the record says of the round, in its order; what it says otherwise.

        Args:
            record: The record.
            data: The message, if it is one.
        """
        match record:
            case Message() if not record.sent:
                yield from self._received(record.peer, data)
            case _ if self.lost_track:
                return
            case Message():
                if self._unlearnt is not None and not self._early:
                    self._early = [Evidence(record.round, record.number)]
                    detail = f"device {record.peer} was sent what follows from a sum before that"
                    yield "messages.untimely", f"{detail} was recorded"
                yield from self._take_sent(record.peer, data)
            case Closed():
                yield from self._closed()
            case Sum():
                yield from self._learnt(record)
            case RoundEnd():
                yield from self._ended(record.aborted)

    def _take_sent(self, peer: int, data: bytes) -> _Found:
        if self._reason:
            if not self._goes_on:
                self._goes_on = True
                detail = f"it goes on, and is to be given up because {self._reason}"
                yield "messages.untimely", detail
            return
        due = self._due.get(ClientId(peer))
        if peer in self._sent or due is None:
            yield self._too_many(peer, data, due)
            return
        self._sent.add(peer)
        if due != data:
            self.lost_track = True
            for rule, detail in self._differences(due, data):
                yield rule, f"device {peer} {detail}"

    def _received(self, peer: int, data: bytes) -> _Found:
        digest = sha256(data).digest()
        key: tuple[object, ...] = peer, digest
        with suppress(DecodeError):
            message = session_wire.decode(data, self.params)
            slot = getattr(message, "slot", 0)
            key = peer, type(message), slot
            if isinstance(message, ConsistencySignature):
                self._signed.add((peer, slot, message.signature))
        if key in self._answers:
            rule = "messages.repeated" if self._answers[key] == digest else "messages.twice"
            yield rule, f"device {peer} had sent an answer to this before"
        self._answers.setdefault(key, digest)
        self._answered.add(peer)
        if not self.lost_track:
            self.server.receive(ClientId(peer), data)

    def _closed(self) -> _Departures:
        if missing := set(self._due) - self._sent:
            yield "messages.missing", f"to {_shown(missing)}, a message was due"
        yield from self._not_learnt()
        if not self._due:
            if not self._goes_on:
                self.lost_track = True
                yield "messages.untimely", "the round goes on after its end"
            return
        for device in self._sent - self._answered:
            self.silent.setdefault(device, self.server.step)
        self._due, self._sent, self._answered = self.server.close_round(), set(), set()
        if not self._roster:
            for data in islice(self._due.values(), 1):
                self._roster = sorted(self._told(data).get("roster", ()))
        self._unlearnt = self.server.revealed
        if self._unlearnt is not None:
            yield from self._unsound(self._unlearnt)

    def _learnt(self, total: Sum) -> _Found:
        due, self._unlearnt = self._unlearnt, None
        if due is None:
            self.lost_track = True
            detail = f"it has a sum of slot {total.slot}, which its messages do not give"
            yield "sums.unreplayable", detail
            return
        said, is_of = (total.slot, total.length, total.sha256), f"the sum of slot {total.slot} is"
        if said != (due.slot, len(due.vector), sum_sha256(due.vector)):
            yield "sums.differ", f"{is_of} another one than its messages give"
        elif total.contributors.tolist() != list(due.contributors):
            yield "sums.differ", f"{is_of} over other devices than those whose vectors are in it"

    def _ended(self, aborted: str) -> _Departures:
        yield from self._not_learnt()
        if self._reason != aborted:
            honest = "goes on" if self._reason is None else f"says {self._reason!r}"
            detail = f"its reason is {aborted[:80]!r}, where an honest server {honest}"
            yield "round.given-up", detail

    @property
    def _reason(self) -> str | None:
        """Why an honest server has given the round up; "" at its end, and None before."""
        outcomes = self.server.outcomes
        return None if outcomes is None else outcomes[0].aborted or ""

    def _unsound(self, revealed: SlotSum) -> _Found:
        """A sum that honest devices cannot give."""
        slot, common = revealed.slot, self.server.levels.common
        spec = self.params.slots[slot]
        if spec.verified and revealed.opening is None:
            yield "proof.impossible", f"the commitments of slot {slot} do not open to its sum"
            return
        layout = common.update_layout if spec.label == UPDATE_SLOT else common.search_layout
        try:
            layout.decode(revealed.vector.astype(np.uint64))
        except EncodingError as error:
            yield "sums.out-of-range", f"the sum of slot {slot}: {error}"

    def _not_learnt(self) -> _Departures:
        due, early = self._unlearnt, self._early
        self._unlearnt, self._early = None, ()
        if due is not None:
            detail = f"the sum of slot {due.slot}, which the server has learnt, is not recorded"
            yield "sums.unrecorded", detail, *early

    def _too_many(self, peer: int, data: bytes, due: bytes | None) -> tuple[str, str]:
        """The rule and the detail of a message that is not due."""
        tag, told = self.params.tag, _Fields()
        with suppress(DecodeError):
            tag = session_wire.tag_of(round_wire.decode(data).session) or b""
            told = self._told(data)
        if tag != self.params.tag:
            return "session.unannounced", f"device {peer} was sent a message of another session"
        if told.get("type") == UnmaskRequest.__name__ and due != data:
            detail = f"device {peer} was asked for shares of slot {told['slot']}"
            return "shares.asked-twice", detail
        if peer in self._sent:
            rule = "messages.repeated" if due == data else "messages.twice"
            return rule, f"device {peer} was sent one more message"
        if peer not in self.cohort:
            return "cohort.uninvited", f"a message was sent to device {peer}, which is not invited"
        if self._due:
            return "cohort.grown", f"device {peer} was sent a message, and had been left out before"
        return "messages.untimely", f"a message was sent to device {peer}, to whom none was due"

    def _told(self, data: bytes) -> _Fields:
        """What a server's message says, with devices in place of their positions in the roster.

        Raises:
            DecodeError: it is none of the session.
        """
        told = _fields_of(round_wire.decode(data))
        if told["type"] == Announce.__name__:
            return told
        told |= _fields_of(session_wire.decode(told.pop("session"), self.params))
        roster = told["roster"].tolist() if "roster" in told else self._roster
        ids = dict(enumerate(roster))
        for name in told.keys() & {"members", "survivors"}:
            told[name] = {ids.get(one, -1) for one in np.flatnonzero(told[name]).tolist()}
        if "signatures" in told:
            signatures = told["signatures"].items()
            told["signatures"] = {(ids.get(one, -1), told["slot"], own) for one, own in signatures}
        if "roster" in told:
            told["roster"] = set(roster)
        return told

    def _differences(self, due: bytes, data: bytes) -> _Found:
        """What is different in a message: rules and details."""
        found: list[tuple[str, str]] = []
        with suppress(DecodeError):  # the check of what is no message says so
            for field_ in different(self._told(due), self._told(data)):
                found += self._in_field(*field_)
        yield from found or [("messages.twice", "was sent what an honest server writes otherwise")]

    def _in_field(self, name: str, due: Any, said: Any) -> _Found:  # noqa: ANN401 - of its own type
        """What is different in a field."""
        match name:
            case "roster" | "members" | "survivors":
                yield from _in_sets(due, said, name)
            case "signatures":
                yield from self._in_signatures(due, said)
            case "opening" if said:
                yield "proof.differs", "was sent another proof than that of the sum before"
            case "opening":
                yield "proof.missing", "was asked without the proof of the sum before"
            case _:
                rule, detail = _DIFFERENT[name]
                yield rule, detail.format(due=due, said=said)

    def _in_signatures(self, due: Set[_Signature], said: Set[_Signature]) -> _Found:
        strange = {device for device, *_ in said - due - self._signed}
        if strange:
            detail = f"was shown a signature of this list that {_shown(strange)} did not send"
            yield "lists.strange-signature", detail
        if len(said) < len(due):
            yield "lists.no-quorum", f"was shown {len(said)} signatures, and there are {len(due)}"
        elif not strange:
            yield "lists.chosen-signatures", "was shown other signatures than the first that count"


def _in_sets(due: Set[int], said: Set[int], what: str) -> _Found:
    answers = "good answer came in time"
    if ignored := due - said:
        detail = f"was told {what} without {_shown(ignored)}, from which a {answers}"
        yield "answers.ignored", detail
    if added := said - due:
        yield "cohort.grown", f"was told {what} with {_shown(added)}, from which no {answers}"


def _shown(devices: Set[int]) -> str:
    some = ", ".join(map(str, sorted(devices)[:_SHOWN])) + (", …" if len(devices) > _SHOWN else "")
    return f"device {some}" if len(devices) == 1 else f"{len(devices)} devices ({some})"
