"""The sessions that a device has taken part in, so that it takes part in each only once.

Two sessions over the same values but different devices would reveal, by subtraction, the values of
the devices that are in only one of them. Messages of one could also be replayed in the other.

Spec: §9.5.
"""

from collections.abc import Iterable


class Ledger:
    """Session contexts, each admitted once. It belongs to a device and outlives its sessions.

    Args:
        contexts: 32 bytes each; the contexts admitted earlier, if the caller saved them.
    """

    def __init__(self, contexts: Iterable[bytes] = ()) -> None:
        self._contexts = set(contexts)

    def admit(self, context: bytes) -> bool:
        """Whether the context is new; it is remembered, so a second call returns False."""
        if context in self._contexts:
            return False
        self._contexts.add(context)
        return True

    @property
    def contexts(self) -> frozenset[bytes]:
        """All contexts admitted so far, for the caller to save."""
        return frozenset(self._contexts)
