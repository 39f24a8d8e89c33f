"""A round's server played again: the real one, given what the record says that it received.

It must send what the record says that it sent, learn what it says that it learnt, and end as it
says. What it does otherwise is a departure, of a rule that follows from what is different.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeAlias

import numpy as np

from deltafl.protocol import wire as round_wire
from deltafl.protocol.configuration import UPDATE_SLOT
from deltafl.protocol.messages import Announce, Ask, Envelope
from deltafl.protocol.server import RoundServer
from deltafl.secagg import ClientId, DecodeError, SessionParams, SlotSum
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
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
        rule: That is broken.
        detail: What is there, and what should be: one sentence.
        place: Where.
    """

    rule: str
    detail: str
    place: Evidence


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
    _answers: dict[tuple[object, ...], bytes] = field(default_factory=dict)  # the first of each
    _signed: set[tuple[int, int, bytes]] = field(default_factory=set)  # with the slot
    _roster: Sequence[int] = ()
    _unlearnt: bool = False
    _early: tuple[int, Evidence] | None = None  # who was sent what follows from that sum
    _goes_on: bool = False  # after an honest server has given up

    def __post_init__(self) -> None:
        self._due = self.server.start()

    def sent(self, peer: int, data: bytes, place: Evidence) -> Iterator[Departure]:
        """The record says that this was sent."""
        if self.lost_track:
            return
        if self._unlearnt and self._early is None:
            self._early = peer, place
        if why := self._given_up:
            if not self._goes_on:
                self._goes_on = True
                yield Departure("messages.untimely", f"the round goes on, {why}", place)
            return
        due = self._due.get(ClientId(peer))
        if peer in self._sent or due is None:
            yield Departure(*self._too_many(peer, data, due), place)
            return
        self._sent.add(peer)
        if due != data:
            self.lost_track = True
            for rule, detail in self._differences(due, data):
                yield Departure(rule, f"to device {peer} {detail}", place)

    def received(self, peer: int, data: bytes, place: Evidence) -> Iterator[Departure]:
        """The record says that this was received."""
        digest = sha256(data).digest()
        key = self._asked_for(peer, data) or (peer, digest)
        if key in self._answers and self._answers[key] == digest:
            detail = f"device {peer} sent a message once more"
            yield Departure("messages.repeated", detail, place)
        elif key in self._answers:
            yield Departure("messages.twice", f"device {peer} sent another answer", place)
        self._answers.setdefault(key, digest)
        self._answered.add(peer)
        if not self.lost_track:
            self.server.receive(ClientId(peer), data)

    def closed(self, place: Evidence) -> Iterator[Departure]:
        """The record says that the trip was closed."""
        if self.lost_track:
            return
        if missing := sorted(set(self._due) - self._sent):
            detail = f"nothing was sent to {_shown(missing)}, where a message was due"
            yield Departure("messages.missing", detail, place)
        yield from self._not_learnt(place)
        if not self._due:
            if not self._goes_on:
                self.lost_track = True
                yield Departure("messages.untimely", "the round goes on after its end", place)
            return
        self._ever |= self._sent
        for device in self._sent - self._answered:
            self.silent.setdefault(device, self.server.step)
        self._answered, self._early = set(), None
        self._due, self._sent = self.server.close_round(), set()
        if not self._roster:
            self._roster = self._roster_in(self._due)
        revealed = self.server.revealed
        self._unlearnt = revealed is not None
        if revealed is not None:
            yield from self._unsound(revealed, place)

    def learnt(self, total: Sum, place: Evidence) -> Iterator[Departure]:
        """The record says that the server has learnt a sum."""
        if self.lost_track:
            return
        revealed = self.server.revealed
        if not self._unlearnt or revealed is None:
            self.lost_track = True
            why = f": {self._given_up}" if self._given_up else ""
            detail = f"it has a sum of slot {total.slot}, which its messages do not give{why}"
            yield Departure("sums.unreplayable", detail, place)
            return
        self._unlearnt = False
        if self._early is not None:
            detail = f"device {self._early[0]} was sent a message before the sum that it follows"
            yield Departure("messages.untimely", f"{detail} from", self._early[1])
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
            self.lost_track = True
            said = f"was given up because {aborted[:80]}" if aborted else "ended"
            detail = f"it {said}, where an honest server goes on"
            yield Departure("round.given-up", detail, place)
            return
        reason = self.server.outcomes[0].aborted or ""
        if reason != aborted:
            said = f"was given up because {aborted[:80]}" if aborted else "ended without a reason"
            honest = f"an honest server gives up because {reason}" if reason else "nothing is wrong"
            yield Departure("round.given-up", f"it {said}; {honest}", place)

    @property
    def _given_up(self) -> str:
        """Why an honest server has given the round up; "" if it has not."""
        outcomes = self.server.outcomes
        reason = outcomes[0].aborted if outcomes else None
        return f"and an honest server gives up because {reason}" if reason else ""

    def _roster_in(self, outgoing: Outgoing) -> Sequence[int]:
        """The roster that devices are sent, if they are."""
        for data in outgoing.values():
            message = session_wire.decode(round_wire.decode(data).session, self.params)
            return message.roster.tolist() if isinstance(message, RosterMessage) else ()
        return ()

    def _asked_for(self, peer: int, data: bytes) -> tuple[object, ...]:
        """What a device's message answers; nothing if it is none."""
        try:
            message = session_wire.decode(data, self.params)
        except DecodeError:
            return ()
        slot = getattr(message, "slot", 0)
        if isinstance(message, ConsistencySignature):
            self._signed.add((peer, slot, bytes(message.signature)))
        return peer, type(message), slot

    def _unsound(self, revealed: SlotSum, place: Evidence) -> Iterator[Departure]:
        """A sum that honest devices cannot give."""
        slot = revealed.slot
        if self.params.slots[slot].verified and revealed.opening is None:
            detail = f"the commitments of slot {slot} do not open to its sum"
            yield Departure("proof.impossible", detail, place)
            return
        layouts = [
            config.update_layout if one.label == UPDATE_SLOT else config.search_layout
            for config in self.server.levels.rounds
            for one in config.slots()
        ]
        try:
            layouts[slot].decode(revealed.vector.astype(np.uint64))
        except EncodingError as error:
            yield Departure("sums.out-of-range", f"the sum of slot {slot}: {error}", place)

    def _not_learnt(self, place: Evidence) -> Iterator[Departure]:
        if self._unlearnt and self.server.revealed is not None:
            self._unlearnt = False
            detail = f"the sum of slot {self.server.revealed.slot}, which the server has learnt, "
            early = place if self._early is None else self._early[1]
            yield Departure("sums.unrecorded", f"{detail}is not recorded", early)
        self._early = None

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
        tag: bytes | None = self.params.tag
        try:
            session = round_wire.decode(data).session
            tag = session_wire.tag_of(session)
            message = session_wire.decode(session, self.params)
        except DecodeError:
            return tag, None
        return tag, message if isinstance(message, UnmaskRequest) else None

    def _differences(self, due: bytes, data: bytes) -> _Found:
        """What is different in a message: rules and details."""
        try:
            expected, actual = round_wire.decode(due), round_wire.decode(data)
        except DecodeError:  # the check of what is no message says so
            return
        if type(expected) is not type(actual):
            yield (
                "messages.untimely",
                f"{_named(actual)} was sent where {_named(expected)} was due",
            )
            return
        otherwise = "messages.twice", "was sent what an honest server writes otherwise"
        yield from list(self._in_envelopes(expected, actual)) or [otherwise]

    def _in_envelopes(self, expected: Envelope, actual: Envelope) -> _Found:
        if isinstance(expected, Announce) and isinstance(actual, Announce):
            yield from _in_announcements(expected, actual)
        if isinstance(expected, Ask) and isinstance(actual, Ask):
            if expected.question != actual.question:
                yield (
                    "question.unfounded",
                    f"was asked {actual.question}, where the sums lead to {expected.question}",
                )
            if expected.opening != actual.opening and actual.opening:
                yield "proof.differs", "was sent another proof than that of the sum before"
            elif expected.opening != actual.opening:
                yield "proof.missing", "was asked without the proof of the sum before"
        if expected.session != actual.session:
            yield from self._in_sessions(expected.session, actual.session)

    def _in_sessions(self, expected: bytes, actual: bytes) -> _Found:
        try:
            due = session_wire.decode(expected, self.params)
            said = session_wire.decode(actual, self.params)
        except DecodeError:
            return
        if type(due) is not type(said):
            yield "messages.untimely", f"{_named(said)} was sent where {_named(due)} was due"
            return
        if getattr(due, "slot", 0) != getattr(said, "slot", 0):
            yield "messages.untimely", "was sent a message about another slot than the open one"
            return
        yield from self._compared(due, said)

    def _compared(self, due: SessionMessage, said: SessionMessage) -> _Found:
        """What is different in two messages of one type."""
        match due, said:
            case RosterMessage(), RosterMessage():
                yield from _in_sets(due.roster.tolist(), said.roster.tolist(), "roster")
                keys, shown = _keys_in(due), _keys_in(said)
                if changed := sorted(i for i, key in shown.items() if keys.get(i, key) != key):
                    yield "keys.substituted", f"was shown other keys than {_shown(changed)} sent"
            case ShareDelivery(), ShareDelivery():
                yield from self._in_members(due.members, said.members, "members")
                if due.boxes != said.boxes:
                    yield "boxes.exchanged", "was sent other boxes than devices have sealed for it"
            case OpenSlot(), OpenSlot():
                yield from self._in_members(due.members, said.members, "members")
                yield from self._in_signatures(due, said)
            case ConsistencyCheck(), ConsistencyCheck():
                yield from self._in_members(due.survivors, said.survivors, "survivors")
            case UnmaskRequest(), UnmaskRequest():
                yield from self._in_members(due.survivors, said.survivors, "survivors")
                yield from self._in_signatures(due, said)

    def _in_members(self, due: np.ndarray, said: np.ndarray, what: str) -> _Found:
        left, right = (self._ids(np.flatnonzero(one).tolist()) for one in (due, said))
        yield from _in_sets(left, right, what)

    def _in_signatures(
        self, due: OpenSlot | UnmaskRequest, said: OpenSlot | UnmaskRequest
    ) -> _Found:
        strange = [
            device
            for (place, own), device in zip(
                said.signatures.items(), self._ids(said.signatures), strict=True
            )
            if due.signatures.get(place) != own
            and (device, said.slot, bytes(own)) not in self._signed
        ]
        if strange:
            detail = f"was shown a signature of this list that {_shown(strange)} did not send"
            yield "lists.strange-signature", detail
        if len(said.signatures) < len(due.signatures):
            number = f"{len(said.signatures)} signatures, and there are {len(due.signatures)}"
            yield "lists.no-quorum", f"was shown {number}"
        elif not strange and said.signatures.keys() != due.signatures.keys():
            yield "lists.chosen-signatures", "was shown other signatures than the first that count"

    def _ids(self, positions: Iterable[int]) -> list[int]:
        """The devices at positions of the roster; −1 beyond its end."""
        roster = self._roster
        return [roster[one] if one < len(roster) else -1 for one in positions]


