"""A whole session on one page, all parties in one process, over a network that loses devices.

Read this first. Every message really is encoded, sent, decoded and checked. Only the network is
simulated: it delivers in order, and loses each device from the step at which the device vanishes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from deltafl.secagg import ring
from deltafl.secagg.client import Client
from deltafl.secagg.directory import Enrolment
from deltafl.secagg.errors import UsageError
from deltafl.secagg.messages import Outgoing
from deltafl.secagg.params import ClientId, SessionParams
from deltafl.secagg.policy import DevicePolicy
from deltafl.secagg.primitives import PLAIN, Primitives
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.ring import Vector
from deltafl.secagg.server import Server
from deltafl.secagg.states import ClientState, Stage, Step, Vanishing
from deltafl.secagg.summing import SlotSum


class Observer(Protocol):
    """Watches a session, for example to record or time it."""

    def message(self, *, sent: bool, peer: ClientId, data: bytes) -> None:
        """The server has sent (or received) `data` to (or from) `peer`."""

    def closed(self) -> None:
        """The server has ended a trip: what it gets from here on is late, or answers the next."""

    def revealed(self, total: SlotSum) -> None:
        """The server has learned a sum."""

    def working(self, party: ClientId | None, step: Step) -> AbstractContextManager[None]:
        """A context that is entered while a device (None: the server) works on a step."""


class NoObserver:
    """An observer that ignores everything."""

    def message(self, *, sent: bool, peer: ClientId, data: bytes) -> None:
        """Ignore the message."""

    def closed(self) -> None:
        """Ignore the end of the trip."""

    def revealed(self, total: SlotSum) -> None:
        """Ignore the sum."""

    def working(self, party: ClientId | None, step: Step) -> AbstractContextManager[None]:
        """A context that does nothing."""
        del party, step
        return nullcontext()


class Collector(Protocol):
    """The server's side of a round: `Server`, or a state machine built on it."""

    @property
    def step(self) -> Step:
        """Which answers are due."""

    def receive(self, sender: ClientId, data: bytes) -> None:
        """Take one message."""

    def close_round(self) -> Outgoing:
        """End the round and return the next messages."""


def run_session(
    params: SessionParams,
    inputs: Mapping[ClientId, Sequence[Vector]],
    bindings: Sequence[bytes],
    *,
    vanishing: Vanishing | None = None,
    policy: DevicePolicy,
    randomness: Randomness = system_randomness,
    enrolment: Enrolment | None = None,
    observer: Observer | None = None,
    primitives: Primitives = PLAIN,
) -> list[SlotSum]:
    """Run every slot of a session and return the sums.

    A whole (all-or-nothing) slot has a sum only if no device is missing from it.

    Args:
        params: The session's parameters.
        inputs: For each invited device its vector for every slot.
        bindings: The caller's binding of each slot, the same for all; slots without one are not
            opened.
        vanishing: Which devices vanish, and when.
        policy: What every device insists on.
        randomness: Source of every secret.
        enrolment: The devices' identities; drawn if not given.
        observer: Watches the session.
        primitives: What every party computes with.

    Raises:
        SessionAborted: too few devices are left.
        PeerError: the parameters fall short of the devices' policy.
        UsageError: there are too many bindings, or a device has a vector too few, or one that does
            not fit its slot; no message has been sent.
    """
    _check_inputs(params, inputs, bindings)
    observer = observer or NoObserver()
    enrolment = enrolment or Enrolment(randomness)
    server = Server(params, inputs, enrolment, primitives)
    clients = {
        client: Client(
            client,
            policy,
            enrolment.credentials(client),
            randomness,
            primitives,
            enrolment.ledger(client),
        )
        for client in inputs
    }

    def answer(client: ClientId, data: bytes) -> bytes | None:
        reply = clients[client].receive(data)
        if clients[client].state is ClientState.OPENED:
            slot = clients[client].slot
            reply = clients[client].contribute(inputs[client][slot], bindings[slot])
        return reply

    lost = vanishing or {}
    drive(server, server.start(), answer, lost, observer)  # keys, then boxes of shares, receipts
    sums = []
    for slot, binding in enumerate(bindings):
        if not server.can_sum(slot):
            continue  # a device of this whole slot is gone
        with observer.working(None, Step(Stage.MASK, slot)):
            outgoing = server.open_slot(slot, binding)
        drive(server, outgoing, answer, lost, observer)
        if server.has_sum:  # else a device is missing from a whole slot
            sums.append(server.take_sum())
            observer.revealed(sums[-1])
    return sums


