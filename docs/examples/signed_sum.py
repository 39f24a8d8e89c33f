"""A server that may lie: sessions over TCP, identities and ledgers in files, and a restart.

    python docs/examples/signed_sum.py [FOLDER]

Eight devices, each a process with a folder of its own, first draw their identities. Their public
keys make a list, whose fingerprint people compare. Then the server, this process, runs a session.
Device 3 is killed when it has been asked for its vector, and started again. It has lost its keys,
but not its ledger: when the server asks it into the same session once more, it refuses, because a
second sum over other devices would give vectors away. It takes part in the next session, which has
another context. With a FOLDER, files are kept, and the contexts must be new ones each time.

Left out: TLS, to keep metadata from whoever listens. What devices say is signed here, and sealed.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from deltafl.secagg import (
    Adversary,
    Client,
    ClientId,
    ClientState,
    Credentials,
    DevicePolicy,
    GraphKind,
    PeerError,
    Server,
    SessionParams,
    SlotSpec,
    SqliteLedger,
    ThreatModel,
    TrustedKeys,
    max_bytes,
)
from deltafl.secagg.identity import SEED_SIZE, Identity, identity

NUM_DEVICES, VICTIM, ROUND_S, JOIN_S, IDLE_S = 8, 3, 30.0, 60.0, 120.0
MAX_OPENING, BINDING = 1 << 16, b"how many use it daily"
THREAT = ThreatModel(colluding_rate=0.2, dropout_rate=0.2, adversary=Adversary.ACTIVE)
POLICY = DevicePolicy(THREAT.adversary, THREAT.colluding_rate, THREAT.dropout_rate)


def own_identity(folder: Path) -> Identity:
    """The identity in a device's folder; drawn and kept at first. Only its owner can read it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "identity"
    if not path.exists():
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(os.urandom(SEED_SIZE))
            file.flush()
            os.fsync(file.fileno())
    with path.open("rb") as file:
        return identity(file.read(SEED_SIZE + 1))  # refuses what is not 32 bytes


def trusted(folder: Path) -> TrustedKeys:
    """The list of all identities, of which each device has a copy that is not from the server."""
    return TrustedKeys.parse((folder / "devices.txt").read_text(encoding="ascii"))


async def send(writer: StreamWriter, data: bytes) -> None:
    """Write a frame: four bytes of length, then the message; no message ends a session."""
    writer.write(len(data).to_bytes(4, "big") + data)
    await writer.drain()


async def receive(reader: StreamReader, limit: int, seconds: float) -> bytes:
    """Read a frame of at most `limit` bytes, in time."""
    async with asyncio.timeout(seconds):
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > limit:
            raise ConnectionError(f"a frame of {size} bytes, and {limit} are allowed")
        return await reader.readexactly(size)


async def device(folder: Path, number: int, port: int, *, dies: bool) -> None:
    """A device: one session after another, until the server hangs up."""
    home = folder / f"device-{number}"
    credentials = Credentials(own_identity(home), trusted(folder))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await send(writer, number.to_bytes(4, "big"))
    with SqliteLedger(home / "ledger") as ledger:
        while True:
            client = Client(ClientId(number), POLICY, credentials, ledger=ledger)
            limit = MAX_OPENING
            try:
                while data := await receive(reader, limit, IDLE_S):
                    reply = client.receive(data)
                    limit = max_bytes(client.params) if client.params else limit
                    if client.state is ClientState.OPENED:
                        vote = np.array([1, number], dtype=np.uint32)
                        reply = client.contribute(vote, BINDING)
                        if dies:
                            os.kill(os.getpid(), signal.SIGKILL)
                    if reply is not None:
                        await send(writer, reply)
            except PeerError as refusal:
                await send(writer, b"")
                print(f"device {number}: {refusal}", flush=True)
            except (ConnectionError, asyncio.IncompleteReadError):
                return


