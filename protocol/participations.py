"""Which models a device answers for, how often, and how many: its ledger holds it to limits.

A device answers for a model in one round. Another round over it, because the first was lost, must
have the same settings, and there are at most so many (`max_rounds_per_model`).

What noisy sums reveal about a device adds up over its rounds, so its privacy is bounded only if
their number is (`max_participations`). How many there are in a day (`max_rounds_per_day`) bounds
how soon a server has filled the ledger, or asked all that it likes, before the device's owner
notices. The i-th round that counts against a limit admits the i-th of a row of entries, together
with the model's own: both or neither. So a count is as durable as the rest of the ledger, and a
crash can only make it too high.

Spec: §12.13, §12.16.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.labels import Label
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import PeerError, Refusal, UsageError
from deltafl.secagg.errors import whole_number
from deltafl.secagg.labels import digest
from deltafl.secagg.ledger import Ledger

_DAYS: Final = 2**63
_FLOAT: Final = np.dtype("<f4")


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

    def check_left(self, ledger: Ledger, wanted: int) -> None:
        """Refuse rounds that would exceed the limit.

        Args:
            ledger: The device's.
            wanted: Rounds that are announced.

        Raises:
            PeerError: they are too many.
        """
        before = self.counted(ledger)
        if before + wanted > self.most:
            raise PeerError(
                Refusal.POLICY,
                f"{wanted} more rounds after {before} exceed the device's {self.name}={self.most}",
            )


def limits_of(policy: RoundPolicy, today: int | None) -> tuple[Limit, ...]:
    """A device's limits.

    Args:
        policy: The device's; 0 is no limit.
        today: The day, as days since any date that stays the same; None not to count by days.

    Raises:
        UsageError: the day is not in [0, 2^63).
    """
    lifelong = partial(digest, Label.PARTICIPATION)
    limits = [Limit("max_participations", policy.max_participations, lifelong)]
    if today is not None:
        if not 0 <= whole_number("today", today) < _DAYS:
            raise UsageError(f"today={today} is not in [0, 2^63)")
        daily = partial(digest, Label.ROUND_OF_DAY, today)
        limits.append(Limit("max_rounds_per_day", policy.max_rounds_per_day, daily))
    return tuple(limit for limit in limits if limit.most)


@dataclass(frozen=True, slots=True)
class Asked:
    """A model that a device is asked about, as its ledger remembers it.

    Attributes:
        model: The model's entry, 32 bytes; that of another level is equal if its model is the same.
        settings: A digest of its round as announced, but for the round's number.
    """

    model: bytes
    settings: bytes

    @classmethod
    def of(cls, config: RoundConfig, model: bytes) -> "Asked":
        """A level's model.

        Args:
            config: The level's round.
            model: The model's bytes.
        """
        settings = digest(Label.AGAIN, replace(config, round_index=0).canonical())
        return cls(digest(Label.MODEL, _as_numbers(model)), settings)

    def next_round(self, ledger: Ledger, most: int) -> tuple[bytes, ...]:
        """The entries of another round over the model; of these it knows one if there may be none.

        Args:
            ledger: The device's; it is only read.
            most: In how many rounds it answers for a model, at least 1.
        """
        if most == 1:
            return (self.model,)
        round_of = partial(digest, Label.AGAIN, self.model, self.settings)
        if not ledger.knows(self.model):
            return (self.model, round_of(0))
        number = bisect_left(range(most), True, key=lambda i: not ledger.knows(round_of(i)))
        return (round_of(number),) if 0 < number < most else (self.model,)

    def check(self, ledger: Ledger, most: int) -> None:
        """Refuse a model for which the device has answered, and may not do so again.

        Args:
            ledger: The device's.
            most: As of `next_round`.

        Raises:
            PeerError: it is one.
        """
        if any(map(ledger.knows, self.next_round(ledger, most))):
            # Two searches over one model reveal, by subtraction, a device that is in only one.
            again = f" with other settings, or in max_rounds_per_model={most} rounds" * (most > 1)
            raise PeerError(
                Refusal.MODEL_REPEATED, f"the device answered for this model before{again}"
            )

    def admit(
        self,
        ledger: Ledger,
        most: int,
        limits: Sequence[Limit],
        admit: Callable[[Sequence[bytes]], bool],
    ) -> None:
        """Note, durably, that the device answers for a model, and count it.

        Args:
            ledger: The device's.
            most: As of `next_round`.
            limits: The device's limits.
            admit: Admits entries to the ledger, all or none, and says whether they are new.

        Raises:
            PeerError: another round over this model has begun, or a limit is reached.
            LedgerError: the ledger cannot be used or is full.
        """
        while True:
            for limit in limits:
                limit.check_left(ledger, 1)
            own = self.next_round(ledger, most)
            entries = [*own, *(limit.entry(limit.counted(ledger)) for limit in limits)]
            if admit(entries):
                return
            is_repeated = self.model in own and ledger.knows(self.model)
            if is_repeated or not any(map(ledger.knows, entries)):
                raise PeerError(Refusal.MODEL_REPEATED, "another round over this model has begun")
            # Another round of this device was counted between the two calls.


def _as_numbers(model: bytes) -> bytes:
    """A model with one spelling of zero and one of NaN, if it consists of float32.

    Models that differ only in such bytes are one model to whoever computes with them.
    """
    if len(model) % _FLOAT.itemsize:
        return model
    with np.errstate(invalid="ignore"):
        numbers = np.frombuffer(model, dtype=_FLOAT) + np.float32(0)  # −0 + 0 is 0
    numbers[np.isnan(numbers)] = np.nan
    return bytes(numbers.astype(_FLOAT, copy=False).tobytes())
