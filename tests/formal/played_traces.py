"""Sessions of the real machines, recorded move by move, in the words of docs/formal/session.pml."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from parties import Parties

from deltafl.secagg import SessionAborted
from deltafl.secagg.states import ClientState, ServerState

SERVER = 4
"""The number of the server among those that move; devices go by their place, from 0."""


@dataclass
class Trace:
    """What the machines of a session did.

    Attributes:
        kinds: Bit i is 1 if slot i is whole.
        signed: Whether the session is.
        verified: Whether sums are opened to devices.
        moves: Who moved, and to which state.
        sums: The devices of each slot's sum, bit by place; 0 where there is none.
    """

    kinds: int
    signed: bool
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
            f"SIGNED={int(self.signed)}",
            f"VERIFIED={int(self.verified)}",
        ]


def play(  # noqa: C901 one session from end to end
    params, *, silent: Mapping[int, int], late: Mapping[int, int]
) -> Trace:
    """Play a session of four devices, and record who moves to which state.

    Args:
        params: The session's parameters.
        silent: By place of a device, the number of the trip from which it takes no message.
        late: By place of a device, the number of the trip whose answer comes after its end.
    """
    parties = Parties(params)
    kinds = sum(1 << index for index, slot in enumerate(params.slots) if slot.whole)
    verified = any(slot.verified for slot in params.slots)
    trace = Trace(kinds, params.signed, verified, sums=[0] * len(params.slots))
    server, trip, opening = parties.server, 0, None
    outgoing = server.start()

    def note(mover, machine):
        trace.moves.append((mover, machine.state.name))

    def deliver(client, data):
        place = parties.position(client)
        machine = parties.clients[client]
        if opening is not None:
            machine.receive(opening)
            note(place, machine)
        reply = machine.receive(data)
        note(place, machine)
        if machine.state is ClientState.OPENED:
            reply = parties.contribute(client)
            note(place, machine)
        return reply

    def close():
        try:
            return server.close_round()
        finally:
            note(SERVER, server)

    slots = iter(range(len(params.slots)))
    while server.state not in (ServerState.DONE, ServerState.ABORTED):
        if server.state is ServerState.READY:
            slot = next((slot for slot in slots if server.can_sum(slot)), None)
            if slot is None:
                break
            try:
                outgoing = server.open_slot(slot, b"what all devices were shown")
            except SessionAborted:
                note(SERVER, server)
                break
            note(SERVER, server)
        after = []
        for client, data in outgoing.items():
            place = parties.position(client)
            if trip >= silent.get(place, 1000):
                continue
            reply = deliver(client, data)
            if trip >= late.get(place, 1000):
                after.append((client, reply))
                continue
            server.receive(client, reply)
            assert not server.is_awaited(client)
            note(SERVER, server)
        opening, trip = None, trip + 1
        try:
            outgoing = close()
        except SessionAborted:
            break
        for client, reply in after:  # ignored: no move
            server.receive(client, reply)
        if server.has_sum:
            total = server.take_sum()
            places = [parties.position(client) for client in total.contributors]
            trace.sums[total.slot] = sum(1 << place for place in places)
            opening = total.opening
    return trace
