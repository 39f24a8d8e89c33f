"""The ideal functionality: what a session computes, without the cryptography that hides the rest.

It loses the same devices, refuses in the same cases and reveals the same sums, bit for bit. Tests
check `deltafl.secagg.session` against it, and long simulations may use it in place of the real
protocol.

Spec: §10.11, §14.8.
"""

from collections.abc import Callable, Iterable

import numpy as np

from deltafl.secagg import ring
from deltafl.secagg.errors import Fault, UsageError
from deltafl.secagg.graph import Graph, Members
from deltafl.secagg.params import ClientId, SessionParams
from deltafl.secagg.ring import Vector
from deltafl.secagg.states import Drop, Stage, Step, Vanishing
from deltafl.secagg.summing import SlotSum
from deltafl.secagg.survival import (
    check_invited,
    require_cohort,
    require_recoverable,
    require_roster,
    settle,
)


class IdealSession:
    """One session in which a trusted party computes the sums.

    Args:
        params: The session's parameters.
        invited: The devices to open it with.
        vanishing: Which devices vanish, and when.

    Attributes:
        drops: The same as the server's.
    """

    def __init__(
        self, params: SessionParams, invited: Iterable[ClientId], vanishing: Vanishing
    ) -> None:
        self.params = params
        self.drops: dict[ClientId, Drop] = {}
        self._ids = np.array(check_invited(params, invited), dtype=np.uint32)
        self._vanishing = vanishing
        self._members: Members = np.ones(len(self._ids), dtype=np.bool_)
        self._graph = Graph(len(self._ids), params.degree, params.graph_seed)
        self._contributors: tuple[ClientId, ...] = ()
        self._agreed: Members | None = None

    @property
    def remaining(self) -> tuple[ClientId, ...]:
        """The devices that are still in the session, ascending."""
        return self._named(self._members)

    def set_up(self) -> None:
        """Run the set-up: advertise keys, distribute shares, and acknowledge them.

        Raises:
            SessionAborted: too few devices are left.
        """
        self._lose_silent(Step(Stage.ADVERTISE))
        self._ids = self._ids[self._members]
        self._members = np.ones(len(self._ids), dtype=np.bool_)
        require_roster(self.params, len(self._ids))
        self._graph = Graph(len(self._ids), self.params.degree, self.params.graph_seed)
        share = Step(Stage.SHARE)
        self._lose_silent(share)
        self._settle(share)
        self._lose_silent(Step(Stage.RECEIPT))

    def can_sum(self, slot: int) -> bool:
        """Whether a slot can still have a sum; see `deltafl.secagg.server.Server.can_sum`."""
        if self._agreed is None or not self.params.slots[slot].whole:
            return True
        return bool(self._members[self._agreed].all())

    def open_slot(self, slot: int) -> tuple[ClientId, ...]:
        """The devices over which the slot is opened.

        Raises:
            SessionAborted: too few devices are left.
            UsageError: a device of a whole slot is gone.
        """
        if not self.can_sum(slot):
            raise UsageError(f"slot={slot}: a device of this whole slot is gone")
        if self._agreed is None or not self.params.slots[slot].whole:
            self._settle(Step(Stage.MASK, slot))
        return self.remaining

    def sum(self, slot: int, contribution: Callable[[ClientId], Vector]) -> SlotSum | None:
        """The sum over those devices of an open slot that stay until their input has arrived.

        Args:
            slot: Index into the session's slots.
            contribution: Returns the vector of a device that stays; called once for each.

        Returns:
            The sum; None if a device is missing from a whole (all-or-nothing) slot.

        Raises:
            SessionAborted: too few devices are left to reveal it.
        """
        contributors = self.collect(slot)
        return None if contributors is None else self.add_up(slot, map(contribution, contributors))

    def collect(
        self, slot: int, check: Callable[[int], None] = lambda _: None
    ) -> tuple[ClientId, ...] | None:
        """Those devices of an open slot that stay until their input has arrived, ascending.

        Args:
            slot: Index into the session's slots.
            check: Called with their number in a tolerant slot, before anything is unmasked; may end
                the session.

        Returns:
            The devices; None if one is missing from a whole slot, which then has no sum.

        Raises:
            SessionAborted: too few devices are left to reveal their sum.
        """
        spec, opened = self.params.slots[slot], self._members.copy()
        must_list = spec.whole and self._agreed is None
        if spec.whole:
            self._agreed = opened
        if must_list:
            self._lose_silent(Step(Stage.LIST, slot))
            if not np.array_equal(self._members, opened):
                return None
        self._lose_silent(Step(Stage.MASK, slot))
        contributed = self._members.copy()
        if spec.whole:
            if not np.array_equal(contributed, opened):
                return None
            self._contributors = self._named(contributed)
            return self._contributors
        require_cohort(self.params, int(contributed.sum()))
        require_recoverable(self._graph, self.params, opened, contributed)
        check(int(contributed.sum()))
        for stage in (Stage.CONFIRM, Stage.UNMASK):
            self._lose_silent(Step(stage, slot))
            require_recoverable(self._graph, self.params, opened, self._members)
        self._agreed = contributed
        self._contributors = self._named(contributed)
        return self._contributors

    def add_up(self, slot: int, vectors: Iterable[Vector]) -> SlotSum:
        """The sum of the vectors of the devices that `collect` returned.

        Args:
            slot: As for `collect`.
            vectors: Their vectors, in the same order.
        """
        spec, num_added = self.params.slots[slot], 0
        total = ring.zeros(spec.length, spec.ring_bits)
        for vector in vectors:
            total += ring.as_vector(vector, spec.length, spec.ring_bits)
            num_added += 1
        if num_added != len(self._contributors):
            raise UsageError(f"{num_added} vectors for {len(self._contributors)} devices")
        ring.reduce(total, spec.ring_bits)
        return SlotSum(slot, total, self._contributors, self.remaining)

    def _lose_silent(self, step: Step) -> None:
        for position in np.flatnonzero(self._members).tolist():
            client = ClientId(int(self._ids[position]))
            vanish = self._vanishing.get(client)
            if vanish is not None and not vanish.answers(step):
                self._members[position] = False
                self.drops[client] = Drop(Fault.TIMED_OUT, step)

    def _settle(self, step: Step) -> None:
        settled = settle(self._graph, self.params, self._members)
        for client in self._named(self._members & ~settled):
            self.drops[client] = Drop(Fault.ISOLATED, step)
        self._members = settled

    def _named(self, members: Members) -> tuple[ClientId, ...]:
        return tuple(ClientId(i) for i in self._ids[members].tolist())
