"""Sum real vectors over HTTP: devices poll a server for what they are to answer.

    python docs/examples/http_sum.py

The server holds a connection for ten seconds at most, so devices may be behind any proxy, and may
lose their connection at any time: `GET /message` gives a device its message until it has answered,
and `POST /message` may be repeated. The server ignores what it has received before. Device 4 stops
polling before it sends its vector; the others help to take its masks off. A stranger and a message
that is too long are turned away before anything of them is read.

Left out: TLS, without which anybody on the way can be the server or, with its token, a device; and
a limit to the number of connections, which is a proxy's business.
"""

import contextlib
import hmac
import os
import re
import socket
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
    PeerError,
    Server,
    SessionParams,
    SlotSpec,
    ThreatModel,
    max_bytes,
)
from deltafl.secagg.identity import generate

NUM_DEVICES, STOPS = 8, ClientId(4)
ROUND_S, POLL_S, SOCKET_S, MAX_OPENING = 5.0, 0.1, 10.0, 1 << 16
PATH, BINDING, DIGITS = "/message", b"poll 1", re.compile("[0-9]+")
LAYOUT = Layout((Field("hours", 2, 0, 24, resolution_bits=10),), cohort_size=NUM_DEVICES)
PARAMS = SessionParams.for_threat(
    NUM_DEVICES,
    (SlotSpec("hours", LAYOUT.length, LAYOUT.ring_bits),),
    threat=ThreatModel(colluding_rate=0.1, dropout_rate=0.2),
    graph=GraphKind.COMPLETE,
    graph_seed=os.urandom(32),
    context=os.urandom(32),
)


class Service:
    """The session, and what each device has still to answer; one lock for both."""

    def __init__(self, tokens: Mapping[ClientId, str]) -> None:
        self.tokens = tokens
        self.session = Server(PARAMS, tokens, FirstUse())
        self.changed = threading.Condition()
        self.waiting: dict[ClientId, bytes] = {}
        self.is_over = False

    def sender(self, client: str, token: str) -> ClientId | None:
        """Who a request is from; None for a stranger."""
        known = {str(number): number for number in self.tokens}.get(client)
        expected = self.tokens[known] if known is not None else os.urandom(16).hex()
        return known if hmac.compare_digest(token.encode(), expected.encode()) else None

    def take(self, sender: ClientId, data: bytes) -> None:
        """A device's answer, or an earlier one again, after which it has still to answer."""
        with self.changed:
            self.session.receive(sender, data)
            if not self.session.is_awaited(sender):
                self.waiting.pop(sender, None)
                self.changed.notify_all()

    def play(self, outgoing: Mapping[ClientId, bytes]) -> None:
        """Round after round: wait until all have answered, or the time is over."""
        with self.changed:
            while outgoing:
                self.waiting = dict(outgoing)
                self.changed.wait_for(lambda: not self.waiting, timeout=ROUND_S)
                outgoing = self.session.close_round()
            self.waiting = {}


