"""Capture what passes on the wire without TLS, and turn it into a transcript.

A `Tap` stands between devices and server, passes all bytes on, and keeps them, as a capture by
tcpdump would. `captured` takes the WebSocket's own framing off, which nothing of this project does;
what is left are the frames of docs/federation.md.
"""

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path

from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.streams import StreamReader

from deltafl.secagg import ClientId
from deltafl.sim.net.frames import Carry, Hello, Task, decode
from deltafl.sim.record.record import write_record
from deltafl.sim.record.transcript import TranscriptWriter

CHUNK = 1 << 16


@dataclass
class Way:
    """One direction of a connection.

    Attributes:
        connection: its number.
        down: whether from the server to the device.
        chunks: what passed, and when, in the order of all chunks of the tap.
    """

    connection: int
    down: bool
    chunks: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def data(self):
        return b"".join(chunk for _, chunk in self.chunks)


class Tap:
    """Listens at a port of its own and passes everything on to the server's.

    Args:
        port: the server's.
    """

    def __init__(self, port):
        self.ways = []
        self._server = port
        self._lock = threading.Lock()
        self._passed = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        self._ends, self._threads = [], []
        self._begin(self._accept)

    def _begin(self, what, *args):
        thread = threading.Thread(target=what, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                device, _ = self._listener.accept()
            except OSError:
                return  # closed
            server = socket.create_connection(("127.0.0.1", self._server))
            self._ends += [device, server]
            number = len(self.ways) // 2
            up, down = Way(number, down=False), Way(number, down=True)
            self.ways += [up, down]
            for source, target, way in ((device, server, up), (server, device, down)):
                self._begin(self._pass, source, target, way)

    def _pass(self, source, target, way):
        try:
            while chunk := source.recv(CHUNK):
                with self._lock:  # before it goes on: an answer cannot be seen before its question
                    self._passed += 1
                    way.chunks.append((self._passed, chunk))
                target.sendall(chunk)
        except OSError:
            pass
        for end in (source, target):
            shut(end)

    def close(self):
        shut(self._listener)
        self._listener.close()
        for end in self._ends:
            shut(end)
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()


def shut(end):
    """Let the other side know that nothing more comes."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@dataclass
class Captured:
    """One frame from the wire.

    Attributes:
        at: when its last byte passed.
        connection: of which connection.
        down: whether from the server to the device.
        data: its bytes.
    """

    at: int
    connection: int
    down: bool
    data: bytes


def captured(way):
    """The binary messages of a direction, each with the time of its last byte."""
    reader, found, parts = StreamReader(), [], []

    def parsed():
        while (yield from reader.read_line(1 << 16)).strip():
            pass  # the handshake's request or response
        while True:
            frame = yield from WebSocketFrame.parse(reader.read_exact, mask=not way.down)
            if frame.opcode in (Opcode.BINARY, Opcode.CONT):
                parts.append(bytes(frame.data))
                if frame.fin:
                    found.append(b"".join(parts))
                    parts.clear()

    times, parser = [], parsed()
    next(parser)
    for at, chunk in way.chunks:
        reader.feed_data(chunk)
        next(parser)
        times += [at] * (len(found) - len(times))
    return [
        Captured(at, way.connection, way.down, data) for at, data in zip(times, found, strict=True)
    ]


def write_transcript(path, frames, *, measures=False):
    """A transcript of the envelopes among captured frames; the number of rounds.

    Of each trip, what was sent comes first, as a server records it. Rounds in which devices train
    are written, or else those in which they measure.
    """
    clients, rounds = {}, {}
    messages = {}
    for one in sorted(frames, key=lambda frame: frame.at):
        match decode(one.data):
            case Hello(client, _, _):
                clients[one.connection] = client
            case Task() as task if task.measures == measures:
                messages.setdefault(task.task, [])
                rounds[task.task] = task.round_index + 1
            case Carry(task, trip, data) if task in messages:
                place = (trip, not one.down, one.at)
                messages[task].append((place, clients[one.connection], data))
    with write_record(Path(path)) as record:
        _write(TranscriptWriter(record, "full"), messages, rounds)
        record.keep()
    return len(rounds)


def _write(writer, messages, rounds):
    for task, of_round in messages.items():
        peers = sorted({client for _, client, _ in of_round})
        writer.begin_round(rounds[task], peers)
        for (_, up, _), client, data in sorted(of_round, key=lambda message: message[0]):
            writer.message(sent=not up, peer=ClientId(client), data=data)
        writer.end_round(None)
    writer.finish(max(rounds.values(), default=0))
