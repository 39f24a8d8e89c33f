"""A session driven by hand: a server and its devices, and every message in the test's hands."""

import gc
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from types import FunctionType, ModuleType

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from deltafl.secagg import (
    Adversary,
    Client,
    DevicePolicy,
    Enrolment,
    Server,
    SessionParams,
    SlotSpec,
    SlotSum,
    ring,
    signing,
    wire,
)
from deltafl.secagg.keys import key_pair
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import AdvertiseKeys, Credential, Message
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import ClientState, ServerState

STRICT = DevicePolicy(Adversary.CURIOUS, 0.0, 0.9, min_cohort=2)
"""A policy that small test sessions satisfy, if they are over the complete graph."""


class _AnyGraph(DevicePolicy):
    """Takes any sparse graph: hardly one over a handful of devices is safe with any missing."""

    def _check_sparse(self, params):
        del params


POLICY = _AnyGraph(**{each.name: getattr(STRICT, each.name) for each in fields(STRICT)})
"""A policy that small test sessions satisfy."""

BINDING = b"what all devices were shown"

_SLOT = (ServerState.MASK, ServerState.UNMASK, ServerState.READY)
_SIGNED_SLOT = (ServerState.MASK, ServerState.CONFIRM, ServerState.UNMASK, ServerState.READY)
_SET_UP = (ServerState.ADVERTISE, ServerState.SHARE, ServerState.RECEIPT, ServerState.READY)

STEPS = {
    signed: (*_SET_UP, *slot, *slot[:-1], ServerState.DONE)
    for signed, slot in ((False, _SLOT), (True, _SIGNED_SLOT))
}
"""By whether the session is signed: the server's state at each step of `Parties.steps`, in a
session of two tolerant slots."""

_REACHED_AT = {
    ClientState.IDLE: 0,
    ClientState.ADVERTISED: 1,
    ClientState.SHARED: 2,
    ClientState.READY: 3,
    ClientState.MASKED: 5,
    ClientState.CONFIRMED: 6,
}


def make_params(
    num_invited=5,
    *,
    degree=None,
    threshold=3,
    min_cohort=None,
    slots=((4, 16), (3, 40)),
    graph_seed=bytes(32),
    context=bytes(32),
    signed=False,
):
    """Parameters of a small session.

    `slots` are (length, ring bits) each, and may be whole, and verified.
    """
    return SessionParams(
        slots=tuple(SlotSpec(f"slot {i}", *slot) for i, slot in enumerate(slots)),
        num_invited=num_invited,
        degree=num_invited - 1 if degree is None else degree,
        threshold=threshold,
        min_cohort=threshold if min_cohort is None else min_cohort,
        graph_seed=graph_seed,
        context=context,
        signed=signed,
    )


def make_ids(num_invited):
    """Ids that are not roster positions, not even in their order of invitation."""
    return [3 + 7 * i for i in reversed(range(num_invited))]


def make_inputs(params, ids, seed=0):
    """Uniform vectors for every device and slot.

    Those of verified slots are small enough, on either side of zero, for their sum to be read as
    two's complement.
    """
    generator = np.random.default_rng(seed)

    def draw(spec):
        if spec.verified:
            bound = 2 ** (spec.ring_bits - 1) // params.num_invited
            return as_ring(generator.integers(-bound, bound, spec.length), spec.ring_bits)
        largest = 2**spec.ring_bits - 1
        values = generator.integers(0, largest, spec.length, np.uint64, endpoint=True)
        return ring.to_words(values, spec.ring_bits)

    return {client: [draw(spec) for spec in params.slots] for client in ids}


def as_ring(values, bits):
    """Integers of either sign as words of two's complement."""
    words = [int(value) % 2**bits for value in values]
    return ring.to_words(np.array(words, dtype=np.uint64), bits)


def plain_sum(params, slot, inputs, contributors):
    """What the sum of a slot must be, in Python integers."""
    spec = params.slots[slot]
    columns = zip(*(inputs[client][slot].tolist() for client in contributors), strict=True)
    return [sum(column) % 2**spec.ring_bits for column in columns]


class LoggedRandomness:
    """Seeded randomness that remembers every secret that it gave."""

    def __init__(self, seed: bytes) -> None:
        self.given: list[bytes] = []
        self._source = SeededRandomness(seed)

    def __call__(self, size: int) -> bytes:
        self.given.append(self._source(size))
        return self.given[-1]


