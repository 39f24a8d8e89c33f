"""What a device has taken part in, so that it does so once.

Two sessions over the same values and different devices would reveal, by subtraction, whoever is in
one and not in the other; and what was said in one could be shown in the other.

Spec: §9.5.
"""

from collections.abc import Iterable


class Ledger:
    """Contexts of sessions, each admitted once. Belongs to a device, and outlives its sessions.

    Args:
        contexts: 32 bytes each; those admitted before, if the caller kept them.
    """

    def __init__(self, contexts: Iterable[bytes] = ()) -> None:
        self._contexts = set(contexts)

    def admit(self, context: bytes) -> bool:
        """Whether this is the first session of the context; from now on, it is not."""
        if context in self._contexts:
            return False
        self._contexts.add(context)
        return True

    @property
    def contexts(self) -> frozenset[bytes]:
        """All that were admitted, to be kept by the caller."""
        return frozenset(self._contexts)
