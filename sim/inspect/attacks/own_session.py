"""The devices of a session, honest unless an attack makes them otherwise, and small parameters."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from deltafl.secagg import (
    Adversary,
    Client,
    ClientId,
    DevicePolicy,
    Enrolment,
    Server,
    SessionParams,
    SlotSpec,
    SlotSum,
    ring,
    wire,
)
from deltafl.secagg.messages import Message
from deltafl.secagg.primitives import PLAIN, Primitives
from deltafl.secagg.randomness import Randomness, SeededRandomness
from deltafl.secagg.ring import Vector
from deltafl.secagg.states import ClientState

LENGTH: Final = 64
RING_BITS: Final = 32
ONE_SLOT: Final = ((LENGTH, RING_BITS),)

BINDING: Final = b"what all devices were shown"

POLICY: Final = DevicePolicy(
    min_cohort=2, min_threshold=2, min_threshold_share=0.0, colluding_rate=0.0, dropout_rate=0.9
)
"""Almost no policy, for a server that follows the protocol."""

ACTIVE_POLICY: Final = DevicePolicy(
    adversary=Adversary.ACTIVE,
    colluding_rate=0.0,
    min_cohort=3,
    min_threshold=3,
    min_threshold_share=0.5,
)
"""The policy of devices that expect a server which does not follow the protocol."""


def make_params(
    num_invited: int,
    threshold: int,
    *,
    min_cohort: int | None = None,
    slots: Iterable[tuple[int, int] | tuple[int, int, bool]] = ONE_SLOT,
    graph_seed: bytes = bytes(32),
    context: bytes = bytes(32),
    signed: bool = False,
) -> SessionParams:
    """Parameters of a small session on the complete graph.

    Args:
        num_invited: Devices.
        threshold: Shares that rebuild a secret.
        min_cohort: Fewest devices in a sum; by default, the threshold.
        slots: Length and ring bits of each, and whether it is whole.
        graph_seed: 32 public bytes.
        context: What the session is about, 32 bytes.
        signed: Whether devices sign.
    """
    return SessionParams(
        slots=tuple(SlotSpec(f"slot {i}", *slot) for i, slot in enumerate(slots)),
        num_invited=num_invited,
        degree=num_invited - 1,
        threshold=threshold,
        min_cohort=threshold if min_cohort is None else min_cohort,
        graph_seed=graph_seed,
        context=context,
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
        seed: Of vectors and secrets; the same one, the same secrets.
        enrolment: Their identities and what these remember; new ones where not given.
        source: Where the device with an id draws its secrets from, in place of the seed.
        primitives: What they compute with.

    Attributes:
        roster: Their ids, ascending; none is its position.
        inputs: Their vectors.
        clients: Their machines.
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
        self.inputs: dict[ClientId, list[Vector]] = {
            client: [
                ring.to_words(
                    generator.integers(0, 2**s.ring_bits, s.length, np.uint64), s.ring_bits
                )
                for s in params.slots
            ]
            for client in self.roster
        }
        self._policy, self._primitives, self._seed = policy, primitives, seed
        self._source = source or self._seeded
        self._told = defaultdict[ClientId, list[bytes]](list)
        self.clients = {client: self._machine(client) for client in self.roster}

    def answer(self, client: ClientId, data: bytes) -> bytes | None:
        """Give one device a message and, if that opens a slot, its vector."""
        machine = self.clients[client]
        self._told[client].append(data)
        reply = machine.receive(data)
        if machine.state is ClientState.OPENED:
            return machine.contribute(self.inputs[client][machine.slot], BINDING)
        return reply

    def restore(self, undone: int) -> None:
        """Put every device back to where it was before its last messages, like a copy of it."""
        for client in self.roster:
            told = self._told.pop(client, [])[:-undone]
            self.clients[client] = self._machine(client)
            for data in told:
                self.answer(client, data)

    def vector(self, position: int, slot: int = 0) -> Vector:
        """What the device at a position of the roster puts into a slot."""
        return self.inputs[self.roster[position]][slot]

    def silence(self, slot: int = 0) -> None:
        """Let every device send zeros in a slot, which everybody knows."""
        for vectors in self.inputs.values():
            vectors[slot] = np.zeros_like(vectors[slot])

    def decode(self, data: bytes) -> Message:
        """A message of the session."""
        return wire.decode(data, self.params)

    def encode(self, message: Message) -> bytes:
        """The bytes of a message of the session."""
        return wire.encode(message, self.params)

    def _machine(self, client: ClientId) -> Client:
        credentials = self.enrolment.credentials_for(client, self.params)
        return Client(
            client,
            self._policy,
            self._source(client),
            credentials,
            self._primitives,
            self.enrolment.ledger(client),
        )

    def _seeded(self, client: ClientId) -> Randomness:
        seed = self._seed.to_bytes(16, "little") + client.to_bytes(16, "little")
        return SeededRandomness(seed)


def difference(after: Vector, before: Vector) -> Vector:
    """The words of one vector minus those of another, in the ring of the slots."""
    words = after - before
    ring.reduce(words, RING_BITS)
    return words


Tamper = Callable[[ClientId, bytes], bytes]
"""Changes a device's message on its way to the server."""


def _unchanged(_client: ClientId, data: bytes) -> bytes:
    return data


def with_an_honest_server(
    devices: Devices, server: Server, tamper: Tamper = _unchanged
) -> Iterator[SlotSum]:
    """Take the session through all slots: the sums, as the server learns them.

    Raises:
        SessionAborted: too few devices are left.
    """

    def exchange(outgoing: Mapping[ClientId, bytes]) -> Mapping[ClientId, bytes]:
        for client, data in outgoing.items():
            if (reply := devices.answer(client, data)) is not None:
                server.receive(client, tamper(client, reply))
        return server.close_round()

    pending = server.start()
    for _ in range(3):
        pending = exchange(pending)
    for slot in range(len(devices.params.slots)):
        pending = server.open_slot(slot, BINDING)
        while pending:
            pending = exchange(pending)
        yield server.take_sum()
