"""Everything that passed through the server, by kind."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.record.transcript import Sum


@dataclass(frozen=True, slots=True)
class Observed:
    """All messages of one kind, or what the server derived from them.

    Attributes:
        kind: What they are: a message of docs/audit.md, section 7, "Sum", or "unknown".
        sent: Whether the server sent them; else it received them.
        count: Number of messages.
        size: Their total size, in bytes.
        smallest: Size of the smallest, in bytes.
        largest: Size of the largest, in bytes.
    """

    kind: str
    sent: bool
    count: int
    size: int
    smallest: int
    largest: int


class Inventory:
    """Counts messages and sums, by their sizes."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, bool], Counter[int]] = defaultdict(Counter)

    def add(self, seen: Seen) -> None:
        """Count a message."""
        message = seen.content.message
        kind = "unknown" if message is None else type(message).__name__
        self._sizes[kind, seen.record.sent][seen.record.size] += 1

    def add_sum(self, released: Sum) -> None:
        """Count a sum, of 8 bytes a number."""
        self._sizes["Sum", False][8 * released.length] += 1

    def observed(self) -> tuple[Observed, ...]:
        """The counts, in the order in which each kind first came."""
        found = []
        for kind, sizes in self._sizes.items():
            size = sum(size * count for size, count in sizes.items())
            found.append(Observed(*kind, sizes.total(), size, min(sizes), max(sizes)))
        return tuple(found)
