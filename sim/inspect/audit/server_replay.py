"""A round's server played again: the real one, given what the record says that it received.

It must send what the record says that it sent, learn what it says that it learnt, and end as it
says. What it does otherwise is a departure, of a rule that follows from what is different.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeAlias

import numpy as np

from deltafl.protocol import wire as round_wire
from deltafl.protocol.messages import Announce, Ask, Envelope
from deltafl.protocol.server import RoundServer
from deltafl.secagg import ClientId, DecodeError, SessionParams
from deltafl.secagg import wire as session_wire
from deltafl.secagg.messages import (
    ConsistencyCheck,
    OpenSlot,
    Outgoing,
    RosterMessage,
    ShareDelivery,
    UnmaskRequest,
)
from deltafl.secagg.messages import Message as SessionMessage
from deltafl.secagg.states import Step
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.record.transcript import Sum, sum_sha256

_SHOWN: Final = 5  # devices that are named


@dataclass(frozen=True, slots=True)
class Departure:
    """What an honest party does otherwise.

    Attributes:
        rule: That is broken; an id of `replayed.RULES`.
        detail: What is there, and what should be: one sentence.
        place: Where.
    """

    rule: str
    detail: str
    place: Evidence


_Compared: TypeAlias = Callable[["ServerReplay", SessionMessage, SessionMessage], "_Found"]
_Found: TypeAlias = Iterator[tuple[str, str]]  # rule and detail


@dataclass(slots=True, eq=False)
class ServerReplay:
    """A round's server, played again.

    Once it departs, it is no longer known what devices answered; the rest of the round is passed
    over. A message too many or too few is no reason to.

    Attributes:
        server: The server; it has not been started.
        params: Of its session.
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
    _ever: set[int] = field(default_factory=set)
    _answered: set[int] = field(default_factory=set)
    _heard: set[tuple[int, bytes]] = field(default_factory=set)
    _unlearnt: bool = False
    _is_over: bool = False

    def __post_init__(self) -> None:
        self._due = self.server.start()

    def sent(self, peer: int, data: bytes, place: Evidence) -> Iterator[Departure]:
        """The record says that this was sent."""
        if self.lost_track:
            return
        if self._unlearnt:
            self._unlearnt = False
            detail = f"device {peer} was sent a message before the sum that it follows from"
            yield Departure("messages.untimely", detail, place)
        due = self._due.get(ClientId(peer))
        if peer in self._sent or due is None:
            yield Departure(*self._too_many(peer, data, due), place)
            return
        self._sent.add(peer)
        if due != data:
            self._lose_track()
            for rule, detail in self._differences(due, data):
                yield Departure(rule, f"to device {peer} {detail}", place)

    def received(self, peer: int, data: bytes, place: Evidence) -> Iterator[Departure]:
        """The record says that this was received."""
        heard = peer, sha256(data).digest()
        if heard in self._heard:
            detail = f"device {peer} sent a message once more"
            yield Departure("messages.repeated", detail, place)
        self._heard.add(heard)
        self._answered.add(peer)
        if not self.lost_track:
            self.server.receive(ClientId(peer), data)

    def closed(self, place: Evidence) -> Iterator[Departure]:
        """The record says that the trip was closed."""
        if self.lost_track:
            return
        if missing := sorted(set(self._due) - self._sent):
            detail = f"nothing was sent to {_shown(missing)}, to whom a message was due"
            yield Departure("messages.missing", detail, place)
        yield from self._not_learnt(place)
        if not self._due:
            self._lose_track()
            yield Departure("messages.untimely", "the round goes on after its end", place)
            return
        self._ever |= self._sent
        for device in self._sent - self._answered:
            self.silent.setdefault(device, self.server.step)
        self._answered = set()
        self._due, self._sent = self.server.close_round(), set()
        revealed = self.server.revealed
        self._unlearnt = revealed is not None
        is_proved = revealed is not None and self.params.slots[revealed.slot].verified
        if revealed is not None and is_proved and revealed.opening is None:
            detail = f"the commitments of slot {revealed.slot} do not open to its sum"
            yield Departure("proof.impossible", detail, place)

    def learnt(self, total: Sum, place: Evidence) -> Iterator[Departure]:
        """The record says that the server has learnt a sum."""
        if self.lost_track:
            return
        revealed = self.server.revealed
        if not self._unlearnt or revealed is None:
            self._lose_track()
            detail = f"it has a sum of slot {total.slot}, which its messages do not give"
            yield Departure("sums.unreplayable", detail, place)
            return
        self._unlearnt = False
        same = (
            total.slot == revealed.slot
            and total.length == len(revealed.vector)
            and total.sha256 == sum_sha256(revealed.vector)
        )
        if not same:
            yield Departure(
                "sums.differ",
                f"the sum of slot {total.slot} is another one than its messages give",
                place,
            )
        if not np.array_equal(total.contributors, np.array(revealed.contributors)):
            yield Departure(
                "sums.differ",
                f"the sum of slot {total.slot} is said to be over other devices than those whose "
                f"vectors are in it",
                place,
            )

    def ended(self, aborted: str, place: Evidence) -> Iterator[Departure]:
        """The record says that the round is over."""
        if self.lost_track:
            return
        yield from self._not_learnt(place)
        if self.server.outcomes is None:
            self._lose_track()
            said = f"was given up because {aborted[:80]}" if aborted else "ended"
            detail = f"it {said}, where an honest server goes on"
            yield Departure("round.given-up", detail, place)
            return
        self._is_over = True
        reason = self.server.outcomes[0].aborted or ""
        if reason != aborted:
            said = f"was given up because {aborted[:80]}" if aborted else "ended without a reason"
            honest = f"an honest server gives up because {reason}" if reason else "nothing is wrong"
            yield Departure("round.given-up", f"it {said}; {honest}", place)

    def _not_learnt(self, place: Evidence) -> Iterator[Departure]:
        if self._unlearnt and self.server.revealed is not None:
            self._unlearnt = False
            detail = f"the sum of slot {self.server.revealed.slot}, which the server has learnt, "
            yield Departure("sums.unrecorded", f"{detail}is not recorded", place)

    def _lose_track(self) -> None:
        self.lost_track = True

    def _too_many(self, peer: int, data: bytes, due: bytes | None) -> tuple[str, str]:
        """The rule and the detail of a message that is not due."""
        tag, request = self._asks(data)
        if tag != self.params.tag:
            return "session.unannounced", f"device {peer} was sent a message of another session"
        if request is not None and due != data:
            return (
                "shares.asked-twice",
                f"device {peer} was asked for shares of slot {request.slot}",
            )
        if peer in self._sent:
            same = due == data
            what = "the same message" if same else "another message"
            return (
                "messages.repeated" if same else "messages.twice",
                f"{what} was sent to device {peer} once more",
            )
        if peer not in self.cohort:
            return "cohort.uninvited", f"a message was sent to device {peer}, which is not invited"
        if self._ever and peer not in self._ever:
            return "messages.untimely", f"a message was sent to device {peer}, which is not there"
        kept = set(self._due)
        if kept:
            return "cohort.grown", f"device {peer} was sent a message, and had been left out before"
        return "messages.untimely", f"a message was sent to device {peer}, to whom none was due"

    def _asks(self, data: bytes) -> tuple[bytes | None, UnmaskRequest | None]:
        """The session of a message, and the request for shares in it, if it is one."""
        try:
            session = round_wire.decode(data).session
            message = session_wire.decode(session, self.params)
        except DecodeError:
            return self.params.tag, None
        return session_wire.tag_of(session), message if isinstance(message, UnmaskRequest) else None

    def _differences(self, due: bytes, data: bytes) -> _Found:
        """What is different in a message: rules and details."""
        try:
            expected, actual = round_wire.decode(due), round_wire.decode(data)
        except DecodeError as error:
            yield "messages.unreadable", f"was sent what is no message of the protocol: {error}"
            return
        if type(expected) is not type(actual):
            yield (
                "messages.untimely",
                f"{_named(actual)} was sent where {_named(expected)} was due",
            )
            return
        found = False
        for one in self._in_envelopes(expected, actual):
            found = True
            yield one
        if not found:
            yield "messages.twice", "was sent what an honest server writes otherwise"

    def _in_envelopes(self, expected: Envelope, actual: Envelope) -> _Found:
        if isinstance(expected, Announce) and isinstance(actual, Announce):
            yield from _in_announcements(expected, actual)
        if isinstance(expected, Ask) and isinstance(actual, Ask):
            if expected.question != actual.question:
                yield (
                    "question.unfounded",
                    f"was asked {actual.question}, where the sums lead to {expected.question}",
                )
            if expected.opening != actual.opening:
                yield from _in_openings(actual.opening)
        if expected.session != actual.session:
            yield from self._in_sessions(expected.session, actual.session)

    def _in_sessions(self, expected: bytes, actual: bytes) -> _Found:
        try:
            due = session_wire.decode(expected, self.params)
            said = session_wire.decode(actual, self.params)
        except DecodeError as error:
            yield "messages.unreadable", f"was sent what is no message of its session: {error}"
            return
        if type(due) is not type(said):
            yield "messages.untimely", f"{_named(said)} was sent where {_named(due)} was due"
            return
        if getattr(due, "slot", 0) != getattr(said, "slot", 0):
            yield "messages.untimely", "was sent a message about another slot than the open one"
            return
        yield from _compared(due, said)


