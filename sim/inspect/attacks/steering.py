"""A round under a server that asks what it likes, and may steer a search that devices follow.

With a colluding device, the server shows the sums of devices that do not exist: then the search
ends where the server wants it to.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from deltafl.protocol.configuration import binding
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.quantile.search import Query, Search
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ring
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Loot, Words
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer
from deltafl.sim.inspect.attacks.own_round import Device, RoundDevices

_HEAVY: Final = 100

Shown = tuple[Vector, int, Mapping[int, bytes]]
"""A sum with its blinding, and what each device committed to, by position."""


class Steering:
    """A round in which a server can lie at every step.

    Args:
        network: The devices.
        num_colluders: How many of them are the server's own: the last ones.
        without: Position of a device that the roster lacks; None for none.

    Attributes:
        config: The round.
        devices: The devices, by position.
        evil: The session.
        search: The search that devices are shown, after the sums that they were shown.
        asked: The questions of the search, in order.
        proof: The message that proves the sum of the last one, which all devices are sent.
    """

    def __init__(
        self, network: RoundDevices, *, num_colluders: int = 0, without: int | None = None
    ) -> None:
        self.network = network
        (self.config,) = network.levels.rounds
        ids = [client for p, client in enumerate(sorted(network.devices)) if p != without]
        self.devices: list[Device] = [network.devices[client] for client in ids]
        self._colluders = [
            Colluder(client, network.enrolment.credentials(client))
            for client in ids[len(ids) - num_colluders :]
        ]
        self.evil = EvilServer(network.params, ids, network.carry, self._colluders)
        self.search: Search = self.config.start_search()
        self.asked: list[Query] = []
        self.proof = b""
        self.evil.set_up()

    @property
    def worst(self) -> Device:
        """The honest device with the largest loss."""
        return self.devices[self.evil.honest[-1]]

    @property
    def highest(self) -> int:
        """Its loss, in ticks."""
        return self.worst.measured(self.config).tick

    def ask(
        self,
        slot: int,
        question: Query | Threshold,
        cohort: frozenset[int] | None = None,
        survivors: frozenset[int] | None = None,
    ) -> Vector:
        """Ask devices a question; the sum of their answers.

        Args:
            slot: Which to open.
            question: The question.
            cohort: Who is asked; everybody by default.
            survivors: Who is said to have answered; all who were asked by default.

        Raises:
            PeerError: all devices refuse.
        """
        survivors = survivors or cohort or self.evil.everyone
        self.network.question = question
        self.evil.binding = binding(self.network.params.context, question)
        self.evil.open_slot(slot, cohort)
        self.network.opening = b""
        if not self.evil.opened[slot]:
            raise self.evil.refusals[min(self.evil.refusals)]
        if not self.evil.params.slots[slot].whole:
            self.evil.unmask(slot, survivors)
        return self.evil.sum_over(slot, survivors)

    def run(self, *, most: int = 1 << 16) -> None:
        """Ask the questions of the search that is shown, until it is over or `most` are asked.

        Raises:
            PeerError: all devices refuse.
        """
        while len(self.asked) < most and (query := self.search.query) is not None:
            slot, layout = len(self.asked), self.config.search_layout
            total, everyone = self.ask(slot, query), self.evil.everyone
            blinding = self.evil.blinding_over(slot, everyone)
            shown: Shown = (total, blinding, self.evil.committed[slot])
            self.asked.append(query)
            if self._colluders:
                shown = self._steered(query, *shown)
            self.proof = self.network.opening = self.evil.prove(slot, *shown)
            self.search = self.search.update(layout.decode(shown[0]))

    def update(
        self, threshold: Threshold | None = None, cohort: frozenset[int] | None = None
    ) -> Loot:
        """Announce a threshold, by default that of the search, and take the worst device's update.

        Args:
            threshold: The threshold.
            cohort: Who is asked; everybody by default.

        Raises:
            PeerError: all devices refuse.
        """
        asked = self.search.result().threshold if threshold is None else threshold
        total = self.ask(self.config.update_slot, asked, cohort)
        return self.loot(total, self.worst)

    def loot(self, taken: Words, device: Device) -> Loot:
        """What was taken for a device's part of the sum of updates."""
        return Loot(
            taken,
            device.measured(self.config).contribution(device.update),
            self.config.update_layout.ring_bits,
            tuple(self.evil.refusals.values()),
            unit=device.unit,
        )

    def _steered(
        self, query: Query, total: Vector, blinding: int, committed: Mapping[int, bytes]
    ) -> Shown:
        """The sum of devices that do not exist, two of which have the largest loss of all.

        The last device commits to the difference, once it knows the sum of the others.
        """
        (colluder,), slot, position = self._colluders, len(self.asked) - 1, len(self.devices) - 1
        heavy = min(_HEAVY, self.config.update.max_weight)
        low = DeviceRound(self.config, 0, 1, 0).answer(query)
        high = DeviceRound(self.config, self.highest, heavy, 0).answer(query)
        wanted = [low] * (len(self.devices) - 2) + [high] * 2
        own = self._total([*wanted, -total.astype(np.uint64)])
        spec = self.evil.params.slots[slot]
        added, own_committed = colluder.commit(self.evil.context(slot), spec, own)
        together = {**committed, position: own_committed}
        return self._total([total, own]), blinding + added, together

    def _total(self, vectors: Sequence[Vector]) -> Vector:
        """A sum in the ring of the search."""
        bits = self.config.search_layout.ring_bits
        total = ring.to_words(np.stack(vectors).sum(axis=0, dtype=np.uint64), bits)
        ring.reduce(total, bits)
        return total
