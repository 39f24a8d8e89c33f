"""How many rounds a device takes part in: counted in its ledger, up to a limit of its own.

What noisy sums reveal about a device adds up over its rounds, so its privacy is bounded only if
their number is. The i-th model that a device answers for admits the i-th of a row of entries,
together with the model's own: both or neither. So the count is as durable as the rest of the
ledger, and a crash can only make it too high.

Spec: §12.16.
"""

from bisect import bisect_left
from typing import Final

from deltafl.protocol.labels import PARTICIPATION
from deltafl.secagg import PeerError, Refusal
from deltafl.secagg.labels import digest
from deltafl.secagg.ledger import Ledger

MOST: Final = 1 << 16
"""Largest limit: a ledger remembers several times as many entries."""


def entry(number: int) -> bytes:
    """The ledger's entry of a device's participation, counted from 0; 32 bytes."""
    return digest(PARTICIPATION, number)


def counted(ledger: Ledger, most: int) -> int:
    """Participations that are in the ledger; `most` if there are more."""
    return bisect_left(range(most), True, key=lambda number: not ledger.knows(entry(number)))


def check_left(ledger: Ledger, most: int, wanted: int) -> None:
    """Refuse rounds that would exceed the limit.

    Args:
        ledger: The device's.
        most: The limit; 0 for none.
        wanted: Rounds that are announced.

    Raises:
        PeerError: they are too many.
    """
    if most and (before := counted(ledger, most)) + wanted > most:
        raise PeerError(
            Refusal.POLICY,
            f"{wanted} more rounds after {before} exceed the device's max_participations={most}",
        )


def admit_model(ledger: Ledger, model: bytes, most: int) -> None:
    """Note, durably, that the device answers for a model, and count it.

    Args:
        ledger: The device's.
        model: The model's entry.
        most: The limit; 0 counts nothing.

    Raises:
        PeerError: another round over this model has begun, or the limit is reached.
        LedgerError: the ledger cannot be used.
    """
    while True:
        check_left(ledger, most, 1)
        number = [entry(counted(ledger, most))] if most else []
        if ledger.admit([model, *number]):
            return
        if ledger.knows(model) or not all(map(ledger.knows, number)) or not number:
            raise PeerError(Refusal.MODEL_REPEATED, "another round over this model has begun")
        # Another round of this device was counted between the two calls.