class Handler(BaseHTTPRequestHandler):
    """Two requests: the message that waits for a device, and its answer."""

    service: Service
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        """Take a connection, for `SOCKET_S` seconds: who sends byte by byte keeps no thread."""
        super().setup()
        self.end = threading.Timer(SOCKET_S, self._hang_up)
        self.end.daemon = True
        self.end.start()

    def handle(self) -> None:
        """Answer requests, as long as there is somebody to answer."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def finish(self) -> None:
        """Let a connection go."""
        self.end.cancel()
        with contextlib.suppress(OSError):  # it was hung up
            super().finish()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """The message that the device has to answer: 204 if there is none, 410 at the end."""
        if (sender := self._sender()) is None:
            return self._reply(HTTPStatus.UNAUTHORIZED)
        if self.path != PATH:
            return self._reply(HTTPStatus.NOT_FOUND)
        data = self.service.waiting.get(sender)
        if data is not None:
            return self._reply(HTTPStatus.OK, data)
        return self._reply(HTTPStatus.GONE if self.service.is_over else HTTPStatus.NO_CONTENT)

    def do_POST(self) -> None:
        """The device's answer, of a length that is known and allowed."""
        if (sender := self._sender()) is None:
            return self._reply(HTTPStatus.UNAUTHORIZED)
        if self.path != PATH:
            return self._reply(HTTPStatus.NOT_FOUND)
        length, *more = self.headers.get_all("Content-Length", [""])
        if more or "Transfer-Encoding" in self.headers or not DIGITS.fullmatch(length):
            return self._reply(HTTPStatus.LENGTH_REQUIRED)  # a proxy may read two lengths otherwise
        if len(length) > 18 or int(length) > max_bytes(PARAMS):
            return self._reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        data = self.rfile.read(int(length))
        if len(data) < int(length):  # the connection was lost: the device will send it again
            self.close_connection = True
            return None
        self.service.take(sender, data)
        return self._reply(HTTPStatus.NO_CONTENT)

    def _sender(self) -> ClientId | None:
        client, _, token = self.headers.get("Authorization", "")[:200].partition(" ")
        return self.service.sender(client, token)

    def _reply(self, status: HTTPStatus, data: bytes = b"") -> None:
        self.send_response(status)
        if status >= HTTPStatus.BAD_REQUEST:  # the body was not read, so nothing may follow it
            self.send_header("Connection", "close")
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def request(
    port: int, credentials: str, data: bytes | None = None, limit: int = MAX_OPENING
) -> tuple[int, bytes]:
    """One request, and the answer's status and body of at most `limit` bytes."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SOCKET_S)
    try:
        method = "GET" if data is None else "POST"
        connection.request(method, PATH, data, {"Authorization": credentials})
        response = connection.getresponse()
        body = response.read(limit + 1)
        if len(body) > limit:
            raise ConnectionError(f"an answer of more than {limit} bytes")
        return response.status, body
    finally:
        connection.close()


def announce(port: int, credentials: str, length: int) -> int:
    """The status that somebody gets who says that a long message follows."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SOCKET_S)
    headers = {"Authorization": credentials, "Content-Length": str(length)}
    connection.request("POST", PATH, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def device(port: int, number: ClientId, token: str) -> None:
    """A device: polls, answers, and ends with the session."""
    own = Credentials(generate(os.urandom), FirstUse())
    client, limit = Client(number, DevicePolicy(), own), MAX_OPENING
    try:
        while (answer := request(port, f"{number} {token}", limit=limit))[0] != HTTPStatus.GONE:
            status, data = answer
            if status == HTTPStatus.UNAUTHORIZED:
                raise ConnectionError("the server does not know this token")
            reply = client.receive(data) if status == HTTPStatus.OK else None
            limit = max_bytes(client.params) if client.params else limit
            if client.state is ClientState.OPENED:
                if number == STOPS:
                    return
                words, _ = LAYOUT.encode({"hours": [1.5 * number, 0.25]})
                reply = client.contribute(words, BINDING)
            if reply is not None:
                request(port, f"{number} {token}", reply)
            time.sleep(POLL_S)
    except PeerError as refusal:
        print(f"device {number} takes no further part: {refusal}")
    except OSError as error:
        print(f"device {number} has lost the server: {error}")


def main() -> None:
    """The server, its devices in threads, and two who get nothing."""
    tokens = {ClientId(number): os.urandom(16).hex() for number in range(NUM_DEVICES)}
    service = Service(tokens)
    handler = type("Bound", (Handler,), {"service": service})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        port = listener.server_address[1]
        print("a stranger:", request(port, f"3 {os.urandom(16).hex()}", b"hello")[0])
        print("too long:", announce(port, f"3 {tokens[ClientId(3)]}", 1 << 30))
        threads = [threading.Thread(target=device, args=(port, *one)) for one in tokens.items()]
        for thread in threads:
            thread.start()
        service.play(service.session.start())  # keys, shares, receipts
        service.play(service.session.open_slot(0, BINDING))  # vectors, signatures, unmasking
        service.is_over = True
        for thread in threads:
            thread.join(ROUND_S)
        listener.shutdown()
    result = service.session.take_sum()
    hours = LAYOUT.to_float("hours", LAYOUT.decode(result.vector)["hours"])
    print(f"sum over {len(result.contributors)} devices: {hours.tolist()}")
    for client, drop in service.session.drops.items():
        print(f"lost: device {client}, {drop.fault}, stage {drop.step.stage.name}")


if __name__ == "__main__":
    main()
