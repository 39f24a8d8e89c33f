"""Who shares masks with whom: the complete graph, or Bell et al.'s random sparse one.

The sparse graph is the Harary graph of even degree k: a ring in which each device is joined to the
k/2 nearest on either side. A public seed determines the permutation that places the devices on the
ring (Bell et al., CCS 2020, section 3.3). The seed must not be known when the colluding devices
are chosen. Each device computes its neighbours itself, and trusts nobody else's list.

Spec: §4.2.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from deltafl.secagg import labels, prg
from deltafl.secagg.labels import Label

Members = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]


class Graph:
    """The neighbourhoods of the devices at roster positions 0 … num_devices − 1.

    Args:
        num_devices: Devices in the roster.
        degree: Neighbours per device, even; with num_devices − 1 or more the graph is complete.
        seed: 32 public bytes that determine the permutation of the sparse graph.
    """

    def __init__(self, num_devices: int, degree: int, seed: bytes) -> None:
        self.num_devices = num_devices
        self.is_complete = degree >= num_devices - 1
        self.degree = num_devices - 1 if self.is_complete else degree
        self._seed = seed

    def neighbours(self, position: int) -> Positions:
        """The positions of a device's neighbours, ascending; the device itself is not included."""
        if self.is_complete:
            everyone = np.arange(self.num_devices)
            return np.concatenate([everyone[:position], everyone[position + 1 :]])
        near = self._order[(self._place[position] + self._offsets) % self.num_devices]
        return np.sort(near)

    def holders_of(self, position: int) -> Positions:
        """The positions of those who hold shares of a device's secrets, ascending.

        The device holds shares of the same devices' secrets. They are its neighbours, and on a
        complete graph also the device itself, so that any t devices are enough there.

        Spec: §4.3.
        """
        if self.is_complete:
            return np.arange(self.num_devices)
        return self.neighbours(position)

    def holders(self, positions: Positions, columns: Positions) -> Positions:
        """The devices at some columns of the ascending `holders_of` each position.

        Args:
            positions: Shape (n,).
            columns: Shape (n, c).
        """
        if self.is_complete:
            return columns
        chosen: Positions = self._holder_table[positions[:, None], columns]
        return chosen

    def columns_of(self, positions: Positions, holders: Positions) -> Positions:
        """The index of each of `positions` among the devices whose shares each holder holds.

        Args:
            positions: Shape (n,).
            holders: Some of the holders of each, shape (n, c).

        Returns:
            Indices into the ascending `holders_of` each holder, shape (n, c).
        """
        if self.is_complete:
            return np.broadcast_to(positions[:, None], holders.shape)
        columns: Positions = (self._holder_table[holders] == positions[:, None, None]).argmax(
            axis=2
        )
        return columns

    def neighbour_column_of(self, neighbour: int, positions: Positions) -> Positions:
        """The index of `neighbour` among the neighbours of each of `positions`, its neighbours."""
        if self.is_complete:
            return np.where(positions < neighbour, neighbour - 1, neighbour)
        columns: Positions = (self._holder_table[positions] == neighbour).argmax(axis=1)
        return columns

    def count_holders(self, members: Members, linked: Members) -> Positions:
        """For each position, how many of its holders are members and have a link with it.

        Args:
            members: Over the roster.
            linked: By device and column among its neighbours.
        """
        counts: Positions = (members[self._neighbour_table] & linked).sum(axis=1)
        return counts + members if self.is_complete else counts

    def all_linked(self) -> Members:
        """Links of all neighbours, by device and column among its neighbours."""
        return np.ones((self.num_devices, self.degree), dtype=np.bool_)

    def linked_with(self, position: int, linked: Members) -> Members:
        """The devices with which a device has a link, and itself, over the roster."""
        found: Members = np.zeros(self.num_devices, dtype=np.bool_)
        found[self.neighbours(position)] = linked[position]
        found[position] = True
        return found

    @property
    def num_holders(self) -> int:
        """Holders of each device's secrets."""
        return self.num_devices if self.is_complete else self.degree

    @cached_property
    def _neighbour_table(self) -> Positions:
        """Neighbours by position, shape (num_devices, degree), ascending rows."""
        if self.is_complete:
            return np.stack([self.neighbours(position) for position in range(self.num_devices)])
        return self._holder_table

    @cached_property
    def _holder_table(self) -> Positions:
        """Neighbours by position on a sparse graph, shape (num_devices, degree), ascending rows."""
        rows: Positions = self._order[(self._place[:, None] + self._offsets) % self.num_devices]
        return np.sort(rows, axis=1)

    @cached_property
    def _offsets(self) -> Positions:
        """The offsets of a device's neighbours from the device on the ring."""
        half = self.degree // 2
        return np.concatenate([np.arange(-half, 0), np.arange(1, half + 1)])

    @cached_property
    def _place(self) -> Positions:
        """The place of each position on the ring."""
        return np.argsort(self._order)

    @cached_property
    def _order(self) -> Positions:
        """The order of the devices on the ring: sorted by 64 keystream bits each."""
        key = labels.digest(Label.GRAPH, self._seed, self.num_devices, self.degree)
        words = np.frombuffer(prg.keystream(key, 8 * self.num_devices), dtype="<u8")
        return np.argsort(words, kind="stable").astype(np.int64)


def without_isolated(graph: Graph, members: Members, linked: Members, threshold: int) -> Members:
    """The members left once every member with links to fewer than t member holders is removed.

    Such a member could not be unmasked, and would rightly refuse to go on. Removing it can isolate
    others, so this is repeated until nothing changes.

    Spec: §10.11.
    """
    members = members.copy()
    while (isolated := members & (graph.count_holders(members, linked) < threshold)).any():
        members &= ~isolated
    return members
