"""A server that asks one query twice, and subtracts the answers."""

import numpy as np
from attack import Loot
from evil_server import EvilServer
from round_network import RoundNetwork
from round_parties import MODEL, POLICY, make_config, make_devices

from protocol.client import RoundClient
from protocol.configuration import binding
from protocol.quantile.search import Query
from secagg import ring
from secagg.randomness import SeededRandomness

CONFIG = make_config(cohort_size=5, max_queries=2, method="histogram", num_cuts=63)
QUERY = Query("histogram", tuple(range(0, 63 * 16, 16)))
LOST = 1


class Searches:
    """Asks devices one query, in two slots or two sessions, the second time without one of them.

    Args:
        network_type: What carries the messages.
    """

    def __init__(self, network_type=RoundNetwork):
        self.devices = make_devices(CONFIG)
        self.ids = sorted(self.devices)
        self._network_type = network_type
        self._credentials = {}
        self._sums = []
        self._refusals = ()

    def session(self, config=CONFIG, *, ids=None, remembering=False):
        """A session that is set up.

        Args:
            config: Of its round.
            ids: Of the devices that it is shown to; all by default.
            remembering: Whether devices remember the sessions before.
        """
        network = self._network_type(
            config,
            dict.fromkeys(self.devices, QUERY),
            dict.fromkeys(self.devices, MODEL),
            devices=self.devices,
            signed=True,
        )
        for client, machine in network.clients.items():
            own = self._credentials.setdefault(client, machine._session._credentials)
            if remembering:
                network.clients[client] = RoundClient(
                    client, POLICY, SeededRandomness(client.to_bytes(32, "big")), own
                )
        bound = binding(config.context(MODEL), QUERY)
        ids = self.ids if ids is None else ids
        evil = EvilServer(network.params, ids, network.carry, binding_of=lambda _: bound)
        evil.set_up()
        return evil

    def ask(self, evil, slot, cohort, survivors):
        evil.open_slot(slot, cohort)
        if not evil.opened[slot]:
            raise evil.refusals[min(evil.refusals)]
        evil.unmask(slot, survivors)
        self._sums.append(evil.sum_over(slot, survivors).astype(np.uint64))
        self._refusals += tuple(evil.refusals.values())

    def loot(self):
        """The difference of the two sums, and the answer of the device that the second lacks."""
        taken = self._sums[0] - self._sums[1]
        ring.reduce(taken, CONFIG.search_layout.ring_bits)
        answer = self.devices[self.ids[LOST]].measured(CONFIG).answer(QUERY)
        return Loot(taken, answer, CONFIG.search_layout.ring_bits, self._refusals)
