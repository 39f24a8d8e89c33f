"""Everything that passed through the server, by kind."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.record.transcript import Sum

_KINDS: Final = {
    Kind.OPEN: ("announcement", "nothing: the same for all"),
    Kind.ROSTER: ("roster", "public keys of its neighbours"),
    Kind.DELIVERY: ("delivery of shares", "sealed shares for it"),
    Kind.SLOT: ("question", "nothing: the same for all"),
    Kind.CHECK: ("consistency check", "nothing: the same for all"),
    Kind.REQUEST: ("request for shares", "nothing: the same for all"),
    Kind.OPENING: ("proof of a sum", "nothing: the same for all"),
    Kind.ADVERTISE: ("key advertisement", "its public keys"),
    Kind.SHARE_KEYS: ("sealed shares", "commitments and sealed shares"),
    Kind.RECEIPT: ("receipt of shares", "whose boxes did not open"),
    Kind.MASKED: ("masked vector", "a masked vector"),
    Kind.SIGNATURE: ("consistency signature", "its signature of a list"),
    Kind.SHARES: ("shares", "shares of its neighbours' secrets"),
}
"""What messages are called, and what they tell about a single device."""

_UNKNOWN: Final = ("unknown", "unknown")
_SUM: Final = ("released sum", "nothing by itself")


@dataclass(frozen=True, slots=True)
class Observed:
    """All messages of one kind, or what the server derived from them.

    Attributes:
        kind: What they are, as docs/spec.md calls them.
        individual: What they tell about a single device: "nothing", "public key", …
        sent: Whether the server sent them; else it received them.
        count: Number of messages.
        size: Their total size, in bytes.
        smallest: Size of the smallest, in bytes.
        largest: Size of the largest, in bytes.
    """

    kind: str
    individual: str
    sent: bool
    count: int
    size: int
    smallest: int
    largest: int


class Inventory:
    """Counts messages and sums, by their sizes."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[tuple[str, str], bool], Counter[int]] = defaultdict(Counter)

    def add(self, seen: Seen) -> None:
        """Count a message."""
        kind = seen.content.kind
        about = _UNKNOWN if kind is None else _KINDS[kind]
        self._sizes[about, seen.record.sent][seen.record.size] += 1

    def add_sum(self, released: Sum) -> None:
        """Count a sum."""
        self._sizes[_SUM, False][8 * released.length] += 1

    def observed(self) -> tuple[Observed, ...]:
        """The counts, in the order in which each kind first came."""
        found = []
        for (about, sent), sizes in self._sizes.items():
            size = sum(size * count for size, count in sizes.items())
            found.append(Observed(*about, sent, sizes.total(), size, min(sizes), max(sizes)))
        return tuple(found)
