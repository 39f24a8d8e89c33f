"""The steps of a session, and its two machines as tables of the events legal in each state.

`Stage` and `Step` say what devices send, in order. They also say at which step a device vanishes,
and at which the server lost it.

`CLIENT_TRANSITIONS[state][event]` is the next state, and so for the server; an absent event is
illegal in that state. An event is either a message type or a call by the machine's owner, named
after its outcome (`CALLS`). This module decides every transition. What a step does is in
`deltafl.secagg.client` and `deltafl.secagg.server`, which change state only through `follow`.

Spec: §9.1, §10.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, TypeVar

from deltafl.secagg.errors import Fault, Refusal, UsageError
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    MaskedInput,
    Message,
    OpenSlot,
    RosterMessage,
    ServerMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareReceipt,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.params import ClientId, SlotSpec


class Stage(IntEnum):
    """The messages a device sends, in their order.

    LIST comes before a whole slot on whose members nobody has agreed yet. CONFIRM and UNMASK come
    in tolerant slots only.
    """

    ADVERTISE = 0
    SHARE = 1
    RECEIPT = 2
    LIST = 3
    MASK = 4
    CONFIRM = 5
    UNMASK = 6


@dataclass(frozen=True, slots=True)
class Step:
    """One message of a device: its stage, and its slot if the stage has one (else 0).

    Spec: §10.2.
    """

    stage: Stage
    slot: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """A key that sorts steps in time: set-up first, then slot by slot."""
        in_slot = self.stage >= Stage.LIST
        return (int(in_slot), self.slot if in_slot else 0, int(self.stage))


@dataclass(frozen=True, slots=True)
class Vanish:
    """When a device drops out of a session.

    Attributes:
        step: The first message that the server does not get in time.
        late: Whether that message still arrives after its round was closed.
    """

    step: Step
    late: bool = False

    def answers(self, step: Step) -> bool:
        """Whether the device's message of `step` reaches the server in time."""
        return step.order < self.step.order


Vanishing = Mapping[ClientId, Vanish]
"""Which devices vanish, and when; the others stay to the end."""


@dataclass(frozen=True, slots=True)
class Drop:
    """How the server lost a device.

    Attributes:
        fault: What was wrong.
        step: The message that was due from the device when it was dropped.
    """

    fault: Fault
    step: Step


@dataclass(frozen=True, slots=True)
class Dispute:
    """A share that two devices disagree about: one of them lies, and nobody can tell which.

    Attributes:
        owner: The device that dealt the share.
        holder: The device that says it got none (at RECEIPT), or returned a wrong one (at UNMASK).
        step: The step at which the dispute arose.
    """

    owner: ClientId
    holder: ClientId
    step: Step


class CloseRound:
    """Event: the server's caller ends the round, and nothing below has happened."""


class EndSlot:
    """Event: the same, but a slot that is not the last is over, with or without a sum."""


class EndLastSlot:
    """Event: the same, but the last slot is over, with or without a sum."""


class OpenSlotCall:
    """Event: the server's caller opens the next slot."""


class ListSlotCall:
    """Event: the same, but devices must first agree on the members of the slot, a whole one."""


class Abort:
    """Event: a round is ended or a slot opened, and too few devices are left."""


class Contribute:
    """Event: the device's caller supplies the vector of the open slot, a tolerant one."""


class ContributeWhole:
    """Event: the same, for a whole slot."""


class Close:
    """Event: the device refuses a message, or its caller ends the session."""


CALLS: Final = frozenset({CloseRound, EndSlot, EndLastSlot, OpenSlotCall, ListSlotCall, Abort})
"""The server's events that are not messages."""


class ServerState(StrEnum):
    """The state of the server's session, named after what it collects."""

    ADVERTISE = "advertise"
    SHARE = "share"
    RECEIPT = "receipt"
    READY = "ready"
    LIST = "list"
    MASK = "mask"
    CONFIRM = "confirm"
    UNMASK = "unmask"
    DONE = "done"
    ABORTED = "aborted"


class ClientState(StrEnum):
    """The state of a device's session, named after what the device did last."""

    IDLE = "idle"
    ADVERTISED = "advertised"
    SHARED = "shared"
    READY = "ready"
    LISTED = "listed"
    OPENED = "opened"
    MASKED = "masked"
    CONFIRMED = "confirmed"
    FAILED = "failed"


State = TypeVar("State", bound=StrEnum)

