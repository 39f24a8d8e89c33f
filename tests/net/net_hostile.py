"""A server of three honest devices, and connections of many kinds that keep to no rules.

    python tests/net/net_hostile.py --connections 10000

Each kind comes in its turn, with many connections at once, each of which stays open for a second
and reads nothing. For each kind a line of JSON says what it did to the server: memory (RSS, MB)
before, at most and a while afterwards; lines and bytes of its log; and how long a round of the
honest devices took, as median and at most, in seconds. It ends with status 1 if the server or a
device has ended, or a round was lost.
"""

import argparse
import asyncio
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from net_kills import free_port

from deltafl.secagg import ClientId
from deltafl.secagg.codec import write_fields
from deltafl.secagg.identity import identity
from deltafl.sim.errors import UserError
from deltafl.sim.net import federation_cli
from deltafl.sim.net.dialling import PATH, SUBPROTOCOL
from deltafl.sim.net.frames import Challenge, Decline, Reason, Welcome, encode
from deltafl.sim.net.identities import OwnIdentity
from deltafl.sim.record.events import read_events
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.settings.config_io import build_config

DEVICES, MOST = 3, 1 << 18
# seconds: of a connection; of what is taken as before and after; until all connections are gone
STAYS_S, COUNTED_S, CLOSED_S = 1.0, 8.0, 6.0


def framed(data=b"", opcode=2, fin=1):
    """A frame of a WebSocket client, whose mask is zero."""
    size = len(data)
    if size < 126:
        head = bytes([fin << 7 | opcode, 128 | size])
    else:
        head = bytes([fin << 7 | opcode, 128 | 127]) + size.to_bytes(8, "big")
    return head + bytes(4) + data


