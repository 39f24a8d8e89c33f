"""The devices of a session, honest unless an attack makes them otherwise, and small parameters."""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from deltafl.secagg import (
    Adversary,
    Client,
    ClientId,
    DevicePolicy,
    Enrolment,
    SessionParams,
    SlotSpec,
    ring,
)
from deltafl.secagg.primitives import PLAIN, Primitives
from deltafl.secagg.randomness import Randomness, SeededRandomness
from deltafl.secagg.ring import Vector
from deltafl.secagg.states import ClientState

LENGTH: Final = 64
RING_BITS: Final = 32
ONE_SLOT: Final = ((LENGTH, RING_BITS),)
ONE_WHOLE_SLOT: Final = ((LENGTH, RING_BITS, True),)

BINDING: Final = b"what all devices were shown"

POLICY: Final = DevicePolicy(Adversary.CURIOUS, 0.0, 0.9, min_cohort=2)
"""Almost no policy, for a server that follows the protocol."""


def make_params(
    num_invited: int,
    threshold: int,
    *,
    slots: Iterable[tuple[int, int] | tuple[int, int, bool]] = ONE_SLOT,
    number: int = 0,
    signed: bool = False,
) -> SessionParams:
    """Parameters of a small session on the complete graph.

    Args:
        num_invited: Devices.
        threshold: Shares that rebuild a secret, and the fewest devices in a sum.
        slots: Length and ring bits of each, and whether it is whole.
        number: Of the session: it gives the public seed, and what the session is about.
        signed: Whether devices sign.
    """
    return SessionParams(
        slots=tuple(SlotSpec(f"slot {i}", *slot) for i, slot in enumerate(slots)),
        num_invited=num_invited,
        degree=num_invited - 1,
        threshold=threshold,
        min_cohort=threshold,
        graph_seed=number.to_bytes(32, "big"),
        context=number.to_bytes(32, "big"),
        signed=signed,
    )


def new_enrolment() -> Enrolment:
    """The identities of all devices, none of which has taken part in anything."""
    return Enrolment(SeededRandomness(b"identities".ljust(32)))


class Devices:
    """Devices, each with a uniform vector for every slot.

    Args:
        params: What they are told.
        policy: What they insist on.
        seed: Of vectors and secrets; with the same one, these are the same devices once more.
        enrolment: Their identities and what these remember; new ones where not given.
        source: Where the device with an id draws its secrets from, in place of the seed.
        primitives: What they compute with.

    Attributes:
        roster: Their ids, ascending; none is its position.
        inputs: Their vectors.
    """

    def __init__(
        self,
        params: SessionParams,
        *,
        policy: DevicePolicy = POLICY,
        seed: int = 0,
        enrolment: Enrolment | None = None,
        source: Callable[[ClientId], Randomness] | None = None,
        primitives: Primitives = PLAIN,
    ) -> None:
        self.params = params
        self.roster = [ClientId(3 + 7 * i) for i in range(params.num_invited)]
        self.enrolment = enrolment or new_enrolment()
        generator = np.random.default_rng(seed)

        def drawn(slot: SlotSpec) -> Vector:
            words = generator.integers(0, 2**slot.ring_bits, slot.length, np.uint64)
            return ring.to_words(words, slot.ring_bits)

        self.inputs = {client: [drawn(slot) for slot in params.slots] for client in self.roster}

        def seeded(client: ClientId) -> Randomness:
            return SeededRandomness(seed.to_bytes(16, "little") + client.to_bytes(16, "little"))

        self._clients = {
            client: Client(
                client,
                policy,
                (source or seeded)(client),
                self.enrolment.credentials_for(client, params),
                primitives,
                self.enrolment.ledger(client),
            )
            for client in self.roster
        }

    def answer(self, client: ClientId, data: bytes) -> bytes | None:
        """Give one device a message and, if that opens a slot, its vector."""
        machine = self._clients[client]
        reply = machine.receive(data)
        if machine.state is ClientState.OPENED:
            return machine.contribute(self.inputs[client][machine.slot], BINDING)
        return reply

    def vector(self, position: int, slot: int = 0) -> Vector:
        """What the device at a position of the roster puts into a slot."""
        return self.inputs[self.roster[position]][slot]
