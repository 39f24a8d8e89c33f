"""What a device has done that it must never do twice, as entries of 32 bytes.

Two sessions over the same values but different devices would reveal, by subtraction, the values of
the devices that are in only one of them. So a device admits each entry once, such as the context of
a signed session, and remembers it before it says anything that depends on its data. What costs the
server no more than an announcement is not admitted, and nothing is ever forgotten: a ledger that is
full admits nothing more.

A ledger belongs to a device and outlives its sessions. `MemoryLedger` lasts as long as its process
and is meant for simulated devices; `SqliteLedger` is a file.

Spec: §9.5, §12.13.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from deltafl.secagg.errors import LedgerError, UsageError

ENTRY_SIZE: Final = 32
"""Bytes of an entry."""

CAPACITY: Final = 1 << 18
"""Entries that a ledger has room for unless told otherwise. A round takes five at most."""


class Ledger(Protocol):
    """Entries, each admitted once and never forgotten."""

    def admit(self, entries: Sequence[bytes]) -> bool:
        """Whether all entries are new; if so, they are remembered, durably, before this returns.

        If one of them is known, nothing changes: all of them are admitted or none.

        Args:
            entries: 32 bytes each. One that occurs twice counts once.

        Raises:
            UsageError: an entry is not 32 bytes; nothing has changed.
            LedgerError: there is no room for all of them; nothing has changed.
        """
        ...

    def knows(self, entry: bytes) -> bool:
        """Whether the entry was admitted.

        Args:
            entry: 32 bytes.

        Raises:
            UsageError: the entry is not 32 bytes.
        """
        ...


class MemoryLedger:
    """A ledger that is lost with its process.

    Args:
        capacity: Entries that it has room for, at least 1.

    Raises:
        UsageError: the capacity is below 1.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = checked_capacity(capacity)
        self._entries = set[bytes]()

    def admit(self, entries: Sequence[bytes]) -> bool:
        """See `Ledger.admit`."""
        wanted = distinct(entries)
        if any(entry in self._entries for entry in wanted):
            return False
        check_room(len(self._entries), len(wanted), self._capacity)
        self._entries.update(wanted)
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
        raise UsageError(f"a ledger has no room for {capacity} entries: give at least 1")
    return capacity


def check_room(held: int, wanted: int, capacity: int) -> None:
    """Refuse to admit what there is no room for.

    Raises:
        LedgerError: there would be more entries than the capacity.
    """
    if held + wanted > capacity:
        raise LedgerError(
            f"the ledger is full: {wanted} more entries after {held} exceed its capacity of "
            f"{capacity}, and none is ever forgotten; open it with a larger capacity, or give the "
            "device a new identity and a new ledger"
        )


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


def distinct(entries: Sequence[bytes]) -> list[bytes]:
    """The entries in their order, each once.

    Raises:
        UsageError: an entry is not 32 bytes.
    """
    return list(dict.fromkeys(map(checked_entry, entries)))
