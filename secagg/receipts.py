"""What the server has been told of links: tags to pass on, digests to compare, hidden keys.

Two devices share masks only if both could read the other's box, derive the same keys, and show the
tags that they derived. The server learns this from the digests in their receipts, and passes each
end the other's tag. Otherwise a device could show its peers wrong tags, which would then refuse
what the server takes for right.

Spec: §5.9, §10.6.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from deltafl.secagg import links
from deltafl.secagg.codec import Records
from deltafl.secagg.errors import Fault
from deltafl.secagg.graph import Graph, Members
from deltafl.secagg.links import TAG_SIZE
from deltafl.secagg.params import DIGEST_SIZE

_HEAD = 2 * TAG_SIZE  # the tag, and the check of both
_SLOT_SIZE = TAG_SIZE + DIGEST_SIZE


class Receipts:
    """The receipts of a session's devices.

    Args:
        graph: The neighbourhoods.
        size: Bytes of what a receipt says of one link.
    """

    def __init__(self, graph: Graph, size: int) -> None:
        self._graph = graph
        self._size = size
        # Indexed by sender and by column among its neighbours. Memory is used only as they arrive.
        shape = (graph.num_devices, graph.degree)
        self._rows: npt.NDArray[np.uint8] = np.empty((*shape, size), dtype=np.uint8)
        self._read: Members = np.zeros(shape, dtype=np.bool_)

    def take(self, position: int, message: Mapping[int, bytes]) -> Fault | None:
        """Store a device's receipt, unless it names a device that is no neighbour."""
        receipt = Records.of(message, self._size)
        near = self._graph.neighbours(position)
        columns = np.searchsorted(near, receipt.positions)
        if (receipt.positions > near[-1]).any() or (near[columns] != receipt.positions).any():
            return Fault.MALFORMED
        self._rows[position, columns] = receipt.rows
        self._read[position, columns] = True
        return None

    def linked(self) -> Members:
        """Which pairs have a link, by device and column among its neighbours."""
        linked: Members = self._read.copy()
        digests = np.arange(self._size - _HEAD) % _SLOT_SIZE < TAG_SIZE
        digests = np.concatenate([np.arange(_HEAD) >= TAG_SIZE, digests])
        for position in range(self._graph.num_devices):
            near = self._graph.neighbours(position)
            columns = self._graph.neighbour_column_of(position, near)
            own, theirs = self._rows[position], self._rows[near, columns]
            same = (own[:, digests] == theirs[:, digests]).all(axis=1)
            linked[position] &= self._read[near, columns] & same
            for index in np.flatnonzero(linked[position] & (near > position)).tolist():
                if not _shows_its_tags(own[index], theirs[index]):
                    linked[position, index] = linked[near[index], columns[index]] = False
        return linked

    def tags_for(self, position: int, linked: Members) -> Records:
        """What its neighbours show a device, of those with whom it has a link.

        Args:
            position: The device's.
            linked: Its row of `linked`.
        """
        near = self._graph.neighbours(position)[linked]
        columns = self._graph.neighbour_column_of(position, near)
        return Records(near, self._rows[near, columns, :TAG_SIZE])

    def revealed(
        self, position: int, column: int, recovery: bytes, peers: npt.NDArray[np.int64]
    ) -> dict[int, bytes]:
        """The keys of a device's links with some peers, by position, of those that are as said.

        Args:
            position: The device's.
            column: That of the tolerant slot.
            recovery: The device's recovery key of the slot.
            peers: Some of those with whom it has a link.
        """
        start = _HEAD + column * _SLOT_SIZE
        rows = self._rows[position, np.searchsorted(self._graph.neighbours(position), peers)]
        keys = dict[int, bytes]()
        for peer, row in zip(peers.tolist(), rows, strict=True):
            digest, hidden = bytes(row[start:][:TAG_SIZE]), row[start + TAG_SIZE :][:DIGEST_SIZE]
            key = links.hide(recovery, position, peer, hidden.tobytes())
            if links.key_digest(key) == digest:
                keys[peer] = key
        return keys


def _shows_its_tags(low: npt.NDArray[np.uint8], high: npt.NDArray[np.uint8]) -> bool:
    """Whether the tags in the receipts of two ends are those that both derived."""
    check = links.tag_check(low[:TAG_SIZE].tobytes(), high[:TAG_SIZE].tobytes())
    return check == low[TAG_SIZE:_HEAD].tobytes()