def flood(frame):
    return frame * (MOST // len(frame))


STRANGER = OwnIdentity(ClientId(0), identity(bytes(32))).hello(Challenge(bytes(32)), b"")
UPGRADE = (
    f"GET {PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    f"Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
).encode()
REQUEST = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n"

FRAMES = {
    "no frame": b"",
    "pings without end": flood(framed(opcode=9)),
    "long pings without end": flood(framed(bytes(125), opcode=9)),
    "pongs without end": flood(framed(opcode=10)),
    "a long frame": framed(bytes(MOST)),
    "small frames without end": flood(framed(b"x")),
    "a frame in pieces without end": framed(b"x", fin=0) + flood(framed(opcode=0, fin=0)),
    "another frame": framed(encode(Welcome(0, 1))),
    "a device's frame": framed(encode(Decline(bytes(16), Reason.UNKNOWN))),
    "another version": framed(write_fields([1, 2, 0, bytes(32), bytes(64)])),
    "text": framed(b"text", opcode=1),
    "text that is none": framed(b"\xff", opcode=1),
    "another key": framed(encode(STRANGER)),
    "noise": bytes(range(256)) * (MOST // 256),
}
"""What is sent once the WebSocket is open."""

SENT = {
    "says nothing": [],
    "half a request": [REQUEST[:9]],
    "requests without end": [flood(REQUEST)],
    "a body without end": [POST + bytes(MOST)],
    **{name: [UPGRADE, frame] for name, frame in FRAMES.items()},
}
"""What is sent over TLS, in parts."""

PLAIN = {"no TLS": [], "noise for TLS": [bytes(range(256)) * 64]}
"""What is sent without."""

KINDS = {**PLAIN, **SENT}


async def come(port, context, parts):
    """A connection that sends something, and reads no more than it must."""
    with suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=1)
        try:
            for place, part in enumerate(parts):
                writer.write(part)
                if place + 1 < len(parts):
                    await reader.read(1)
            await asyncio.sleep(STAYS_S)
        finally:
            writer.transport.abort()


async def attack(port, trusted, number, at_once, parts, *, plain):
    """So many connections of one kind."""
    context = None if plain else ssl.create_default_context(cafile=trusted)
    room = asyncio.Semaphore(at_once)

    async def one():
        async with room:
            await come(port, context, parts)

    await asyncio.gather(*(one() for _ in range(number)))


class Fleet:
    """A server and its devices, each a process, and what is seen of them from outside."""

    def __init__(self, out):
        self.out, self.port = out, free_port()
        config = build_config(
            [
                {
                    "data": {"num_devices": 8},
                    "federation": {
                        "algorithm": "private-fedavg",
                        "rounds": 100_000,
                        "cohort_size": DEVICES,
                        "evaluate_every": 100_000,
                    },
                    "training": {"device": "cpu", "backend": "reference"},
                    "privacy": {"transcript": "sums", "min_cohort": DEVICES},
                }
            ]
        )
        federation_cli._prepare(out, config, DEVICES)
        options = argparse.Namespace(out=out, port=self.port, status="off")
        self.processes = [self.started(federation_cli._server(options), "server")]
        self.processes += [
            self.started(federation_cli._device(options, index), str(index))
            for index in range(DEVICES)
        ]

    def started(self, command, name):
        with (self.out / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 our own

    def end(self):
        for one in self.processes:
            one.kill()
            one.wait()

    def rounds(self):
        """The seconds of each round so far; those that were lost are None."""
        with suppress(UserError):
            with RunDirectory(self.out / "run").read() as record:
                found = read_events(record)
            return [None if one["aborted"] else one["wall_s"] for one in found]
        return []

    def memory(self):
        status = Path(f"/proc/{self.processes[0].pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) >> 10

    def log(self):
        """Lines and bytes of the server's log, but for those about rounds."""
        lines = (self.out / "server.log").read_bytes().splitlines(keepends=True)
        others = [one for one in lines if b" INFO " not in one]
        return len(others), sum(map(len, others))

    async def watched(self, doing):
        """What is seen of the server while something is done."""
        done, before, lines = len(self.rounds()), self.memory(), self.log()
        start, task, most = time.monotonic(), asyncio.ensure_future(doing), 0
        while not task.done():
            most = max(most, self.memory())
            await asyncio.sleep(0.05)
        await task
        took = [one or float("inf") for one in self.rounds()[done:]]
        return {
            "seconds": round(time.monotonic() - start, 1),
            "before_mb": before,
            "most_mb": most,
            "log": [after - one for after, one in zip(self.log(), lines, strict=True)],
            "rounds": len(took),
            "round_s": [round(statistics.median(took), 3), round(max(took), 3)] if took else [],
        }


async def play(fleet, connections, at_once, only=()):
    """Everything in its turn; whether all went well."""
    chosen = [name for name in KINDS if not only or name in only]
    while len(fleet.rounds()) < 5:
        if any(one.poll() is not None for one in fleet.processes):
            raise RuntimeError((fleet.out / "server.log").read_text()[-600:])
        await asyncio.sleep(0.1)
    print(json.dumps({"kind": "before", **await fleet.watched(asyncio.sleep(COUNTED_S))}))
    for name in chosen:
        number = connections // len(chosen)
        doing = attack(
            fleet.port,
            fleet.out / "server.pem",
            number,
            at_once,
            KINDS[name],
            plain=name in PLAIN,
        )
        seen = await fleet.watched(doing)
        await asyncio.sleep(CLOSED_S)
        seen |= {"after_mb": fleet.memory()}
        print(json.dumps({"kind": name, "connections": number, **seen}), flush=True)
    print(json.dumps({"kind": "after", **await fleet.watched(asyncio.sleep(COUNTED_S))}))
    is_lost = None in fleet.rounds()
    return not is_lost and all(one.poll() is None for one in fleet.processes)


def main(arguments=None):
    """Attack a server, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=())
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="net-hostile-") as folder:
        fleet = Fleet(Path(folder) / "out")
        try:
            went = play(fleet, options.connections, options.at_once, options.only)
            return int(not asyncio.run(went))
        finally:
            fleet.end()


if __name__ == "__main__":
    sys.exit(main())
