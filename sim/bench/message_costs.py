"""`deltafl bench messages`: what one message may cost its receiver, at the server and at a device.

A session of one sum is played by real parties, all in this process. For each kind of message the
report says how long it is, and the CPU time that its receiver spends on it, until it has answered.
The costs that a message causes at the end of a round are the server's, once for all devices. They
are measured twice: with honest devices, and with one that returns wrong shares of everybody.

Beside, a device alone takes the largest session that its policy accepts, with neighbours that
exist as keys only: its limits are all that holds such a server back.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Final, TypeVar

import numpy as np

from deltafl.secagg import (
    Client,
    ClientId,
    DecodeError,
    DevicePolicy,
    Enrolment,
    Server,
    SessionParams,
    SlotSpec,
    UsageError,
    shamir,
    wire,
)
from deltafl.secagg.keys import KEY_SIZE, PublicKey
from deltafl.secagg.messages import AdvertiseKeys, RosterMessage, SessionOpen, UnmaskShares
from deltafl.secagg.outgoing import Outgoing
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.ring import Vector, to_words
from deltafl.secagg.states import ClientState, ServerState
from deltafl.sim.bench.report import machine
from deltafl.sim.bench.sizes import CLIENTS, SLOTS, check_least
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.flags import add_json

_POLICY: Final = DevicePolicy(min_cohort=2, min_threshold=2, min_threshold_share=0.0)
_BINDING: Final = b"what all devices were shown"
_RING_BITS: Final = 32
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class MessageBenchmark:
    """What to measure.

    Attributes:
        clients: devices, N.
        dim: elements of the vector.
        slots: tolerant slots, of which one is summed.
        signed: whether devices agree on survivors.
    """

    clients: int
    dim: int
    slots: int
    signed: bool

    def __post_init__(self) -> None:
        check_least(clients=(self.clients, 4), dim=(self.dim, 1), slots=(self.slots, 1))

    def params(self) -> SessionParams:
        """The session, on the complete graph, with a majority for a threshold."""
        threshold = self.clients // 2 + 1
        return SessionParams(
            slots=tuple(SlotSpec(f"slot {i}", self.dim, _RING_BITS) for i in range(self.slots)),
            num_invited=self.clients,
            degree=self.clients - 1,
            threshold=threshold,
            min_cohort=threshold,
            graph_seed=bytes(32),
            context=bytes(32),
            signed=self.signed,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one message: its size, and CPU seconds of its receiver (medians over devices)."""

    bytes: int
    cpu_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure what each kind of message costs the party that receives it, what one device that "
        "returns wrong shares costs the server, and what the largest session that a device accepts "
        "costs this device."
    )
    parser.add_argument("--clients", type=CLIENTS, default=50, metavar="N", help="devices (50)")
    parser.add_argument("--dim", type=int, default=100_000, metavar="D", help="elements (100000)")
    parser.add_argument("--slots", type=SLOTS, default=2, metavar="T", help="slots (2)")
    parser.add_argument("--unsigned", action="store_true", help="without signatures")
    parser.add_argument(
        "--largest",
        action="store_true",
        help="also the largest session that a device accepts (a minute, 2 GB)",
    )
    add_json(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark and print what was measured; the exit code."""
    try:
        benchmark = MessageBenchmark(
            arguments.clients, arguments.dim, arguments.slots, not arguments.unsigned
        )
        measured = measure(benchmark)
        if arguments.largest:
            measured = replace(measured, largest_roster=largest_roster(DevicePolicy()))
    except (UsageError, UserError, ValueError) as error:
        print(f"deltafl: {error}", file=sys.stderr)
        return 2
    report = {**asdict(benchmark), **asdict(measured), "machine": machine()}
    print(json.dumps(report, indent=2) if arguments.json else _describe(measured))
    return 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured.

    Attributes:
        to_devices: Messages to a device, by kind.
        to_server: Messages to the server.
        closing_cpu_s: Of the server, to end each round, by what it collected.
        wrong_shares_cpu_s: To end the unmasking where one device returned wrong shares.
        largest_roster: To a device; None if not asked for.
    """

    to_devices: Mapping[str, Cost]
    to_server: Mapping[str, Cost]
    closing_cpu_s: Mapping[str, float]
    wrong_shares_cpu_s: float
    largest_roster: Cost | None = None


def measure(benchmark: MessageBenchmark) -> Measured:
    """Play the session with honest devices and with a liar; costs by kind of message.

    Raises:
        RunError: a sum is wrong.
    """
    honest, liar = _Session(benchmark), _Session(benchmark)
    honest.play()
    liar.play(_spoil_all)
    return Measured(
        {kind: _typical(costs) for kind, costs in honest.to_devices.items()},
        {kind: _typical(costs) for kind, costs in honest.to_server.items()},
        {str(state): spent for state, spent in honest.closing.items()},
        liar.closing[ServerState.UNMASK],
    )


class _Session:
    """A session of real parties, and the cost of each message."""

    def __init__(self, benchmark: MessageBenchmark) -> None:
        self._params = params = benchmark.params()
        enrolment = Enrolment(SeededRandomness(bytes(32)))
        ids = [ClientId(i) for i in range(benchmark.clients)]
        self.server = Server(params, ids, enrolment)
        self._clients = {
            client: Client(
                client,
                _POLICY,
                SeededRandomness(client.to_bytes(32, "big")),
                enrolment.credentials_for(client, params),
            )
            for client in ids
        }
        self._vector: Vector = to_words(np.arange(benchmark.dim, dtype=np.uint64), _RING_BITS)
        self.to_devices: dict[str, list[Cost]] = defaultdict(list)
        self.to_server: dict[str, list[Cost]] = defaultdict(list)
        self.closing: dict[ServerState, float] = {}

    def play(self, tamper: Callable[[UnmaskShares], UnmaskShares] | None = None) -> None:
        """Sum the first slot; the device 0 tampers with the shares that it returns."""
        outgoing = self.server.start()
        while outgoing:
            outgoing = self._exchange(outgoing, tamper)
        outgoing = self.server.open_slot(0, _BINDING)
        while outgoing:
            outgoing = self._exchange(outgoing, tamper)
        expected = self._vector * np.uint32(len(self._clients))
        if not np.array_equal(self.server.take_sum().vector, expected):
            raise RunError("the sum is wrong: a bug")

    def _exchange(
        self, outgoing: Outgoing, tamper: Callable[[UnmaskShares], UnmaskShares] | None
    ) -> Outgoing:
        replies = {}
        for client, device in self._clients.items():
            data = outgoing[client]
            reply, spent = _timed(partial(self._answer, device, data))
            self.to_devices[self._kind(data)].append(Cost(len(data), spent))
            if reply is None:
                continue
            if client == 0 and tamper is not None:
                message = wire.decode(reply, self._params)
                if isinstance(message, UnmaskShares):
                    reply = wire.encode(tamper(message), self._params)
            replies[client] = reply
        for client, reply in replies.items():
            _, spent = _timed(partial(self.server.receive, client, reply))
            self.to_server[self._kind(reply)].append(Cost(len(reply), spent))
        state = self.server.state
        following, self.closing[state] = _timed(self.server.close_round)
        return following

    def _answer(self, device: Client, data: bytes) -> bytes | None:
        reply = device.receive(data)
        if device.state is ClientState.OPENED:
            return device.contribute(self._vector, _BINDING)
        return reply

    def _kind(self, data: bytes) -> str:
        try:
            return type(wire.decode(data, self._params)).__name__
        except DecodeError:
            return SessionOpen.__name__


def largest_roster(policy: DevicePolicy) -> Cost:
    """The roster of the largest session that a policy accepts, and what a device does with it.

    It is as much work to share secrets as the policy allows, of as many slots as it allows.
    """
    slots = policy.max_slots
    limbs = 2 * shamir.NUM_LIMBS * slots
    num = int((2 * policy.max_sharing_work / limbs) ** 0.5) - 1
    params = MessageBenchmark(num, 1, slots, signed=False).params()
    device = Client(ClientId(0), policy, SeededRandomness(bytes(32)))
    device.receive(wire.encode(SessionOpen(params), params))
    source = SeededRandomness(b"neighbours".ljust(32))

    def key() -> PublicKey:
        return PublicKey(source(KEY_SIZE - 1) + b"\x10")

    neighbours = {
        i: AdvertiseKeys(key(), tuple(key() for _ in range(slots))) for i in range(1, num)
    }
    roster = wire.encode(RosterMessage(np.arange(num, dtype=np.uint32), neighbours), params)
    _, spent = _timed(lambda: device.receive(roster))
    return Cost(len(roster), spent)


def _spoil_all(message: UnmaskShares) -> UnmaskShares:
    shares = (message.shares.astype(np.uint64) + 1) % shamir.PRIME
    return replace(message, shares=shares.astype(np.uint32))


def _typical(costs: list[Cost]) -> Cost:
    """Medians: a device's garbage collection is not the message's cost."""
    return Cost(round(median(c.bytes for c in costs)), median(c.cpu_s for c in costs))


def _timed(work: Callable[[], _Result]) -> tuple[_Result, float]:
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def _describe(measured: Measured) -> str:
    lines = [f"{'message':<22} {'bytes':>10} {'CPU, ms':>10} {'CPU, µs per kB':>15}", "to a device"]
    lines += [_line(kind, cost) for kind, cost in measured.to_devices.items()]
    lines.append("to the server")
    lines += [_line(kind, cost) for kind, cost in measured.to_server.items()]
    if measured.largest_roster is not None:
        lines.append("to a device, in the largest session that it accepts")
        lines.append(_line(RosterMessage.__name__, measured.largest_roster))
    unmasking = measured.closing_cpu_s[ServerState.UNMASK]
    lines.append(
        f"the server unmasks in {1e3 * unmasking:.1f} ms; if one device returns wrong shares of "
        f"everybody, in {1e3 * measured.wrong_shares_cpu_s:.1f} ms"
    )
    return "\n".join(lines)


def _line(kind: str, cost: Cost) -> str:
    per_kb = 1e9 * cost.cpu_s / cost.bytes
    return f"  {kind:<20} {cost.bytes:>10,} {1e3 * cost.cpu_s:>10.2f} {per_kb:>15.1f}"