def _check_inputs(
    params: SessionParams, inputs: Mapping[ClientId, Sequence[Vector]], bindings: Sequence[bytes]
) -> None:
    if not isinstance(inputs, Mapping):
        raise UsageError(f"inputs are vectors by device, not a {type(inputs).__name__}")
    if len(bindings) > len(params.slots):
        raise UsageError(f"{len(bindings)} bindings for {len(params.slots)} slots")
    for client, vectors in inputs.items():
        if len(vectors) < len(bindings):
            raise UsageError(
                f"device {client}: {len(vectors)} vectors for {len(bindings)} slots to open"
            )
        for index, spec in enumerate(params.slots[: len(bindings)]):
            try:
                ring.check_vector(vectors[index], spec.length, spec.ring_bits)
            except UsageError as error:
                raise UsageError(f"device {client}, slot {index}: {error}") from None


def drive(
    server: Collector,
    outgoing: Outgoing,
    answer: Callable[[ClientId, bytes], bytes | None],
    vanishing: Vanishing,
    observer: Observer,
) -> None:
    """Make trips until nobody is asked.

    Args:
        server: Sends the messages, and gets the answers.
        outgoing: Its first messages.
        answer: What a device answers, if anything.
        vanishing: Which devices vanish, and when.
        observer: Sees all that passes.
    """
    while outgoing:
        trip = Trip(server, vanishing, observer)
        for client, data in trip.deliver(outgoing):
            with trip.at_work(client):
                reply = answer(client, data)
            trip.take(client, reply)
        outgoing = trip.close()


class Trip:
    """The server's messages to devices, and their answers.

    A device that vanishes at this step does not answer, or answers after the trip was closed.

    Args:
        server: Sends the messages, and gets the answers.
        vanishing: Which devices vanish, and when.
        observer: Sees all that passes.

    Attributes:
        received: Bytes that devices have sent.
    """

    def __init__(self, server: Collector, vanishing: Vanishing, observer: Observer) -> None:
        self.received = 0
        self._server = server
        self._step = server.step
        self._vanishing = vanishing
        self._observer = observer
        self._late: list[tuple[ClientId, bytes]] = []

    def at_work(self, party: ClientId | None) -> AbstractContextManager[None]:
        """A context for what a device does in this trip (None: the server)."""
        return self._observer.working(party, self._step)

    def deliver(self, outgoing: Outgoing) -> Iterator[tuple[ClientId, bytes]]:
        """The messages, in order, but for those to devices that have vanished."""
        for client in outgoing:
            with self.at_work(None):
                data = outgoing[client]
            self._observer.message(sent=True, peer=client, data=data)
            vanish = self._vanishing.get(client)
            if vanish is None or vanish.answers(self._step) or vanish.late:
                yield client, data

    def take(self, client: ClientId, reply: bytes | None) -> None:
        """Hand the server what a device answers, if anything, and if in time."""
        if reply is None:
            return
        self.received += len(reply)
        vanish = self._vanishing.get(client)
        if vanish is None or vanish.answers(self._step):
            self._observer.message(sent=False, peer=client, data=reply)
            with self.at_work(None):
                self._server.receive(client, reply)
        else:
            self._late.append((client, reply))

    def close(self) -> Outgoing:
        """End the trip, hand in what is late; the next messages."""
        with self.at_work(None):
            following = self._server.close_round()
        self._observer.closed()
        for client, reply in self._late:
            self._observer.message(sent=False, peer=client, data=reply)
            self._server.receive(client, reply)
        return following
