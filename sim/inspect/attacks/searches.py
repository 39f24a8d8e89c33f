"""A server that asks one query twice and subtracts the answers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig, binding
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Query
from deltafl.secagg import PeerError, ring
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Loot
from deltafl.sim.inspect.attacks.evil_server import EvilServer, Survivors
from deltafl.sim.inspect.attacks.own_round import (
    MODEL,
    POLICY,
    UPDATE_ROUND,
    RoundDevices,
    context_of,
    make_devices,
)
from deltafl.sim.inspect.attacks.own_session import new_enrolment

_PIVOTS: Final = 63

CONFIG: Final = replace(
    UPDATE_ROUND,
    theta=UPDATE_ROUND.theta / 2,
    method="histogram",
    num_pivots=_PIVOTS,
    search=replace(UPDATE_ROUND.search, max_queries=2),
    update_length=4,
)
QUERY: Final = Query("histogram", tuple(range(0, _PIVOTS * 16, 16)))
LOST: Final = 1
"""Position of the device that the second sum lacks."""


class Searches:
    """Asks devices one query, in two slots or two sessions, the second time without one of them.

    Args:
        client_type: What the devices run, or what makes it.
        network_type: What carries the messages.
        policy: What the devices insist on.
    """

    def __init__(
        self,
        client_type: Callable[..., RoundClient] = RoundClient,
        network_type: type[RoundDevices] = RoundDevices,
        policy: RoundPolicy = POLICY,
    ) -> None:
        self.devices = make_devices(CONFIG)
        self.ids = sorted(self.devices)
        self._client_type, self._network_type = client_type, network_type
        self._policy = policy
        self._enrolment = new_enrolment()
        self._sums: list[Vector] = []
        self._refusals: tuple[PeerError, ...] = ()

    def session(
        self,
        config: RoundConfig = CONFIG,
        *,
        without: int | None = None,
        remembering: bool = True,
        model: bytes = MODEL,
    ) -> EvilServer:
        """A session that is set up.

        Args:
            config: Its round.
            without: Position of the device that is left out; None for none.
            remembering: Whether devices remember earlier sessions.
            model: Its model.
        """
        network = self._network_type(
            config,
            self.devices,
            questions=dict.fromkeys(self.devices, QUERY),
            model=model,
            policy=self._policy,
            signed=True,
            client_type=self._client_type,
            enrolment=self._enrolment if remembering else new_enrolment(),
        )
        bound = binding(context_of(config, model), QUERY)
        ids = [client for position, client in enumerate(self.ids) if position != without]
        evil = EvilServer(network.params, ids, network.carry, binding_of=lambda _: bound)
        evil.set_up()
        return evil

    def ask(self, evil: EvilServer, slot: int, cohort: Survivors, survivors: Survivors) -> None:
        """Open a slot over a cohort, unmask it if it is tolerant, and keep the survivors' sum.

        Raises:
            PeerError: every device refuses to answer.
        """
        evil.open_slot(slot, cohort)
        if not evil.opened[slot]:
            raise evil.refusals[min(evil.refusals)]
        if not evil.params.slots[slot].whole:
            evil.unmask(slot, survivors)
        self._sums.append(evil.sum_over(slot, survivors).astype(np.uint64))
        self._refusals += tuple(evil.refusals.values())

    def loot(self) -> Loot:
        """The difference of the two sums, and the answer of the device that the second lacks."""
        taken = self._sums[0] - self._sums[1]
        ring.reduce(taken, CONFIG.search_layout.ring_bits)
        device = self.devices[self.ids[LOST]]
        return Loot(
            taken,
            device.measured(CONFIG).answer(QUERY),
            CONFIG.search_layout.ring_bits,
            self._refusals,
            note=f"truth: loss {device.loss}, weight {device.weight}; the answer holds, for each "
            "of 63 losses, the weight that lies below, and then the same for the count",
        )