class Parties:
    """A server and its devices, all honest unless a test makes them otherwise."""

    def __init__(self, params, *, ids=None, policy=POLICY, seed=0, enrolment=None):
        self.params = params
        self.ids = make_ids(params.num_invited) if ids is None else list(ids)
        self.roster = sorted(self.ids)
        self.inputs = make_inputs(params, self.ids, seed)
        self.sums: list[SlotSum] = []
        if enrolment is None:
            enrolment = Enrolment(SeededRandomness(b"identities".ljust(32, b"\0")))
        self.enrolment = enrolment
        self.server = Server(params, self.ids, self.enrolment)
        self.randomness = {
            client: LoggedRandomness(seed.to_bytes(16, "little") + client.to_bytes(16, "little"))
            for client in self.ids
        }
        self.clients = {
            client: Client(
                client,
                policy,
                self.randomness[client],
                self.enrolment.credentials_for(client, params),
                ledger=self.enrolment.ledger(client),
            )
            for client in self.ids
        }

    def deliver(self, outgoing, binding=BINDING) -> dict[int, bytes]:
        """Give every device its message; those that were opened a slot contribute at once."""
        return {
            client: reply
            for client, data in outgoing.items()
            if (reply := self.answer(client, data, binding)) is not None
        }

    def answer(self, client, data, binding=BINDING) -> bytes | None:
        """Give one device one message, and its vector when it was opened a slot."""
        machine = self.clients[client]
        reply = machine.receive(data)
        if machine.state is ClientState.OPENED:
            return self.contribute(client, binding)
        return reply

    def contribute(self, client, binding=BINDING) -> bytes:
        machine = self.clients[client]
        return machine.contribute(self.inputs[client][machine.slot], binding)

    def collect(self, replies: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Give the server the devices' messages and close the round."""
        for client, data in replies.items():
            self.server.receive(client, data)
        return self.server.close_round()

    def exchange(self, outgoing) -> Mapping[int, bytes]:
        return self.collect(self.deliver(outgoing))

    def steps(self) -> Iterator[Mapping[int, bytes]]:
        """Run the session, stopping before each step with what the devices are to get next.

        The steps are those of `STEPS`; the sums that came out gather in `sums`.
        """
        yield (pending := self.server.start())
        for _ in range(2):
            yield (pending := self.exchange(pending))
        yield self.exchange(pending)
        for slot in range(len(self.params.slots)):
            if not self.server.can_sum(slot):  # a device of this whole slot is gone
                continue
            yield (pending := self.server.open_slot(slot, BINDING))
            while pending:
                pending = self.exchange(pending)
                if self.server.has_sum:  # else, at the end, a device is missing from a whole slot
                    self.sums.append(self.server.take_sum())
                yield pending

    def advance(self, state: ClientState) -> Mapping[int, bytes]:
        """From the start until all devices are in `state`; returns what they are to get next.

        READY devices are to get the opening of the first slot; LISTED ones too, which is whole and
        for which they have signed who takes part.
        """
        if state is ClientState.LISTED:
            return self.exchange(self.advance(ClientState.READY))
        if state is ClientState.OPENED:
            for client, data in self.advance(ClientState.READY).items():
                self.clients[client].receive(data)
            return {}
        if state is ClientState.READY:
            next(itertools.islice(self.steps(), _REACHED_AT[state], None))
            return self.server.open_slot(0, BINDING)
        return next(itertools.islice(self.steps(), _REACHED_AT[state], None))

    def finish_slot(self, requests):
        """Unmask the slot: what follows the masked inputs. Nothing does in a whole slot."""
        while requests:
            requests = self.exchange(requests)
        return self.server.take_sum()

    def run_slot(self, slot):
        """Take the sum of a slot from its opening to its end."""
        return self.finish_slot(self.server.open_slot(slot, BINDING))

    def position(self, client) -> int:
        """A device's place in the roster when nobody has vanished."""
        return self.roster.index(client)

    def members(self, clients: Iterable[int]):
        """A set of devices as the roster's booleans."""
        chosen = set(clients)
        return np.array([client in chosen for client in self.roster])

    def advertisement(self, client, sealing_key, mask_keys, *, by=None) -> AdvertiseKeys:
        """Keys under a device's id; in a signed session with its signature, or `by` another's."""
        if not self.params.signed:
            return AdvertiseKeys(sealing_key, mask_keys)
        identity = self.enrolment.credentials(client if by is None else by).identity
        statement = signing.advertisement(self.params, client, sealing_key, mask_keys)
        credential = Credential(identity.public, identity.sign(statement))
        return AdvertiseKeys(sealing_key, mask_keys, credential)

    def sealing_key(self, client) -> bytes:
        """What a device advertised: the public key of the first secret that it drew."""
        return key_pair(self.randomness[client].given[0]).public

    def sign_survivors(
        self, client, survivors, *, slot=0, roster=None, binding=BINDING, sealing_key=None
    ) -> bytes:
        """A device's signature of the survivors of a slot, over the whole roster or another."""
        context = SlotContext.of(self.params, self.session_id(roster), slot, binding)
        sealing_key = self.sealing_key(client) if sealing_key is None else sealing_key
        statement = signing.survivors(context, survivors, sealing_key)
        return self.enrolment.credentials(client).identity.sign(statement)

    def sign_members(self, client, members, *, slot=0, roster=None, sealing_key=None) -> bytes:
        """A device's signature of the members of a whole slot, on whom nobody agreed before."""
        sealing_key = self.sealing_key(client) if sealing_key is None else sealing_key
        statement = signing.members(self.session_id(roster), slot, members, sealing_key)
        return self.enrolment.credentials(client).identity.sign(statement)

    def session_id(self, roster=None) -> bytes:
        """The session's id over the whole roster or another."""
        ids = np.array(self.roster if roster is None else roster, dtype="<u4").tobytes()
        return self.params.session_id(ids)

    def encode(self, message: Message) -> bytes:
        return wire.encode(message, self.params)

    def decode(self, data: bytes) -> Message:
        return wire.decode(data, self.params)


def reachable_secrets(client: Client, randomness: LoggedRandomness) -> set[str]:
    """Which secrets can be reached from a device: names of those it drew, and of key objects."""
    drawn = {data for data in randomness.given if len(data) == 32}
    seen: set[int] = set()
    found: set[str] = set()
    stack: list[object] = [client]
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType):
            continue
        if thing is randomness:
            continue
        seen.add(id(thing))
        if isinstance(thing, bytes) and thing in drawn:
            found.add("bytes drawn")
        if isinstance(thing, X25519PrivateKey):
            found.add("private key")
        if isinstance(thing, np.ndarray) and thing.dtype == np.uint32 and thing.ndim >= 3:
            found.add("shares")
        stack.extend(gc.get_referents(thing))
    return found
