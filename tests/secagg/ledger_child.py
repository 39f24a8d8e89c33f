"""A process of a device that has a ledger, to be killed or raced with; a program.

python ledger_child.py loop KIND PATH NAME      admit pairs for ever; say each that was admitted
python ledger_child.py race PATH COUNT          admit each of some entries; say which were new
python ledger_child.py session KIND PATH WHEN   answer in a session, or be killed: WHEN is
                                                "before" or "after" the ledger, or "never"
"""

import os
import signal
import sys
from contextlib import closing
from hashlib import sha256
from itertools import count
from pathlib import Path

from deltafl.secagg.ledger import MemoryLedger, SqliteLedger

PROGRAM = Path(__file__).relative_to(Path(__file__).parents[2]).as_posix()


def pair(name, number):
    """Two entries that are admitted together."""
    return [sha256(f"{name} {number} {half}".encode()).digest() for half in "ab"]


def numbered(number):
    """An entry for races."""
    return number.to_bytes(32, "little")


class Deferred:
    """What a ledger must not be: it writes when it is closed."""

    def __init__(self, path):
        self._durable, self._memory, self._unwritten = SqliteLedger(path), MemoryLedger(), []

    def admit(self, entries):
        if any(self._durable.knows(entry) for entry in entries) or not self._memory.admit(entries):
            return False
        self._unwritten += entries
        return True

    def knows(self, entry):
        return self._durable.knows(entry) or self._memory.knows(entry)

    def close(self):
        self._durable.admit(self._unwritten)
        self._durable.close()


KINDS = {"sqlite": SqliteLedger, "deferred": Deferred}


class Killed:
    """A ledger whose process is killed while it is asked."""

    def __init__(self, ledger, when):
        self._ledger, self._when = ledger, when

    def admit(self, entries):
        if self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        admitted = self._ledger.admit(entries)
        if self._when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return admitted

    def knows(self, entry):
        return self._ledger.knows(entry)


def loop(kind, path, name):
    ledger = KINDS[kind](path)
    for number in count():
        assert ledger.admit(pair(name, number))
        print(number, flush=True)


def race(path, number):
    print("ready", flush=True)
    sys.stdin.readline()
    with SqliteLedger(path) as ledger:
        print(*(n for n in range(int(number)) if ledger.admit([numbered(n)])), flush=True)


def session(kind, path, when):
    from parties import POLICY, Parties, make_params  # here: the others are to begin at once

    from deltafl.secagg import Client, PeerError
    from deltafl.secagg.states import ClientState

    parties = Parties(make_params(6, threshold=3))
    device = parties.ids[0]
    with closing(KINDS[kind](path)) as ledger:
        parties.clients[device] = Client(
            device,
            POLICY,
            credentials=parties.enrolment.credentials(device),
            ledger=Killed(ledger, when),
        )
        try:
            for client, data in parties.advance(ClientState.LINKED).items():
                parties.clients[client].receive(data)
            print("answered" if parties.contribute(device) else "said nothing")
        except PeerError as refused:
            print(refused.reason.name)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    {"loop": loop, "race": race, "session": session}[command](*arguments)
