"""The server's connections: an ASGI application, and the thread in which it is served.

Each device has one WebSocket. It is admitted by its identity (`identities`) or closed. From then
on, whatever it sends goes to the exchange (`post`), and whatever is due to it comes from there. A
device that breaks the rules, reads nothing, or goes silent is closed; nobody else notices. Frames
are bounded before they are read, and those who have not been admitted are bounded in number. What a
device does not read is kept for one connection of it: one that is replaced is cut off.
"""

import asyncio
import contextlib
import logging
import math
import resource
import socket
import ssl
from asyncio import BaseTransport
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import Any, Final

import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from deltafl.secagg import DecodeError, Directory
from deltafl.sim.errors import UserError
from deltafl.sim.net.dialling import PATH, SUBPROTOCOL
from deltafl.sim.net.frames import Challenge, Hello, decode, encode
from deltafl.sim.net.identities import certificate_hash, is_admitted
from deltafl.sim.net.post import Line, Post
from deltafl.sim.settings.given import joined

ADMISSION_S: Final = 20.0
"""Seconds that a device has to say who it is."""

SENDING_S: Final = 120.0
"""Seconds that a device has to read one frame."""

MOST_UNKNOWN: Final = 512
"""Most WebSockets that have not been admitted yet."""

MOST_OPENING: Final = 1024
"""Most connections that are no WebSockets, or not yet; and most TLS handshakes at once."""

HANDSHAKE_S: Final = 15.0
"""Seconds for a TLS handshake."""

MAX_HELLO: Final = 1024
"""Bytes of the longest frame of somebody who has not been admitted."""

_REFUSED, _BROKE_RULES, _BUSY, _REPLACED = 4401, 1008, 1013, 4409
_PING_S: Final = 20.0
_CLOSING_S: Final = 5.0
_MOST_UNREAD: Final = 1 << 16  # bytes
_MOST_PINGS: Final = 16.0  # at once, and then one a second
_OTHER_FILES: Final = 128  # that this process may need beside its connections
_STOPPING_S: Final = 5


