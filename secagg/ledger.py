"""What a device has done that it must never do twice, as entries of 32 bytes.

Two sessions over the same values but different devices would reveal, by subtraction, the values of
the devices that are in only one of them. Messages of one could also be replayed in the other. So a
device admits each entry once, such as the context of a signed session, and remembers it before it
says anything.

A ledger belongs to a device and outlives its sessions. `MemoryLedger` lasts as long as its process
and is meant for simulated devices; `SqliteLedger` is a file.

Spec: §9.5, §12.13.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from deltafl.secagg.errors import UsageError

ENTRY_SIZE: Final = 32
"""Bytes of an entry."""

CAPACITY: Final = 1 << 18
"""Entries that a ledger remembers unless told otherwise: five a day for 140 years."""


class Ledger(Protocol):
    """Entries, each admitted once. The oldest are forgotten when there are too many.

    A ledger is safe against repetition only among the entries that it remembers, so its capacity
    has to be far above what a server could make the device admit.
    """

    def admit(self, entries: Sequence[bytes]) -> bool:
        """Whether all entries are new; if so, they are remembered, durably, before this returns.

        If one of them is known, nothing changes: all of them are admitted or none.

        Args:
            entries: 32 bytes each. One that occurs twice counts once.

        Raises:
            UsageError: an entry is not 32 bytes, or there are more than the ledger can remember;
                nothing has changed.
        """
        ...

    def knows(self, entry: bytes) -> bool:
        """Whether the entry was admitted and is not yet forgotten.

        Args:
            entry: 32 bytes.

        Raises:
            UsageError: the entry is not 32 bytes.
        """
        ...


class MemoryLedger:
    """A ledger that is lost with its process.

    Args:
        capacity: Entries that are remembered, at least 1.

    Raises:
        UsageError: the capacity is below 1.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = checked_capacity(capacity)
        self._entries = OrderedDict[bytes, None]()  # the oldest first

    def admit(self, entries: Sequence[bytes]) -> bool:
        """See `Ledger.admit`."""
        wanted = distinct(entries, self._capacity)
        if any(entry in self._entries for entry in wanted):
            return False
        self._entries.update(dict.fromkeys(wanted))
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
        return True

    def knows(self, entry: bytes) -> bool:
        """See `Ledger.knows`."""
        return checked_entry(entry) in self._entries


def checked_capacity(capacity: int) -> int:
    """The capacity, if a ledger may have it.

    Raises:
        UsageError: it is below 1.
    """
    if capacity < 1:
        raise UsageError(f"a ledger cannot remember {capacity} entries: give at least 1")
    return capacity


def checked_entry(entry: bytes) -> bytes:
    """The entry, if it is one.

    Raises:
        UsageError: it is not 32 bytes.
    """
    if not isinstance(entry, bytes):
        raise UsageError(f"an entry of a ledger is {ENTRY_SIZE} bytes, not {type(entry).__name__}")
    if len(entry) != ENTRY_SIZE:
        raise UsageError(f"an entry of a ledger is {ENTRY_SIZE} bytes, not {len(entry)}")
    return entry


def distinct(entries: Sequence[bytes], capacity: int) -> list[bytes]:
    """The entries in their order, each once.

    Args:
        entries: What is to be admitted together.
        capacity: Entries that the ledger remembers.

    Raises:
        UsageError: an entry is not 32 bytes, or there are more than the ledger remembers.
    """
    wanted = list(dict.fromkeys(map(checked_entry, entries)))
    if len(wanted) > capacity:
        # Some would be forgotten at once, though the caller was told that they are remembered.
        raise UsageError(f"{len(wanted)} entries for a ledger that remembers {capacity}")
    return wanted
