"""A session driven by hand: a server and its devices, and every message in the test's hands."""

import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from types import FunctionType, MethodType, ModuleType

import numpy as np
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey

from deltafl.secagg import (
    Client,
    DevicePolicy,
    Enrolment,
    Server,
    SessionParams,
    SlotSpec,
    SlotSum,
    keys,
    ring,
    signing,
    wire,
)
from deltafl.secagg.links import Link
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import AdvertiseKeys, Credential, Message
from deltafl.secagg.primitives import Primitives
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import ClientState, ServerState

STRICT = DevicePolicy(
    min_cohort=2, min_threshold=2, min_threshold_share=0.0, colluding_rate=0.0, dropout_rate=0.9
)
"""A policy that small test sessions satisfy, if they are over the complete graph."""


class _AnyGraph(DevicePolicy):
    """Takes any sparse graph: hardly one over a handful of devices is safe with any missing."""

    def _check_sparse(self, params):
        del params


POLICY = _AnyGraph(**{each.name: getattr(STRICT, each.name) for each in fields(STRICT)})
"""A policy that small test sessions satisfy."""

BINDING = b"what all devices were shown"

_SLOT = (ServerState.MASK, ServerState.CONFIRM, ServerState.UNMASK, ServerState.READY)
_SET_UP = (ServerState.ADVERTISE, ServerState.SHARE, ServerState.RECEIPT, ServerState.READY)

STEPS = (*_SET_UP, *_SLOT, *_SLOT[:-1], ServerState.DONE)
"""The server's state at each step of `Parties.steps`, in a session of two tolerant slots."""


def make_params(
    num_invited=5,
    *,
    degree=None,
    threshold=3,
    min_cohort=None,
    slots=((4, 16), (3, 40)),
    graph_seed=bytes(32),
    context=bytes(32),
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
    """Seeded randomness that remembers every secret that it gave.

    Attributes:
        given: What it gave.
        link_keys: What its device derived from its links.
    """

    def __init__(self, seed: bytes) -> None:
        self.given: list[bytes] = []
        self.link_keys: list[bytes] = []
        self._source = SeededRandomness(seed)

    def __call__(self, size: int) -> bytes:
        self.given.append(self._source(size))
        return self.given[-1]

    def apply(self, function, /, *arguments, **named):
        """`primitives.apply`, which remembers the keys of links."""
        result = function(*arguments, **named)
        if isinstance(result, Link):
            self.link_keys += result.keys
        return result


_sealed = lru_cache(maxsize=1 << 12)(keys.seal)


def sealed_once(content: bytes, public: bytes, info: bytes) -> bytes:
    """`keys.seal`, which gives the same box for the same content: what is repeated is the same."""
    return _sealed(content, public, info)


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
                self.enrolment.credentials(client),
                self.randomness[client],
                Primitives(seal=sealed_once, apply=self.randomness[client].apply),
                self.enrolment.ledger(client),
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

        LINKED devices are to get the opening of the first slot, READY ones that of the second.
        """
        if state is ClientState.OPENED:
            for client, data in self.advance(ClientState.LINKED).items():
                self.clients[client].receive(data)
            return {}
        for pending in self.steps():
            if all(machine.state is state for machine in self.clients.values()):
                return pending or self.server.open_slot(self.server._slot + 1, BINDING)
        raise AssertionError(state)

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

    def advertisement(self, client, key, *, by=None) -> AdvertiseKeys:
        """A key under a device's id; with its signature, or `by` another's."""
        identity = self.enrolment.credentials(client if by is None else by).identity
        statement = signing.advertisement(self.params, client, key)
        return AdvertiseKeys(key, Credential(identity.public, identity.sign(statement)))

    def key(self, client) -> bytes:
        """What a device advertised: the public key of the first secret that it drew."""
        return keys.recipient(self.randomness[client].given[0]).public

    def sign_survivors(
        self, client, survivors, *, slot=0, roster=None, binding=BINDING, key=None
    ) -> bytes:
        """A device's signature of the survivors of a slot, over the whole roster or another."""
        context = SlotContext.of(self.params, self.session_id(roster), slot, binding)
        statement = signing.survivors(context, survivors, self.key(client) if key is None else key)
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
    """Which secrets can be reached from a device: what it drew or derived, and its objects."""
    drawn = {data for data in randomness.given if len(data) == 32}
    names = {"bytes drawn": drawn, "link keys": set(randomness.link_keys)}
    seen: set[int] = set()
    found: set[str] = set()
    stack: list[object] = [client]
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType | MethodType):
            continue
        if thing is randomness:
            continue
        seen.add(id(thing))
        found |= {
            name for name, secrets in names.items() if type(thing) is bytes and thing in secrets
        }
        if isinstance(thing, MLKEM768X25519PrivateKey):
            found.add("private key")
        if isinstance(thing, np.ndarray) and thing.dtype == np.uint32 and thing.ndim >= 3:
            found.add("shares")
        stack.extend(gc.get_referents(thing))
    return found
