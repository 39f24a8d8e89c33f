"""How many models a device answers for: counted in its ledger, up to limits of its own.

What noisy sums reveal about a device adds up over its rounds, so its privacy is bounded only if
their number is (`max_participations`). How many there are in a day (`max_rounds_per_day`) bounds
how soon a server has filled the ledger, or asked all that it likes, before the device's owner
notices. The i-th model that counts against a limit admits the i-th of a row of entries, together
with the model's own: both or neither. So a count is as durable as the rest of the ledger, and a
crash can only make it too high.

Spec: §12.13, §12.16.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from deltafl.protocol.labels import PARTICIPATION, ROUND_OF_DAY
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import PeerError, Refusal, UsageError
from deltafl.secagg.errors import whole_number
from deltafl.secagg.labels import digest
from deltafl.secagg.ledger import Ledger

_DAYS: Final = 2**63


@dataclass(frozen=True, slots=True)
class Limit:
    """A device's limit on how many models it answers for.

    Attributes:
        name: The field of its policy.
        most: How many; at least 1.
        entry: The ledger's entry of the i-th of them, counted from 0; 32 bytes.
    """

    name: str
    most: int
    entry: Callable[[int], bytes]

    def counted(self, ledger: Ledger) -> int:
        """How many are in the ledger; `most` if there are more."""
        numbers = range(self.most)
        return bisect_left(numbers, True, key=lambda i: not ledger.knows(self.entry(i)))

    def is_near(self, ledger: Ledger) -> bool:
        """Whether nine tenths of them are in the ledger."""
        return ledger.knows(self.entry((9 * self.most - 1) // 10))


def limits_of(policy: RoundPolicy, today: int | None) -> tuple[Limit, ...]:
    """A device's limits.

    Args:
        policy: The device's; 0 is no limit.
        today: The day, as days since any date that stays the same; None not to count by days.

    Raises:
        UsageError: the day is not in [0, 2^63).
    """
    lifelong = partial(digest, PARTICIPATION)
    limits = [Limit("max_participations", policy.max_participations, lifelong)]
    if today is not None:
        if not 0 <= whole_number("today", today) < _DAYS:
            raise UsageError(f"today={today} is not in [0, 2^63)")
        daily = partial(digest, ROUND_OF_DAY, today)
        limits.append(Limit("max_rounds_per_day", policy.max_rounds_per_day, daily))
    return tuple(limit for limit in limits if limit.most)


def check_left(ledger: Ledger, limits: Sequence[Limit], wanted: int) -> None:
    """Refuse rounds that would exceed a limit.

    Args:
        ledger: The device's.
        limits: Its limits.
        wanted: Rounds that are announced.

    Raises:
        PeerError: they are too many.
    """
    for limit in limits:
        before = limit.counted(ledger)
        if before + wanted > limit.most:
            raise PeerError(
                Refusal.POLICY,
                f"{wanted} more rounds after {before} exceed the device's "
                f"{limit.name}={limit.most}",
            )


def admit_model(
    ledger: Ledger,
    model: bytes,
    limits: Sequence[Limit],
    admit: Callable[[Sequence[bytes]], bool],
) -> None:
    """Note, durably, that the device answers for a model, and count it.

    Args:
        ledger: The device's.
        model: The model's entry.
        limits: The device's limits.
        admit: Admits entries to the ledger, all or none, and says whether they are new.

    Raises:
        PeerError: another round over this model has begun, or a limit is reached.
        LedgerError: the ledger cannot be used or is full.
    """
    while True:
        check_left(ledger, limits, 1)
        numbers = [limit.entry(limit.counted(ledger)) for limit in limits]
        if admit([model, *numbers]):
            return
        if ledger.knows(model) or not any(map(ledger.knows, numbers)):
            raise PeerError(Refusal.MODEL_REPEATED, "another round over this model has begun")
        # Another round of this device was counted between the two calls.
