"""What is legal when: the two state machines of a session, as tables.

`TRANSITIONS[state][event]` is the next state; an absent event is illegal in that state. Events are
message types and, on the server, its caller's `CloseRound` and `OpenSlotCall`. Everything that
decides transitions lives here; what a step does lives in `secagg.client` and `secagg.server`.

A consistency round would stand between MASK and UNMASK on the server, and between MASKED and the
answer to the unmask request on a device.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from secagg.messages import (
    AdvertiseKeys,
    MaskedInput,
    Message,
    OpenSlot,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    UnmaskRequest,
    UnmaskShares,
)
from secagg.stages import Stage, Step


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
    READY = "ready"
    MASK = "mask"
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
    FAILED = "failed"


_S = ServerState
SERVER_TRANSITIONS: Final[Mapping[ServerState, Mapping[type, ServerState]]] = MappingProxyType(
    {
        _S.ADVERTISE: {AdvertiseKeys: _S.ADVERTISE, CloseRound: _S.SHARE},
        _S.SHARE: {ShareKeys: _S.SHARE, CloseRound: _S.READY},
        _S.READY: {OpenSlotCall: _S.MASK},
        _S.MASK: {MaskedInput: _S.MASK, CloseRound: _S.UNMASK},
        _S.UNMASK: {UnmaskShares: _S.UNMASK, CloseRound: _S.READY},
        _S.DONE: {},
        _S.ABORTED: {},
    }
)
"""Closing a round with too few devices leads to ABORTED instead; closing the last slot, to DONE."""

_C = ClientState
CLIENT_TRANSITIONS: Final[Mapping[ClientState, Mapping[type, ClientState]]] = MappingProxyType(
    {
        _C.IDLE: {SessionOpen: _C.ADVERTISED},
        _C.ADVERTISED: {RosterMessage: _C.SHARED},
        _C.SHARED: {ShareDelivery: _C.READY},
        _C.READY: {OpenSlot: _C.OPENED},
        _C.OPENED: {Contribute: _C.MASKED},
        _C.MASKED: {UnmaskRequest: _C.READY},
        _C.FAILED: {},
    }
)
"""Any message that the device refuses leads to FAILED instead, for good."""

COLLECTED_AT: Final[Mapping[ServerState, Stage]] = MappingProxyType(
    {
        _S.ADVERTISE: Stage.ADVERTISE,
        _S.SHARE: Stage.SHARE,
        _S.READY: Stage.MASK,
        _S.MASK: Stage.MASK,
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
        case MaskedInput():
            step = Step(Stage.MASK, message.slot)
        case UnmaskShares():
            step = Step(Stage.UNMASK, message.slot)
        case _:
            return False
    return step.order < now.order