def _compared(due: SessionMessage, said: SessionMessage) -> _Found:
    """What is different in two messages of one type."""
    match due, said:
        case RosterMessage(), RosterMessage():
            yield from _in_sets(due.roster.tolist(), said.roster.tolist(), "roster")
            if len(due.keys) != len(said.keys) or any(
                said.keys.get(place) != key for place, key in due.keys.items()
            ):
                yield "keys.substituted", "was shown other keys than devices have sent"
        case ShareDelivery(), ShareDelivery():
            yield from _in_members(due.members, said.members, "members")
            if due.boxes != said.boxes:
                yield "boxes.exchanged", "was sent other boxes than devices have sealed for it"
        case OpenSlot(), OpenSlot():
            yield from _in_members(due.members, said.members, "members")
            yield from _in_signatures(due.signatures, said.signatures)
        case ConsistencyCheck(), ConsistencyCheck():
            yield from _in_members(due.survivors, said.survivors, "survivors")
        case UnmaskRequest(), UnmaskRequest():
            yield from _in_members(due.survivors, said.survivors, "survivors")
            yield from _in_signatures(due.signatures, said.signatures)


def _in_announcements(expected: Announce, actual: Announce) -> _Found:
    if expected.models != actual.models:
        yield "broadcast.announcement", "was sent another model"
    if expected.levels != actual.levels:
        yield "broadcast.announcement", "was told other settings of the round"
    if expected.session != actual.session:
        yield "broadcast.announcement", "was told other parameters of the session"


