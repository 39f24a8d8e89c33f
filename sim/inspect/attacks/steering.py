"""A round whose search the devices follow, and a server that asks and shows what it likes.

The server asks the questions of the search that it shows, which may be about devices that do not
exist: then the search ends where the server wants it to.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig, binding
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Query, Search
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ClientId, Enrolment, ring
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Loot
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer, Survivors
from deltafl.sim.inspect.attacks.own_round import (
    MODEL,
    VERIFIED_ROUND,
    Device,
    RoundDevices,
    as_update,
    make_devices,
)

_HEAVY: Final = 100

Shown = tuple[Vector, Mapping[int, bytes]]
"""A sum with its blinding, and what each device committed to, by position."""
Show = Callable[["Steering", Query, Shown], Shown]
"""What devices are shown in place of the truth."""


class Steering:
    """A round in which a server can lie at every step.

    Args:
        config: The round.
        policy: As for `RoundDevices`, and so are those that follow, but for the colluders.
        num_colluders: How many devices are the server's own: the last ones.
        threshold: Shares that rebuild a secret.
        devices: Who takes part; five or so by default.
        model: The model that is announced.
        enrolment: Their identities and what these remember; new ones where not given.

    Attributes:
        config: The round.
        devices: The devices, by position.
        evil: The session.
        search: The search that devices are shown, after the sums that they were shown.
        asked: The questions of the search, in order.
        proofs: The messages that prove their sums, which all devices are sent.
    """

    def __init__(
        self,
        config: RoundConfig = VERIFIED_ROUND,
        *,
        policy: RoundPolicy | None = None,
        num_colluders: int = 0,
        threshold: int | None = None,
        devices: Mapping[ClientId, Device] | None = None,
        model: bytes = MODEL,
        enrolment: Enrolment | None = None,
    ) -> None:
        self.config = config
        devices = make_devices(config) if devices is None else devices
        self.ids = sorted(devices)
        self.devices: list[Device] = [devices[client] for client in self.ids]
        self.network = RoundDevices(
            config,
            devices,
            policy=policy,
            threshold=threshold,
            signed=True,
            model=model,
            enrolment=enrolment,
        )
        self.colluders = [
            Colluder(client, self.network.enrolment.credentials(client))
            for client in self.ids[len(self.ids) - num_colluders :]
        ]
        self._question: Query | Threshold | None = None
        self.evil = EvilServer(
            self.network.params, self.ids, self.network.carry, self.colluders, self._binding
        )
        self.search: Search = config.start_search()
        self.asked: list[Query] = []
        self.proofs: list[bytes] = []
        self.evil.set_up()

    @property
    def worst(self) -> int:
        """The position of the honest device with the largest loss."""
        return self.evil.honest[-1]

    @property
    def highest(self) -> int:
        """Its loss, in ticks."""
        return self.devices[self.worst].measured(self.config).tick

    def ask(
        self,
        slot: int,
        question: Query | Threshold,
        cohort: Survivors | None = None,
    ) -> None:
        """Ask devices a question.

        Raises:
            PeerError: all of them refuse.
        """
        self._question = question
        self.network.questions = dict.fromkeys(self.ids, question)
        self.evil.open_slot(slot, cohort)
        self.network.openings = {}
        if not self.evil.opened[slot]:
            raise self.evil.refusals[min(self.evil.refusals)]

    def query(self, query: Query) -> Shown:
        """Ask a query in the next slot; the true sum over the honest devices, and what proves it.

        Raises:
            PeerError: all devices refuse.
        """
        slot = len(self.asked)
        self.ask(slot, query)
        self.asked.append(query)
        if not self.evil.params.slots[slot].whole:
            self.evil.unmask(slot, self.evil.everyone)
        return self.evil.sum_over(slot, self.evil.honest), self.evil.committed[slot]

    def run(self, lie: Show | None = None, *, most: int = 1 << 16) -> None:
        """Ask the questions of the search that is shown, until it is over.

        Args:
            lie: What devices are shown; the truth by default.
            most: Most questions.

        Raises:
            PeerError: all devices refuse.
        """
        while len(self.asked) < most and (query := self.search.query) is not None:
            shown = self.query(query)
            if lie is not None:
                shown = lie(self, query, shown)
            self.proofs.append(self.evil.prove(len(self.asked) - 1, *shown))
            self.network.openings = dict.fromkeys(self.ids, self.proofs[-1])
            layout, total = self.config.search_layout, shown[0]
            sums = layout.decode(total[: layout.length].astype(np.uint64))
            self.search = self.search.update(sums)

    def update(
        self,
        threshold: Threshold | None = None,
        cohort: Survivors | None = None,
        survivors: Survivors | None = None,
    ) -> Loot:
        """Announce a threshold, by default that of the search, and take the worst device's update.

        Args:
            threshold: The server's own.
            cohort: Who is asked; everybody by default.
            survivors: Who is said to have answered; all who were asked by default.

        Raises:
            PeerError: all devices refuse.
        """
        asked = self.search.result().threshold if threshold is None else threshold
        slot, cohort = self.config.update_slot, cohort or self.evil.everyone
        self.ask(slot, asked, cohort)
        survivors = survivors or cohort
        self.evil.unmask(slot, survivors)
        return update_of(self.devices[self.worst], self.config, self.evil, survivors)

    def made_up(self, query: Query) -> Sequence[Vector]:
        """Answers of devices that do not exist, two of which have the largest loss of all."""
        config, heavy = self.config, min(_HEAVY, self.config.update.max_weight)
        num_low = len(self.ids) - 2
        answers = [DeviceRound(config, 0, 1, 0).answer(query)] * num_low
        return answers + [DeviceRound(config, self.highest, heavy, 0).answer(query)] * 2

    def total(self, vectors: Sequence[Vector]) -> Vector:
        """A sum in the ring of the search."""
        return ring_sum(vectors, self.config.search_layout.ring_bits)

    def with_colluder(self, answer: Shown, wanted: Vector) -> Shown:
        """The sum that is wanted, by what the last device commits to once it knows the others'."""
        (colluder,), slot = self.colluders, len(self.asked) - 1
        spec, position = self.evil.params.slots[slot], len(self.ids) - 1
        total, committed = answer
        own = wanted - total[: spec.length]
        ring.reduce(own, spec.ring_bits)
        added, own_committed = colluder.commit(self.evil.context(slot, position), spec, own)
        return self.total([total, added]), {**committed, position: own_committed}

    def _binding(self, position: int) -> bytes:
        del position  # all are shown the same
        return (
            b"" if self._question is None else binding(self.network.params.context, self._question)
        )


def ring_sum(vectors: Sequence[Vector], ring_bits: int) -> Vector:
    """The sum of one or more vectors in a ring, in words of that ring."""
    total = ring.zeros(len(vectors[0]), ring_bits)
    for vector in vectors:
        total += vector.astype(total.dtype)
    ring.reduce(total, ring_bits)
    return total


def update_of(device: Device, config: RoundConfig, evil: EvilServer, devices: Survivors) -> Loot:
    """The sum of some devices' updates as the server reads it, and what one device put into it."""
    taken: Vector = evil.sum_over(config.update_slot, devices).astype(np.uint64)
    return Loot(
        taken,
        device.measured(config).contribution(device.update),
        config.update_layout.ring_bits,
        tuple(evil.refusals.values()),
        read=as_update(device),
    )
