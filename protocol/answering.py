"""A device's answers in a round, whatever becomes of the work that they take.

A server that crafts a model may know on which data the device's own code raises an exception. An
exception that ended the round would then tell it, by name, who owns such data, or who passed the
filter. So an exception of the device's own code ends nothing here: a loss that cannot be measured
counts as one that is not finite, and an update that cannot be trained as zeros, all of them
clipped. Such a device sends the same messages as any other.

Spec: §12.4.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.device import Update
from deltafl.protocol.errors import EncodingError

T = TypeVar("T")

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


def answered(machine: RoundClient, data: bytes, own: OwnWork, failed: Failed) -> bytes | None:
    """Let a device take an envelope, and do the work that it is given.

    A weight that cannot be worked out is zero. What is left for the caller to hide is time: a
    failure is quick, and training that hangs never answers (docs/limitations.md).

    Args:
        machine: The device's side of the round.
        data: The envelope.
        own: The device's own code. No exception of it gets out.
        failed: Is told of them. It must not send what it is told to the server.

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
            weight = _tried(own.weight, 0, failed)
            try:
                return machine.supply_losses(losses, weight)
            except EncodingError as error:
                failed(error)
                return machine.supply_losses(losses, 0)
        case LocalWork.TRAIN:
            update = _tried(partial(own.update, machine.model), None, failed)
            try:
                return machine.supply_update(update)
            except EncodingError as error:
                failed(error)
                return machine.supply_update(None)
        case LocalWork.WAIT:
            return machine.supply_zeros()
        case reply:
            return reply


def _tried(work: Callable[[], T], otherwise: T, failed: Failed) -> T:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 (whatever the device's own code raises)
        failed(error)
        return otherwise


def _loss(own: OwnWork, model: bytes) -> float:
    return float(own.loss(model))