def _keys_in(message: RosterMessage) -> Mapping[int, AdvertiseKeys]:
    """The keys in a roster, by device."""
    ids = message.roster.tolist()
    return {ids[place]: key for place, key in message.keys.items()}


def _in_announcements(expected: Announce, actual: Announce) -> _Found:
    for name, what in (
        ("models", "was sent another model"),
        ("levels", "was told other settings of the round"),
        ("session", "was told other parameters of the session"),
    ):
        if getattr(expected, name) != getattr(actual, name):
            yield "broadcast.announcement", what


def _in_sets(due: Sequence[int], said: Sequence[int], what: str) -> _Found:
    if ignored := sorted(set(due) - set(said)):
        yield (
            "answers.ignored",
            f"was told {what} without {_shown(ignored)}, from which a good answer came in time",
        )
    if added := sorted(set(said) - set(due)):
        yield (
            "cohort.grown",
            f"was told {what} with {_shown(added)}, from which no good answer came in time",
        )
    if not ignored and not added and list(due) != list(said):
        yield "messages.twice", f"was told {what} in another order"


def _named(message: object) -> str:
    return type(message).__name__


def _shown(devices: Sequence[int]) -> str:
    if len(devices) == 1:
        return f"device {devices[0]}"
    some = ", ".join(map(str, devices[:_SHOWN])) + (", …" if len(devices) > _SHOWN else "")
    return f"{len(devices)} devices ({some})"
