"""What the server has been told of links: tags to pass on, digests to compare, hidden keys.

Two devices share masks only if both could read the other's box, and derive the same keys. The
server learns this from the digests in their receipts, and passes each end the other's tag.

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

_HEAD_SIZE = 2 * TAG_SIZE  # the tag to show, and the digest of both
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
        place = np.arange(self._size) - TAG_SIZE  # the digest of the tags comes first, then slots
        digests = (place >= 0) & ((place - TAG_SIZE) % _SLOT_SIZE < TAG_SIZE) | (
            place // TAG_SIZE == 0
        )
        for position in range(self._graph.num_devices):
            near = self._graph.neighbours(position)
            columns = self._graph.neighbour_column_of(position, near)
            own = self._rows[position][:, digests]
            theirs = self._rows[near, columns][:, digests]
            linked[position] &= self._read[near, columns] & (own == theirs).all(axis=1)
            linked[position] &= linked[near, columns] | (near > position)
            for column in np.flatnonzero(linked[position] & (near > position)).tolist():
                rows = self._rows[position, column], self._rows[near[column], columns[column]]
                low, high = (row[:TAG_SIZE].tobytes() for row in rows)
                said = rows[0][TAG_SIZE:_HEAD_SIZE].tobytes()
                linked[position, column] = links.tags_digest((low, high)) == said
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
    ) -> dict[int, bytes] | None:
        """The keys of a device's links with some peers, by position; None if one is not as said.

        Args:
            position: The device's.
            column: That of the tolerant slot.
            recovery: The device's recovery key of the slot.
            peers: Some of those with whom it has a link.
        """
        start = _HEAD_SIZE + column * _SLOT_SIZE
        rows = self._rows[position, np.searchsorted(self._graph.neighbours(position), peers)]
        keys = dict[int, bytes]()
        for peer, row in zip(peers.tolist(), rows, strict=True):
            digest, hidden = bytes(row[start:][:TAG_SIZE]), row[start + TAG_SIZE :][:DIGEST_SIZE]
            keys[peer] = links.hide(recovery, position, peer, hidden.tobytes())
            if links.key_digest(keys[peer]) != digest:
                return None
        return keys
