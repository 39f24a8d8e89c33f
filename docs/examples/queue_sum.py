"""Sum the vectors of eight threads, which talk to a ninth through queues.

    python docs/examples/queue_sum.py

This is the smallest service: an inbox for the server, an inbox for each device, and a deadline for
each step. Device 5 leaves before it sends its vector. Queues here stand for whatever carries
messages in your service, such as a message broker; the order and number of deliveries do not
matter. `Server` and `Client` are not to be called by two threads at once: here, each has its own.

Left out, because threads of one process trust each other: how to know that a message is from the
device that it says it is from, and that nobody else has read it.
"""

import os
import queue
import threading
import time
from collections.abc import Mapping

import numpy as np

from deltafl.secagg import (
    Client,
    ClientId,
    ClientState,
    Credentials,
    DevicePolicy,
    FirstUse,
    GraphKind,
    PeerError,
    Server,
    SessionParams,
    SlotSpec,
    ThreatModel,
)
from deltafl.secagg.identity import generate

DEVICES, LEAVES, ROUND_S = [ClientId(100 + n) for n in range(8)], ClientId(105), 30.0
BINDING = b"poll 1"
PARAMS = SessionParams.for_threat(
    len(DEVICES),
    (SlotSpec("votes", length=3, ring_bits=32),),
    threat=ThreatModel(colluding_rate=0.1, dropout_rate=0.2),
    graph=GraphKind.COMPLETE,
    graph_seed=os.urandom(32),
    context=os.urandom(32),
)
GOODBYE = b""  # no message is empty

Inbox = queue.Queue[bytes]
to_server = queue.Queue[tuple[ClientId, bytes]](maxsize=4 * len(DEVICES))
to_device: dict[ClientId, Inbox] = {client: Inbox(maxsize=4) for client in DEVICES}


def device(number: ClientId) -> None:
    """A device: answers what comes until there is a goodbye, or nothing for too long."""
    client = Client(number, DevicePolicy(), Credentials(generate(os.urandom), FirstUse()))
    try:
        while (data := to_device[number].get(timeout=4 * ROUND_S)) != GOODBYE:
            reply = client.receive(data)
            if client.state is ClientState.OPENED:
                if number == LEAVES:
                    reply = GOODBYE
                else:
                    vote = np.array([1, number % 2, number], dtype=np.uint32)
                    reply = client.contribute(vote, BINDING)
            if reply is not None:
                to_server.put((number, reply), timeout=ROUND_S)
            if reply == GOODBYE:
                return
    except PeerError as refusal:
        print(f"device {number} takes no further part: {refusal}")
    except (queue.Empty, queue.Full):
        print(f"device {number} hears nothing from the server any more")


def play(session: Server, outgoing: Mapping[ClientId, bytes]) -> None:
    """Send messages, collect answers until all are there or the time is over, and so on."""
    while outgoing:
        for client, data in outgoing.items():
            try:
                to_device[client].put_nowait(data)
            except queue.Full:  # it has not taken the last four
                print(f"device {client} does not read")
        awaited, deadline = set(outgoing), time.monotonic() + ROUND_S
        while awaited and (left := deadline - time.monotonic()) > 0:
            try:
                sender, data = to_server.get(timeout=left)
            except queue.Empty:
                break
            if data != GOODBYE:
                session.receive(sender, data)
            if data == GOODBYE or not session.is_awaited(sender):  # and not if it was a repetition
                awaited.discard(sender)
        outgoing = session.close_round()  # who has not answered is dropped


def main() -> None:
    """The server, in this thread."""
    threads = [threading.Thread(target=device, args=(client,), daemon=True) for client in DEVICES]
    for thread in threads:
        thread.start()
    session = Server(PARAMS, DEVICES, FirstUse())
    play(session, session.start())  # keys, shares, receipts
    play(session, session.open_slot(0, BINDING))  # vectors, signatures, unmasking
    result = session.take_sum()
    print(f"sum over {len(result.contributors)} devices: {result.vector.tolist()}")
    for client, drop in session.drops.items():
        print(f"lost: device {client}, {drop.fault}, stage {drop.step.stage.name}")
    for inbox in to_device.values():
        inbox.put_nowait(GOODBYE)
    for thread in threads:
        thread.join(ROUND_S)


if __name__ == "__main__":
    main()
