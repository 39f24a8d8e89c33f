"""How many devices have given shares of whose secret."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(slots=True, eq=False)
class Holders:
    """Whose shares of one kind came, in one slot.

    Memory is that of the shares: a table of all devices by all would be the square of what a roster
    brings.

    Attributes:
        size: Devices in the roster.

    >>> holders = Holders(3)
    >>> for holder in (0, 1, 1):
    ...     holders.add(holder, np.array([2]))
    >>> holders.counts().tolist()
    [0, 0, 2]
    """

    size: int
    _pairs: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, holder: int, owners: npt.NDArray[np.integer]) -> None:
        """Take in that a holder gave shares of these owners; all are positions in the roster."""
        self._pairs.append(owners.astype(np.int64) + holder * self.size)

    def counts(self) -> npt.NDArray[np.int64]:
        """For each owner, how many holders gave a share."""
        pairs = np.unique(np.concatenate([np.zeros(0, np.int64), *self._pairs]))
        return np.bincount(pairs % self.size, minlength=self.size)
