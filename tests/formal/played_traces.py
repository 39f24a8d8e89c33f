"""Sessions of the real machines, recorded move by move, in the words of docs/formal/session.pml."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from parties import BINDING, Parties

from deltafl.secagg import SessionAborted
from deltafl.secagg.states import ClientState, ServerState

SERVER = 4
"""The number of the server among those that move; devices go by their place, from 0."""


@dataclass
class Trace:
    """What the machines of a session did.

    Attributes:
        kinds: Bit i is 1 if slot i is whole.
        verified: Whether sums are opened to devices.
        moves: Who moved, and to which state.
        sums: The devices of each slot's sum, bit by place; 0 where there is none.
    """

    kinds: int
    verified: bool
    moves: list[tuple[int, str]] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)

    def promela(self) -> str:
        """The trace as the file that the model includes."""
        movers = ", ".join(str(mover) for mover, _ in self.moves)
        states = ", ".join(state for _, state in self.moves)
        summed = ", ".join(map(str, self.sums))
        return (
            f"#define MOVES {len(self.moves)}\n"
            f"byte mover[MOVES + 1] = {{ {movers}, 255 }};\n"
            f"mtype moved_to[MOVES + 1] = {{ {states}, DONE }};\n"
            f"byte summed[SLOTS] = {{ {summed} }};\n"
        )

    def defines(self) -> list[str]:
        """What the model's preprocessor is told."""
        return [
            "REPLAY",
            f"KINDS={self.kinds}",
            f"SLOTS={len(self.sums)}",
            f"VERIFIED={int(self.verified)}",
        ]


class _Player:
    """A session under way: what the machines do, and the trace of it."""

    def __init__(self, params, trace: Trace) -> None:
        self.parties, self.trace = Parties(params), trace
        self.opening: bytes | None = None
        """The proof of the last sum, for devices that it has not been sent to yet."""

    def note(self, mover, machine):
        self.trace.moves.append((mover, machine.state.name))

    def deliver(self, client, data):
        """Give a device its message, and its vector if it is asked for one."""
        place, machine = self.parties.position(client), self.parties.clients[client]
        if self.opening is not None:
            machine.receive(self.opening)
            self.note(place, machine)
        reply = machine.receive(data)
        self.note(place, machine)
        if machine.state is ClientState.OPENED:
            reply = self.parties.contribute(client)
            self.note(place, machine)
        return reply

    def collect(self, outgoing, is_silent, is_late):
        """One trip to all devices and back, and the end of its round."""
        server, after = self.parties.server, []
        for client, data in outgoing.items():
            place = self.parties.position(client)
            if is_silent(place):
                continue
            reply = self.deliver(client, data)
            if is_late(place):
                after.append((client, reply))
                continue
            server.receive(client, reply)
            assert not server.is_awaited(client)
            self.note(SERVER, server)
        self.opening = None
        following = self.do(server.close_round)
        for client, reply in after:  # ignored: no move
            server.receive(client, reply)
        if server.has_sum:
            self.keep(server.take_sum())
        return following

    def do(self, call):
        """What the server's caller does; nothing follows if it ends the session."""
        try:
            return call()
        except SessionAborted:
            return {}
        finally:
            self.note(SERVER, self.parties.server)

    def keep(self, total):
        places = [self.parties.position(client) for client in total.contributors]
        self.trace.sums[total.slot] = sum(1 << place for place in places)
        self.opening = total.opening


def play(params, *, silent: Mapping[int, int], late: Mapping[int, int]) -> Trace:
    """Play a session of four devices, and record who moves to which state.

    Args:
        params: The session's parameters.
        silent: By place of a device, the number of the trip from which it takes no message.
        late: By place of a device, the number of the trip from which its answers come too late.
    """
    kinds = sum(1 << index for index, slot in enumerate(params.slots) if slot.whole)
    verified = any(slot.verified for slot in params.slots)
    trace = Trace(kinds, verified, sums=[0] * len(params.slots))
    player = _Player(params, trace)
    server = player.parties.server
    slots, outgoing = iter(range(len(params.slots))), server.start()
    for trip in count():
        if server.state is ServerState.READY:
            slot = next((slot for slot in slots if server.can_sum(slot)), None)
            if slot is None:
                break
            outgoing = player.do(partial(server.open_slot, slot, BINDING))
        if server.state in (ServerState.DONE, ServerState.ABORTED):
            break
        outgoing = player.collect(
            outgoing,
            lambda place, now=trip: now >= silent.get(place, now + 1),
            lambda place, now=trip: now >= late.get(place, now + 1),
        )
    return trace