@dataclass(frozen=True, slots=True)
class Tls:
    """A server's certificate.

    Attributes:
        certificate: file of the certificate and those that vouch for it (PEM), its own first.
        key: file of its private key (PEM).
    """

    certificate: Path
    key: Path

    def hash(self) -> bytes:
        """What devices bind their signatures to.

        Raises:
            UserError: the file has no certificate.
        """
        try:
            first, *_ = x509.load_pem_x509_certificates(self.certificate.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{self.certificate} has no certificate (PEM): {error}") from None
        return certificate_hash(first.public_bytes(serialization.Encoding.DER))

    def context(self) -> ssl.SSLContext:
        """What connections are encrypted by.

        Raises:
            UserError: certificate and key cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(
                f"{self.certificate} and {self.key} are not a certificate and its key: {error}"
            ) from None
        return context


def application(post: Post, devices: Directory, server: bytes) -> Starlette:
    """The ASGI application that devices connect to.

    Args:
        post: the exchange.
        devices: whose keys admit them, such as the federation's list.
        server: the `certificate_hash` of the server; empty without TLS.
    """
    unknown = 0

    async def connected(websocket: WebSocket) -> None:
        nonlocal unknown
        await websocket.accept(subprotocol=SUBPROTOCOL)
        if unknown >= MOST_UNKNOWN:
            await _close(websocket, _BUSY, "too many connections at once")
            return
        unknown += 1
        try:
            hello = await _admitted(websocket, devices, server)
        finally:
            unknown -= 1
        if hello is None:
            refused = "this device is not on the list, or not who it says"
            await _close(websocket, _REFUSED, refused)
            return
        websocket.state.admitted()
        loop, due = asyncio.get_running_loop(), asyncio.Event()

        def changed() -> None:
            due.set()
            if not line.is_open and line.sent > _MOST_UNREAD:
                websocket.state.cut_off()  # what was sent may take memory until it is read

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the server is stopping
                loop.call_soon_threadsafe(changed)

        line = post.connect(hello.client, wake)
        try:
            await _serve(websocket, post, line, due)
        finally:
            post.disconnect(line)

    return Starlette(routes=[WebSocketRoute(PATH, connected)])


async def _close(websocket: WebSocket, code: int, because: str) -> None:
    """Close the WebSocket of a stranger, who may have gone, or been closed for a long frame."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await websocket.close(code, because)


async def _admitted(websocket: WebSocket, devices: Directory, server: bytes) -> Hello | None:
    challenge = Challenge.drawn()
    try:
        async with asyncio.timeout(ADMISSION_S):
            await websocket.send_bytes(encode(challenge))
            hello = decode(await _frame(websocket))
    except (TimeoutError, DecodeError, WebSocketDisconnect):
        return None
    is_one = isinstance(hello, Hello) and is_admitted(challenge, hello, server, devices)
    return hello if isinstance(hello, Hello) and is_one else None


async def _serve(websocket: WebSocket, post: Post, line: Line, due: asyncio.Event) -> None:
    """Carry frames both ways until either side ends the connection."""
    listening = asyncio.create_task(_listen(websocket, post, line))
    talking = asyncio.create_task(_talk(websocket, post, line, due))
    done, others = await asyncio.wait((listening, talking), return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for task in done:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            ending = task.result()
            async with asyncio.timeout(_CLOSING_S):
                await websocket.close(*ending)


async def _listen(websocket: WebSocket, post: Post, line: Line) -> tuple[int, str]:
    while True:
        try:
            post.received(line, await _frame(websocket))
        except DecodeError as error:
            return _BROKE_RULES, str(error)[:100]


async def _talk(
    websocket: WebSocket, post: Post, line: Line, due: asyncio.Event
) -> tuple[int, str]:
    while line.is_open:
        due.clear()
        while (frame := post.take(line)) is not None:
            try:
                async with asyncio.timeout(SENDING_S):
                    await websocket.send_bytes(frame)
            except TimeoutError:
                return _BROKE_RULES, "the device reads nothing"
        if line.is_open:
            await due.wait()
    return _REPLACED, "the device has connected again, or is admitted no more"


async def _frame(websocket: WebSocket) -> bytes:
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    frame = message.get("bytes")
    if not isinstance(frame, bytes):
        raise DecodeError("a frame of text")
    return frame


@contextlib.contextmanager
def served(
    app: ASGIApp, host: str, port: int, *, tls: Tls | None = None, max_frame: int = 1 << 20
) -> Iterator[tuple[str, int]]:
    """Serve an application in a thread of its own; the host and port where it listens.

    Args:
        app: what to serve.
        host: the address to listen at.
        port: the port; 0 for any that is free.
        tls: None to serve without.
        max_frame: bytes of the longest WebSocket message that is read.

    Raises:
        UserError: nothing can listen there, or the certificate cannot be used.
    """
    config = uvicorn.Config(
        app,
        http=_opening(),
        ws=_Protocol,
        ws_max_size=max_frame,
        ws_max_queue=2,
        ws_per_message_deflate=False,  # what passes are random numbers
        ws_ping_interval=_PING_S,
        ws_ping_timeout=SENDING_S,  # an answer comes after all that is still to be read
        log_config=None,
        log_level=logging.ERROR,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_STOPPING_S,
        ssl_context_factory=None if tls is None else _always(tls.context()),
    )
    try:
        listener = _listener(host, port)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"cannot listen at {host}, port {port}: {error}; choose another --listen"
        ) from None
    allow_connections()
    server = uvicorn.Server(config)
    listener.known = lambda: len(server.server_state.connections)

    def run() -> None:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(server.serve(sockets=[listener]))

    thread = Thread(target=run, name="connections", daemon=True)
    with contextlib.closing(listener):
        thread.start()
        try:
            address = listener.getsockname()
            yield str(address[0]), int(address[1])
        finally:
            server.should_exit = True
            thread.join(2 * _STOPPING_S)


@contextlib.contextmanager
def serving(
    post: Post,
    devices: Directory,
    at: tuple[str, int],
    *,
    tls: Tls | None,
    max_frame: int,
    name: str = "",
) -> Iterator[str]:
    """Serve the exchange to devices; the address at which they connect.

    Args:
        post: the exchange.
        devices: as for `application`.
        at: host and port, as for `served`.
        tls: likewise.
        max_frame: likewise.
        name: what devices call the host, if they call it something else.

    Raises:
        UserError: as `served`.
    """
    app = application(post, devices, b"" if tls is None else tls.hash())
    with served(app, *at, tls=tls, max_frame=max_frame) as (host, port):
        yield f"{'ws' if tls is None else 'wss'}://{joined(name or host, port)}"


class _Protocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, but that it lets go of those who do not read, or ask too much.

    By itself it waits without end for what was sent to be read, also while it closes. (Over TLS, it
    sees that nothing is read only when a second frame is to be sent.) It answers pings as fast as
    they come, and takes frames of the same length from strangers as from devices. And it raises if
    the server stops while a connection is being closed.
    """

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.app_state = {
            **self.app_state,
            "cut_off": self.transport.abort,
            "admitted": self._admitted,
        }
        self.conn.max_message_size = MAX_HELLO
        self._pings_left, self._pinged = _MOST_PINGS, self.loop.time()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self.loop.call_later(_CLOSING_S, self.transport.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()

    def handle_ping(self) -> None:
        now = self.loop.time()
        self._pings_left = min(_MOST_PINGS, self._pings_left + (now - self._pinged)) - 1
        self._pinged = now
        if self._pings_left < 0:
            self.transport.abort()
        elif not self.transport.is_closing():
            super().handle_ping()

    def shutdown(self) -> None:
        with contextlib.suppress(InvalidState):
            super().shutdown()

    def _admitted(self) -> None:
        self.conn.max_message_size = self.config.ws_max_size


def _opening() -> type[H11Protocol]:
    """Uvicorn's protocol for connections as they open, with a bound on their number and time."""
    opening: set[H11Protocol] = set()

    class Opening(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(opening) >= MOST_OPENING:
                transport.abort()
                return
            opening.add(self)
            self.loop.call_later(ADMISSION_S, self._end)

        def connection_lost(self, exc: Exception | None) -> None:
            opening.discard(self)
            super().connection_lost(exc)

        def handle_websocket_upgrade(self, event: Any) -> None:  # noqa: ANN401 (of h11)
            opening.discard(self)
            super().handle_websocket_upgrade(event)

        def _end(self) -> None:
            if self in opening:
                self.transport.close()  # what is being sent is sent first
                self.loop.call_later(_CLOSING_S, self.transport.abort)

    return Opening


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers do not wait long for a TLS handshake."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:  # noqa: ANN401
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HANDSHAKE_S
        server: asyncio.Server = await super().create_server(*args, **options)
        return server


class _Listener(socket.socket):
    """Accepts no more connections than there is room for.

    Those that have not ended their TLS handshake are known to nobody else.

    Attributes:
        known: how many connections have ended it; set once there is a server.
    """

    known: Callable[[], int]
    _accepted: list[socket.socket]

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and close it if there are too many: asyncio goes on."""
        connection, address = super().accept()
        self._accepted.append(connection)
        most = min(_room(), self.known() + MOST_OPENING)
        if len(self._accepted) > most:
            self._accepted = [one for one in self._accepted if one.fileno() >= 0]
            if len(self._accepted) > most:
                connection.close()
                raise ConnectionAbortedError("there are too many connections")
        return connection, address


def _room() -> float:
    """How many connections this process has files for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if files == resource.RLIM_INFINITY else files - _OTHER_FILES


def allow_connections() -> None:
    """Let this process have as many connections as the system allows; a shell may allow fewer."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses "as many as you like"
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listener(host: str, port: int) -> _Listener:
    listener = _Listener(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener._accepted = []
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except BaseException:
        listener.close()
        raise
    return listener


def _always(
    context: ssl.SSLContext,
) -> Callable[[uvicorn.Config, Callable[[], ssl.SSLContext]], ssl.SSLContext]:
    return lambda _config, _default: context


_DAYS: Final = 30
_TOLERANCE: Final = timedelta(minutes=5)  # by which clocks may differ


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """A certificate that vouches for itself alone; both PEM.

    Attributes:
        certificate: what the server shows, and what devices trust.
        key: its private key.
    """

    certificate: bytes
    key: bytes = field(repr=False)


def make_certificate(hosts: Sequence[str], now: datetime | None = None) -> OwnCertificate:
    """Make a certificate for one server.

    Args:
        hosts: names and addresses of the server.
        now: from when it holds, for 30 days; by default from now.
    """
    start = (now or datetime.now(UTC)) - _TOLERANCE
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    serial, end = x509.random_serial_number(), start + timedelta(days=_DAYS)
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    by_itself = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_id)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), serial, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, hosts))), critical=False)
        .add_extension(own_id, critical=False)
        .add_extension(by_itself, critical=False)  # tells it from another of the same hosts
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return OwnCertificate(
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
