"""The states of a device's round as a table: `TRANSITIONS[state][event]`; others are refused.

The server's round needs no table of its own. `deltafl.protocol.round` decides what is asked next,
and the session's table (`deltafl.secagg.states`) decides which messages may arrive.

Spec: §12.8.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from deltafl.protocol.messages import Announce, Relay
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg.states import Close


class SupplyLoss:
    """Event: the device's caller supplies its weight, and its loss at each level."""


class SupplyUpdate:
    """Event: the device's caller supplies its update, or zeros."""


class SupplyEarlierUpdate:
    """Event: the same, but at a level that is not the last."""


class RoundState(StrEnum):
    """The state of a device's round."""

    IDLE = "idle"
    MEASURING = "measuring"
    SEARCHING = "searching"
    TRAINING = "training"
    UPDATED = "updated"
    FAILED = "failed"


_R = RoundState
TRANSITIONS: Final[Mapping[RoundState, Mapping[type, RoundState]]] = {
    _R.IDLE: {Announce: _R.MEASURING, Close: _R.FAILED},
    _R.MEASURING: {SupplyLoss: _R.SEARCHING, Close: _R.FAILED},
    _R.SEARCHING: {
        Relay: _R.SEARCHING,
        Query: _R.SEARCHING,
        Threshold: _R.TRAINING,
        Close: _R.FAILED,
    },
    _R.TRAINING: {
        SupplyUpdate: _R.UPDATED,
        SupplyEarlierUpdate: _R.SEARCHING,
        Close: _R.FAILED,
    },
    _R.UPDATED: {Relay: _R.UPDATED, Close: _R.FAILED},
    _R.FAILED: {},
}
"""A closed round stays closed."""