class Post:
    """The devices' connections. An id is only a claim here: whose it is, the signatures say."""

    def __init__(self) -> None:
        self.links: dict[ClientId, tuple[StreamReader, StreamWriter]] = {}
        self.arrived = asyncio.Condition()

    async def welcome(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Take a connection; the last one of a device counts."""
        number = NUM_DEVICES
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            number = int.from_bytes(await receive(reader, 4, ROUND_S), "big")
        if number >= NUM_DEVICES:
            writer.close()
            return
        async with self.arrived:
            self.links[ClientId(number)] = reader, writer
            self.arrived.notify_all()

    async def wait_for_all(self) -> None:
        """Wait until every device is connected."""
        async with asyncio.timeout(JOIN_S), self.arrived:
            await self.arrived.wait_for(lambda: len(self.links) == NUM_DEVICES)

    async def ask(self, client: ClientId, data: bytes, limit: int) -> bytes:
        """A device's answer; empty if there is none, and it is not asked again."""
        if client not in self.links:
            return b""
        reader, writer = self.links[client]
        try:
            await send(writer, data)
            return await receive(reader, limit, ROUND_S)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            del self.links[client]
            writer.close()
            return b""

    async def play(self, session: Server, outgoing: Mapping[ClientId, bytes]) -> None:
        """Round after round, until nothing is to be sent."""
        limit = max_bytes(session.params)
        while outgoing:
            asked = [self.ask(client, data, limit) for client, data in outgoing.items()]
            for client, reply in zip(outgoing, await asyncio.gather(*asked), strict=True):
                if reply:
                    session.receive(client, reply)
            outgoing = session.close_round()

    async def sum_up(self, session: Server) -> None:
        """A whole session."""
        await self.play(session, session.start())  # keys, shares, receipts
        await self.play(session, session.open_slot(0, BINDING))  # vectors, signatures, unmasking
        result = session.take_sum()
        print(f"sum over {len(result.contributors)} devices: {result.vector.tolist()}", flush=True)
        for _, writer in self.links.values():
            await send(writer, b"")


def new_session(directory: TrustedKeys) -> Server:
    """A session of a context of its own, over a graph seed that nobody could know before."""
    slots = (SlotSpec("votes", length=2, ring_bits=32),)
    params = SessionParams.for_threat(
        NUM_DEVICES,
        slots,
        threat=THREAT,
        graph=GraphKind.COMPLETE,
        graph_seed=os.urandom(32),
        context=os.urandom(32),
    )
    return Server(params, directory.keys, directory)


def enrol(folder: Path) -> TrustedKeys:
    """Done once and without the server: devices draw identities, and people list the keys."""
    owners = {ClientId(n): own_identity(folder / f"device-{n}") for n in range(NUM_DEVICES)}
    listed = TrustedKeys({number: owner.public for number, owner in owners.items()})
    (folder / "devices.txt").write_text(listed.dump(), encoding="ascii")
    return listed


async def server(folder: Path, listed: TrustedKeys) -> None:
    """Two sessions, with a restart in between."""
    post, started, victim = Post(), [], ClientId(VICTIM)

    def start(number: int, *, dies: bool) -> None:
        arguments = [sys.executable, __file__, str(folder), str(port), str(number), str(dies)]
        started.append(subprocess.Popen(arguments))  # noqa: S603

    try:
        async with await asyncio.start_server(post.welcome, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            for number in listed.keys:
                start(number, dies=number == VICTIM)
            await post.wait_for_all()
            first = new_session(listed)
            await post.sum_up(first)
            print("lost:", *first.drops, flush=True)
            start(VICTIM, dies=False)
            await post.wait_for_all()
            await post.ask(victim, first.start()[victim], MAX_OPENING)  # which it refuses
            await post.sum_up(new_session(listed))
            for _, writer in post.links.values():
                writer.close()
                await writer.wait_closed()
        print("exit codes:", [process.wait(ROUND_S) for process in started])
    finally:
        for process in started:
            process.kill()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        place, port, number, dies = sys.argv[1:]
        asyncio.run(device(Path(place), int(number), int(port), dies=dies == "True"))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(*sys.argv[1:] or [temporary])
            folder.mkdir(parents=True, exist_ok=True)
            trusted_keys = enrol(folder)
            print("fingerprint of the keys:", trusted_keys.fingerprint()[:19], "…", flush=True)
            asyncio.run(server(folder, trusted_keys))
