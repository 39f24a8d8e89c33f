"""Whole sessions over a network that delays, drops, doubles, reorders and corrupts.

Time is a number that only this module knows. The server closes a round when everybody has answered
or its time is over, as a caller with a clock would.
"""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

from parties import BINDING, Parties

from deltafl.secagg import PeerError, SessionAborted, UsageError, wire
from deltafl.secagg.states import ClientState, ServerState

ROUND_TIME = 10.0
_WORKS = 0.01  # how long a device takes


@dataclass
class Faults:
    """What the network does, as probabilities of each message on each link.

    Attributes:
        late: It is delayed, up to thrice the time of a round.
        lost: It never comes.
        doubled: It comes twice.
        corrupt: It comes with a bit flipped or its end cut off, on the links of `corrupted`.
        corrupted: Places of devices in the order of invitation whose links corrupt.
    """

    late: float = 0.0
    lost: float = 0.0
    doubled: float = 0.0
    corrupt: float = 0.0
    corrupted: frozenset[int] = frozenset()


@dataclass
class Outcome:
    """What a session came to.

    Attributes:
        sums: Those that came out.
        skipped: Whole slots that were not opened, because a device of theirs was gone.
        aborted: Whether the session ended before its last slot.
        drops: As the server's, at the end.
        spoilt: Devices and kinds of messages that were corrupted and then delivered.
        stopped: Devices that ended their session, by the refusal.
        did: How often the network did what.
    """

    sums: list = field(default_factory=list)
    skipped: list = field(default_factory=list)
    aborted: bool = False
    drops: dict = field(default_factory=dict)
    spoilt: set = field(default_factory=set)
    stopped: dict = field(default_factory=dict)
    did: Counter = field(default_factory=Counter)


class Network:
    """One server, its devices, and the messages under way."""

    def __init__(self, params, faults, seed):
        self.parties = Parties(params, seed=seed)
        self.faults = faults
        self.chance = random.Random(seed)  # noqa: S311 the network has no secrets
        self.corrupted = {self.parties.ids[i] for i in faults.corrupted}
        self.outcome = Outcome()
        self.now = 0.0
        self._under_way = []
        self._sent = 0

    def run(self):
        """Play the session to its end; what is still under way then is delivered after it."""
        server, outcome = self.parties.server, self.outcome
        try:
            pending = server.start()
            for _ in range(3):
                pending = self._round(pending)
            for slot in range(len(self.parties.params.slots)):
                if not server.can_sum(slot):
                    outcome.skipped.append(slot)
                    continue
                pending = server.open_slot(slot, BINDING)
                while (
                    server.state is not ServerState.READY and server.state is not ServerState.DONE
                ):
                    pending = self._round(pending)
                if server.has_sum:
                    outcome.sums.append(server.take_sum())
        except SessionAborted:
            outcome.aborted = True
        outcome.drops = dict(server.drops)
        self._deliver_until(float("inf"))
        assert server.drops == outcome.drops, "blamed after the end"
        return outcome

    def _round(self, outgoing):
        for client, data in outgoing.items():
            self._send(client, data, upwards=False)
        self._deliver_until(self.now + ROUND_TIME)
        return self.parties.server.close_round()

    def _deliver_until(self, end):
        while self._under_way and self._under_way[0][0] <= end:
            self.now, _, client, data, upwards = heapq.heappop(self._under_way)
            if upwards:
                self.parties.server.receive(client, data)
            else:
                self._hand_to(client, data)
            if end < float("inf") and not self._awaited():
                return
        self.now = min(end, self.now + ROUND_TIME)

    def _awaited(self):
        server = self.parties.server
        return set(server.remaining) - set(server._heard)

    def _hand_to(self, client, data):
        machine = self.parties.clients[client]
        if machine.state is ClientState.FAILED:
            return
        try:
            reply = machine.receive(data)
            if machine.state is ClientState.OPENED and reply is None:
                reply = self.parties.contribute(client)
        except PeerError as refusal:
            self.outcome.stopped[client] = refusal.reason
        except UsageError:  # a repetition came while no slot was open
            return
        else:
            if reply is not None:
                self._send(client, reply, upwards=True)

    def _send(self, client, data, *, upwards):
        faults, did = self.faults, self.outcome.did
        for _ in range(1 + self._happens("doubled", faults.doubled)):
            arrives = self.now + self.chance.random() + _WORKS
            if self._happens("lost", faults.lost):
                continue
            if self._happens("late", faults.late):
                arrives += self.chance.random() * 3 * ROUND_TIME
            copy = data
            if client in self.corrupted and self._happens("corrupt", faults.corrupt):
                copy = self._spoil(data)
                self.outcome.spoilt.add((client, data[2]))
            self._sent += 1
            did["sent"] += 1
            heapq.heappush(self._under_way, (arrives, self._sent, client, copy, upwards))

    def _happens(self, what, probability):
        if self.chance.random() < probability:
            self.outcome.did[what] += 1
            return True
        return False

    def _spoil(self, data):
        at = self.chance.randrange(len(data))
        if self.chance.random() < 0.3:
            return data[:at]
        return data[:at] + bytes([data[at] ^ 1 << self.chance.randrange(8)]) + data[at + 1 :]


KINDS = {name: wire.Kind[name] for name in ("ADVERTISE", "ROSTER", "DELIVERY", "SLOT", "MASKED")}
"""Kinds of messages on the wire, by name."""