def _in_openings(actual: bytes) -> _Found:
    if not actual:
        yield "proof.missing", "was asked without the proof of the sum before"
    else:
        yield "proof.differs", "was sent another proof than that of the sum before"


def _in_members(due: np.ndarray, said: np.ndarray, what: str) -> _Found:
    size = max(len(due), len(said))
    left, right = (np.flatnonzero(np.pad(one, (0, size - len(one)))) for one in (due, said))
    yield from _in_sets(left.tolist(), right.tolist(), what)


def _in_sets(due: Sequence[int], said: Sequence[int], what: str) -> _Found:
    if ignored := sorted(set(due) - set(said)):
        yield (
            "answers.ignored",
            f"was told {what} without {_shown(ignored)}, whose answers had come in time",
        )
    if added := sorted(set(said) - set(due)):
        yield (
            "cohort.grown",
            f"was told {what} with {_shown(added)}, which had not answered",
        )
    if not ignored and not added and list(due) != list(said):
        yield "messages.twice", f"was told {what} in another order"


def _in_signatures(due: Mapping[int, bytes], said: Mapping[int, bytes]) -> _Found:
    if strange := sorted(place for place, own in said.items() if due.get(place, own) != own):
        yield (
            "lists.strange-signature",
            f"was shown a signature that {_shown(strange)} did not send",
        )
    if len(said) < len(due):
        yield "lists.no-quorum", f"was shown {len(said)} signatures, and there are {len(due)}"
    elif said.keys() != due.keys():
        yield "lists.chosen-signatures", "was shown other signatures than the first that count"


def _named(message: object) -> str:
    return type(message).__name__


def _shown(devices: Sequence[int]) -> str:
    some = ", ".join(map(str, devices[:_SHOWN])) + (", …" if len(devices) > _SHOWN else "")
    return f"{len(devices)} devices ({some})"
