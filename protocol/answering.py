"""A device's answers in a round, whatever becomes of the work that they take.

A server that crafts a model may know on which data the device's own code raises an exception. An
exception that ended the round would then tell it, by name, who owns such data, or who passed the
filter. So an exception of the device's own code ends nothing here: a loss that cannot be measured
counts as one that is not finite, and an update that cannot be trained as zeros, all of them
clipped. Such a device sends the same messages as any other. What own code returns is turned into
plain numbers in the same place: an array or a number of another make may raise whenever it is read.

Spec: §12.4.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

import numpy as np

from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.device import Update, check_update, whole_weight
from deltafl.secagg.errors import EncodingError

T = TypeVar("T")

_ABOVE_ALL_WEIGHTS: Final = 2**53 + 1
"""One more than the largest `max_weight` of a configuration: such a weight is clipped."""

Failed = Callable[[Exception], None]
"""Told of every exception of the device's own code, which goes no further."""


class OwnWork(Protocol):
    """What a device works out from its data. Any of it may raise any `Exception`."""

    def weight(self) -> int:
        """n_k ≥ 0."""

    def loss(self, model: bytes) -> float:
        """F_k of a model, in nats."""

    def update(self, model: bytes) -> Update | None:
        """Δ_k = w_k − w after training from a model, float32 of shape (update_length,).

        None where training was given up, for example because it took too long.
        """

    def wait(self, model: bytes) -> None:
        """Take as long as `update` would take: the device did not pass the filter.

        The surest way is to train, and to forget the update.
        """


def answered(machine: RoundClient, data: bytes, own: OwnWork, failed: Failed) -> bytes | None:
    """Let a device take an envelope, and do the work that it is given.

    A weight that cannot be worked out is zero. What is left for the caller to hide is time: a
    failure is quick, and training that hangs never answers (docs/limitations.md).

    Args:
        machine: The device's side of the round.
        data: The envelope.
        own: The device's own code. No exception of it gets out.
        failed: Is told of them. It must not send what it is told to the server. What it raises
            itself goes nowhere.

    Returns:
        The message to send; None if there is none.

    Raises:
        PeerError: as `RoundClient.receive`, `supply_losses` and `supply_update`.
        LedgerError: likewise.
        UsageError: likewise.
    """
    match machine.receive(data):
        case LocalWork.MEASURE_LOSS:
            losses = [_tried(partial(_loss, own, one), math.nan, failed) for one in machine.models]
            return machine.supply_losses(losses, _tried(partial(_weight, own), 0, failed))
        case LocalWork.TRAIN:
            work = partial(_update, own, machine.model, machine.update_length)
            return machine.supply_update(_tried(work, None, failed))
        case LocalWork.WAIT:
            _tried(partial(own.wait, machine.model), None, failed)
            return machine.supply_zeros()
        case reply:
            return reply


def _tried(work: Callable[[], T], otherwise: T, failed: Failed) -> T:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 (whatever the device's own code raises)
        with suppress(Exception):  # a full disk, for example, on which the caller keeps a log
            failed(error)
        return otherwise


def _loss(own: OwnWork, model: bytes) -> float:
    return float(own.loss(model))


def _weight(own: OwnWork) -> int:
    """The device's weight as a plain integer; larger ones than any limit count as one above it."""
    return min(whole_weight(own.weight()), _ABOVE_ALL_WEIGHTS)


def _update(own: OwnWork, model: bytes, length: int) -> Update | None:
    """The device's update, if it is a plain array of the right size and type.

    An array of a subclass is refused: a masked one, for example, has numbers that it does not show.
    """
    update = own.update(model)
    if update is None:
        return None
    if type(update) is not np.ndarray:
        raise EncodingError(f"'update': {type(update).__name__} is not a plain numpy array")
    check_update(update, length)
    return update
