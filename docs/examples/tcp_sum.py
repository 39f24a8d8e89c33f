"""Sum the vectors of eight processes over TCP, though one of them is killed in the middle.

    python docs/examples/tcp_sum.py

This process is the server; it starts one more for each device. `secagg` makes and reads messages;
everything else is here: sockets, frames (a length of four bytes, then a message) and the time
after which a round is closed. Device 3 dies by SIGKILL when the sum has just been opened; the
others help to take its masks off.

Left out, because it is another matter: channels must be authenticated and encrypted (TLS),
`graph_seed` fresh, `context` and the binding digests of what the sum is for.
"""

import asyncio
import os
import signal
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping

import numpy as np

from deltafl.secagg import (
    Client,
    ClientId,
    ClientState,
    Credentials,
    DevicePolicy,
    FirstUse,
    Server,
    SessionParams,
    SlotSpec,
)
from deltafl.secagg.identity import generate

NUM_DEVICES, VICTIM, ROUND_SECONDS, LONGEST_FRAME, BINDING = 8, 3, 30, 1 << 16, b"poll 1"
SLOTS = (SlotSpec("votes", length=3, ring_bits=32),)
PARAMS = SessionParams(SLOTS, NUM_DEVICES, 7, 5, 5, graph_seed=bytes(32), context=bytes(32))


def send(writer: StreamWriter, data: bytes) -> None:
    """Write one frame."""
    writer.write(len(data).to_bytes(4, "big") + data)


async def receive(reader: StreamReader) -> bytes:
    """Read one frame."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > LONGEST_FRAME:
        raise ConnectionError(f"a frame of {size} bytes")
    return await reader.readexactly(size)


async def device(port: int, number: int) -> None:
    """A device: says who it is, then answers until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    send(writer, bytes([number]))
    credentials = Credentials(generate(os.urandom), FirstUse())
    client = Client(ClientId(number), DevicePolicy(), credentials)
    while data := await receive(reader):
        reply = client.receive(data)
        if client.state is ClientState.OPENED:
            if number == VICTIM:
                os.kill(os.getpid(), signal.SIGKILL)
            reply = client.contribute(np.array([1, number, number**2], np.uint32), BINDING)
        send(writer, reply or b"")


async def server() -> None:
    """The server, from the first connection to the sum."""
    links = asyncio.Queue[tuple[StreamReader, StreamWriter]]()
    listener = await asyncio.start_server(lambda *link: links.put_nowait(link), "127.0.0.1", 0)
    command = [sys.executable, __file__, str(listener.sockets[0].getsockname()[1])]
    devices = [subprocess.Popen([*command, str(n)]) for n in range(NUM_DEVICES)]  # noqa: S603
    accepted = [await asyncio.wait_for(links.get(), ROUND_SECONDS) for _ in devices]
    hellos = [await asyncio.wait_for(receive(link[0]), ROUND_SECONDS) for link in accepted]
    link_of = {ClientId(hello[0]): link for hello, link in zip(hellos, accepted, strict=True)}
    session = Server(PARAMS, link_of, FirstUse())

    async def ask(number: ClientId, data: bytes) -> None:
        reader, writer = link_of[number]
        send(writer, data)
        session.receive(number, await receive(reader))

    async def play_round(outgoing: Mapping[ClientId, bytes]) -> Mapping[ClientId, bytes]:
        asking = [asyncio.wait_for(ask(*one), ROUND_SECONDS) for one in outgoing.items()]
        await asyncio.gather(*asking, return_exceptions=True)  # who is gone or slow is left out
        return session.close_round()

    outgoing: Mapping[ClientId, bytes] = session.start()
    for _ in ("advertise keys", "share secrets", "acknowledge"):
        outgoing = await play_round(outgoing)
    outgoing = session.open_slot(0, BINDING)
    for _ in ("send vectors", "sign who is left", "unmask"):
        outgoing = await play_round(outgoing)
    result = session.take_sum()
    print(f"sum over {len(result.contributors)} devices: {result.vector.tolist()}")
    for number, drop in session.drops.items():
        print(f"lost: device {number}, {drop.fault}, stage {drop.step.stage.name}")
    for _, writer in link_of.values():
        send(writer, b"")
        writer.close()
    listener.close()
    closing = [writer.wait_closed() for _, writer in link_of.values()]
    await asyncio.gather(*closing, return_exceptions=True)  # one link is broken
    print("exit codes:", [process.wait() for process in devices])


if __name__ == "__main__":
    asyncio.run(device(*map(int, sys.argv[1:])) if sys.argv[1:] else server())
