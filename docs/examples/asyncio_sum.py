"""A weighted mean of real vectors: a server and ten devices, as tasks of asyncio over TCP.

    python docs/examples/asyncio_sum.py

Every step has a deadline. One device hangs up in the middle, another is too slow for its vector;
the mean is over those who stayed. Nothing is read before its size is known to be allowed, and
nobody is waited for without end. `secagg` makes and reads messages; the rest is here.

Left out: TLS, without which anybody on the way can be the server or, with its token, a device.
"""

import asyncio
import contextlib
import hmac
import os
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping
from hashlib import sha256

import numpy as np

from deltafl.secagg import (
    Client,
    ClientId,
    ClientState,
    Credentials,
    DevicePolicy,
    Field,
    FirstUse,
    GraphKind,
    Layout,
    Multiple,
    Server,
    SessionParams,
    SlotSpec,
    ThreatModel,
    max_bytes,
)
from deltafl.secagg.identity import generate

NUM_DEVICES, LENGTH, MAX_WEIGHT, TOKEN_BYTES = 10, 1000, 64, 32
HANGS_UP, IS_SLOW = 2, 5
JOIN_S, ROUND_S, SESSION_S = 30.0, 5.0, 120.0  # with phones, a deadline would be minutes
MAX_OPENING = 1 << 16  # bytes that a device takes before it knows the session

# A device's numbers lie in [-1, 1], its weight in [0, MAX_WEIGHT]: so no sum over the cohort can
# overflow the ring, and the server learns neither the numbers nor the weight.
LAYOUT = Layout(
    (
        Field("update", LENGTH, -MAX_WEIGHT, MAX_WEIGHT, resolution_bits=20),
        Field("weight", 1, 0, MAX_WEIGHT, resolution_bits=0),
    ),
    cohort_size=NUM_DEVICES,
)
WHAT_FOR = sha256(b"poll 17" + LAYOUT.canonical()).digest()


async def send(writer: StreamWriter, data: bytes) -> None:
    """Write a frame: four bytes of length, then the message."""
    writer.write(len(data).to_bytes(4, "big") + data)
    await writer.drain()


async def receive(reader: StreamReader, limit: int) -> bytes:
    """Read a frame of at most `limit` bytes."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > limit:
        raise ConnectionError(f"a frame of {size} bytes, and {limit} are allowed")
    return await reader.readexactly(size)


async def device(port: int, number: int, token: bytes) -> None:
    """A device: says who it is, then answers until the server hangs up."""
    update = np.random.default_rng(number).uniform(-1, 1, LENGTH)
    credentials = Credentials(generate(os.urandom), FirstUse())
    client, limit = Client(ClientId(number), DevicePolicy(), credentials), MAX_OPENING
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # server hung up
        await send(writer, number.to_bytes(4, "big") + token)
        while True:
            data = await asyncio.wait_for(receive(reader, limit), SESSION_S)
            reply = client.receive(data)  # raises PeerError if the server asks for too much
            limit = max_bytes(client.params) if client.params else limit
            if client.state is ClientState.LINKED and number == HANGS_UP:
                break
            if client.state is ClientState.OPENED:
                await asyncio.sleep(ROUND_S + 1 if number == IS_SLOW else 0)
                weight = number + 1
                words, _ = LAYOUT.encode({"update": Multiple(update, weight), "weight": weight})
                reply = client.contribute(words, WHAT_FOR)
            if reply is not None:
                await send(writer, reply)
    writer.close()


async def server(tokens: Mapping[int, bytes]) -> None:
    """The server, and the devices as tasks beside it."""
    params = SessionParams.for_threat(
        NUM_DEVICES,
        (SlotSpec("update", LAYOUT.length, LAYOUT.ring_bits),),
        threat=ThreatModel(colluding_rate=0.1, dropout_rate=0.2),
        graph=GraphKind.COMPLETE,
        graph_seed=os.urandom(32),
        context=WHAT_FOR,
    )
    session = Server(params, map(ClientId, tokens), FirstUse())
    links: dict[ClientId, tuple[StreamReader, StreamWriter]] = {}
    all_here = asyncio.Event()

    async def welcome(reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            hello = await asyncio.wait_for(receive(reader, 4 + TOKEN_BYTES), ROUND_S)
            client = ClientId(int.from_bytes(hello[:4], "big"))
            if hmac.compare_digest(hello[4:], tokens.get(client, os.urandom(TOKEN_BYTES))):
                links[client] = reader, writer
                if len(links) == NUM_DEVICES:
                    all_here.set()
                return
        writer.close()

    async def ask(client: ClientId, data: bytes) -> None:
        reader, writer = links[client]
        try:
            async with asyncio.timeout(ROUND_S):
                await send(writer, data)
                session.receive(client, await receive(reader, max_bytes(params)))
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            writer.close()  # it is left out: the session drops who has not answered

    async def play(outgoing: Mapping[ClientId, bytes]) -> None:
        while outgoing:
            asked = [ask(client, data) for client, data in outgoing.items() if client in links]
            await asyncio.gather(*asked)
            outgoing = session.close_round()

    async with await asyncio.start_server(welcome, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        devices = [asyncio.create_task(device(port, n, token)) for n, token in tokens.items()]
        with contextlib.suppress(TimeoutError):  # who has not come is left out
            await asyncio.wait_for(all_here.wait(), JOIN_S)
        await play(session.start())  # keys, shares, receipts
        await play(session.open_slot(0, WHAT_FOR))  # vectors, signatures, unmasking
        for _, writer in links.values():
            writer.close()
        await asyncio.gather(*devices)
    result = session.take_sum()
    sums = LAYOUT.decode(result.vector)
    mean = LAYOUT.to_float("update", sums["update"]) / int(sums["weight"][0])
    print(f"mean over {len(result.contributors)} devices of weight {sums['weight'][0]}")
    print("its first numbers:", *np.round(mean[:3], 4))
    for client, drop in sorted(session.drops.items()):
        print(f"lost: device {client}, {drop.fault}, stage {drop.step.stage.name}")


if __name__ == "__main__":
    asyncio.run(server({number: os.urandom(TOKEN_BYTES) for number in range(NUM_DEVICES)}))