_S = ServerState
SERVER_TRANSITIONS: Final[Mapping[ServerState, Mapping[type, ServerState]]] = {
    _S.ADVERTISE: {AdvertiseKeys: _S.ADVERTISE, CloseRound: _S.SHARE, Abort: _S.ABORTED},
    _S.SHARE: {ShareKeys: _S.SHARE, CloseRound: _S.RECEIPT, Abort: _S.ABORTED},
    _S.RECEIPT: {ShareReceipt: _S.RECEIPT, CloseRound: _S.READY},
    _S.READY: {OpenSlotCall: _S.MASK, ListSlotCall: _S.LIST, Abort: _S.ABORTED},
    _S.LIST: {
        ConsistencySignature: _S.LIST,
        CloseRound: _S.MASK,
        EndSlot: _S.READY,
        EndLastSlot: _S.DONE,
    },
    _S.MASK: {
        MaskedInput: _S.MASK,
        CloseRound: _S.CONFIRM,
        EndSlot: _S.READY,
        EndLastSlot: _S.DONE,
        Abort: _S.ABORTED,
    },
    _S.CONFIRM: {
        ConsistencySignature: _S.CONFIRM,
        CloseRound: _S.UNMASK,
        Abort: _S.ABORTED,
    },
    _S.UNMASK: {
        UnmaskShares: _S.UNMASK,
        EndSlot: _S.READY,
        EndLastSlot: _S.DONE,
        Abort: _S.ABORTED,
    },
    _S.DONE: {},
    _S.ABORTED: {},
}
"""Receipts and lists of whole slots may drop devices; if too few are left, this is noticed when a
slot is opened."""

_C = ClientState
CLIENT_TRANSITIONS: Final[Mapping[ClientState, Mapping[type, ClientState]]] = {
    _C.IDLE: {SessionOpen: _C.ADVERTISED, Close: _C.FAILED},
    _C.ADVERTISED: {RosterMessage: _C.SHARED, Close: _C.FAILED},
    _C.SHARED: {ShareDelivery: _C.READY, Close: _C.FAILED},
    _C.READY: {
        OpenSlot: _C.OPENED,
        ConsistencyCheck: _C.LISTED,
        SumOpening: _C.READY,
        Close: _C.FAILED,
    },
    _C.LISTED: {OpenSlot: _C.OPENED, Close: _C.FAILED},
    _C.OPENED: {Contribute: _C.MASKED, ContributeWhole: _C.READY, Close: _C.FAILED},
    _C.MASKED: {ConsistencyCheck: _C.CONFIRMED, Close: _C.FAILED},
    _C.CONFIRMED: {UnmaskRequest: _C.READY, Close: _C.FAILED},
    _C.FAILED: {},
}
"""A closed session stays closed."""

COLLECTED_AT: Final[Mapping[ServerState, Stage]] = {
    _S.ADVERTISE: Stage.ADVERTISE,
    _S.SHARE: Stage.SHARE,
    _S.RECEIPT: Stage.RECEIPT,
    _S.READY: Stage.MASK,
    _S.LIST: Stage.LIST,
    _S.MASK: Stage.MASK,
    _S.CONFIRM: Stage.CONFIRM,
    _S.UNMASK: Stage.UNMASK,
}
"""The stage that a state of the server collects, or waits to collect."""

AWAITED: Final[Mapping[ServerState, frozenset[type]]] = {
    state: frozenset(row) - CALLS for state, row in SERVER_TRANSITIONS.items()
}
"""The messages that are collected in each state of the server."""


def follow(table: Mapping[State, Mapping[type, State]], state: State, event: type) -> State:
    """The state that an event leads to.

    Raises:
        UsageError: the event is illegal in the state.
    """
    following = table[state].get(event)
    if following is None:
        raise UsageError(f"{event.__name__} in state {state}")
    return following


def closing(*, was_open: bool, is_open: bool, is_last: bool) -> type:
    """The event that the end of a round amounts to, if the session goes on. Spec: §10.3.

    Args:
        was_open: Whether a slot was open before the round was ended.
        is_open: Whether a slot is open now.
        is_last: Whether no slot is left to open.
    """
    if is_open or not was_open:
        return CloseRound
    return EndLastSlot if is_last else EndSlot


def is_late(message: Message, now: Step, slots: Sequence[SlotSpec]) -> bool:
    """Whether a device's message belongs to a step before `now`, whose round is over.

    Args:
        message: What the device sent.
        now: The step that is being collected.
        slots: The session's. A signature comes before the vectors of a whole slot, and after those
            of another.
    """
    match message:
        case AdvertiseKeys():
            step = Step(Stage.ADVERTISE)
        case ShareKeys():
            step = Step(Stage.SHARE)
        case ShareReceipt():
            step = Step(Stage.RECEIPT)
        case MaskedInput():
            step = Step(Stage.MASK, message.slot)
        case ConsistencySignature():
            whole = slots[message.slot].whole
            step = Step(Stage.LIST if whole else Stage.CONFIRM, message.slot)
        case UnmaskShares():
            step = Step(Stage.UNMASK, message.slot)
        case _:
            return False
    return step.order < now.order


def untimely(message: ServerMessage, slot: int, state: ClientState) -> Refusal:
    """The refusal that names what an out-of-order message amounts to. Spec: §9.3."""
    match message:
        case OpenSlot() if message.slot <= slot:
            return Refusal.SLOT_REUSED
        case UnmaskRequest() if message.slot == slot and state is ClientState.READY:
            return Refusal.BOTH_SHARE_KINDS
        case ConsistencyCheck() if state in (ClientState.LISTED, ClientState.CONFIRMED):
            return Refusal.INCONSISTENT_SURVIVORS
        case _:
            return Refusal.OUT_OF_ORDER
