"""What is legal when: the two state machines of a session, as tables.

`TRANSITIONS[signed][state][event]` is the next state; an absent event is illegal in that state.
Events are message types and, on the server, its caller's `CloseRound` and `OpenSlotCall`.
Everything that decides transitions lives here; what a step does lives in `deltafl.secagg.client`
and `deltafl.secagg.server`.

Signed sessions have tables of their own, with a consistency round in front of every unmasking.

Spec: §9.1, §10.1.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    MaskedInput,
    Message,
    OpenSlot,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareReceipt,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.stages import Stage, Step


class CloseRound:
    """Event: the server's caller ends the round."""


class OpenSlotCall:
    """Event: the server's caller opens the next slot."""


class Contribute:
    """Event: the device's caller supplies the vector of the open slot."""


class ServerState(StrEnum):
    """Where the server's session stands, named after what it collects."""

    ADVERTISE = "advertise"
    SHARE = "share"
    RECEIPT = "receipt"
    READY = "ready"
    MASK = "mask"
    CONFIRM = "confirm"
    UNMASK = "unmask"
    DONE = "done"
    ABORTED = "aborted"


class ClientState(StrEnum):
    """Where a device's session stands, named after what it has done last."""

    IDLE = "idle"
    ADVERTISED = "advertised"
    SHARED = "shared"
    READY = "ready"
    OPENED = "opened"
    MASKED = "masked"
    CONFIRMED = "confirmed"
    FAILED = "failed"


_S = ServerState
_SERVER: Final[Mapping[ServerState, Mapping[type, ServerState]]] = {
    _S.ADVERTISE: {AdvertiseKeys: _S.ADVERTISE, CloseRound: _S.SHARE},
    _S.SHARE: {ShareKeys: _S.SHARE, CloseRound: _S.RECEIPT},
    _S.RECEIPT: {ShareReceipt: _S.RECEIPT, CloseRound: _S.READY},
    _S.READY: {OpenSlotCall: _S.MASK},
    _S.MASK: {MaskedInput: _S.MASK, CloseRound: _S.UNMASK},
    _S.CONFIRM: {},
    _S.UNMASK: {UnmaskShares: _S.UNMASK, CloseRound: _S.READY},
    _S.DONE: {},
    _S.ABORTED: {},
}
_C = ClientState
_CLIENT: Final[Mapping[ClientState, Mapping[type, ClientState]]] = {
    _C.IDLE: {SessionOpen: _C.ADVERTISED},
    _C.ADVERTISED: {RosterMessage: _C.SHARED},
    _C.SHARED: {ShareDelivery: _C.READY},
    _C.READY: {OpenSlot: _C.OPENED},
    _C.OPENED: {Contribute: _C.MASKED},
    _C.MASKED: {UnmaskRequest: _C.READY, OpenSlot: _C.OPENED},
    _C.CONFIRMED: {},
    _C.FAILED: {},
}

SERVER_TRANSITIONS: Final[Mapping[bool, Mapping[ServerState, Mapping[type, ServerState]]]] = (
    MappingProxyType(
        {
            False: _SERVER,
            True: {
                **_SERVER,
                _S.MASK: {MaskedInput: _S.MASK, CloseRound: _S.CONFIRM},
                _S.CONFIRM: {ConsistencySignature: _S.CONFIRM, CloseRound: _S.UNMASK},
            },
        }
    )
)
"""By whether the session is signed. Closing a round with too few devices leads to ABORTED instead;
closing the last slot, to DONE; closing MASK where a device is missing from a whole slot, to READY.
"""

CLIENT_TRANSITIONS: Final[Mapping[bool, Mapping[ClientState, Mapping[type, ClientState]]]] = (
    MappingProxyType(
        {
            False: _CLIENT,
            True: {
                **_CLIENT,
                _C.MASKED: {ConsistencyCheck: _C.CONFIRMED, OpenSlot: _C.OPENED},
                _C.CONFIRMED: {UnmaskRequest: _C.READY},
            },
        }
    )
)
"""By whether the session is signed. Any message that the device refuses leads to FAILED instead,
for good."""

COLLECTED_AT: Final[Mapping[ServerState, Stage]] = MappingProxyType(
    {
        _S.ADVERTISE: Stage.ADVERTISE,
        _S.SHARE: Stage.SHARE,
        _S.RECEIPT: Stage.RECEIPT,
        _S.READY: Stage.MASK,
        _S.MASK: Stage.MASK,
        _S.CONFIRM: Stage.CONFIRM,
        _S.UNMASK: Stage.UNMASK,
    }
)
"""The stage that a state of the server collects, or waits to collect."""


def is_late(message: Message, now: Step) -> bool:
    """Whether a device's message belongs to a step before `now`, whose round is over."""
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
            step = Step(Stage.CONFIRM, message.slot)
        case UnmaskShares():
            step = Step(Stage.UNMASK, message.slot)
        case _:
            return False
    return step.order < now.order
