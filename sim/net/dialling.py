"""A device's connection: dials the server, again and again until the run is over.

The device dials, because it is often behind a router that lets nobody in. A connection that breaks
is tried again after a pause, which doubles each time, up to a minute, and differs from device to
device so that not all come at once. A server that answers but does not admit the device is tried
again too, because its list may be about to change; the reason is shown.
"""

import asyncio
import math
import secrets
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Final
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI, NegotiationError
from websockets.typing import Subprotocol

from deltafl.secagg import DecodeError
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.net.device import DeviceSide
from deltafl.sim.net.device_flags import MAX_FRAME
from deltafl.sim.net.frames import VERSION, VersionError
from deltafl.sim.net.identities import certificate_hash

PATH: Final = "/devices"
"""Where a server has devices connect."""

SUBPROTOCOL: Final = Subprotocol(f"deltafl.net.v{VERSION}")

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 60.0
_OPENING_S: Final = 20.0
_PING_S: Final = 20.0
_PONG_S: Final = 120.0  # an answer comes after all that the server is sending
_DATED: Final = (9, 10)  # of OpenSSL (X509_V_ERR_…): not valid yet, and expired
_MEND: Final = " (the server's operator has to put another in its place; or this clock is wrong)"
_LOOK_S: Final = 1.0  # how often it is seen whether the device is to stop
_ON_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Server:
    """How to reach a server.

    Attributes:
        url: such as "wss://fl.example.org:8443".
        trusted: file of certificates (PEM) that are trusted in place of the system's; None for
            those of the system.
        max_frame: longest frame that is taken, in bytes.

    Raises:
        UserError: the address is none, or has no TLS and is not on this machine; the file cannot be
            used.
    """

    url: str
    trusted: str | None = None
    max_frame: int = MAX_FRAME
    context: ssl.SSLContext | None = field(init=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            port_is_one = parts.port != 0
        except ValueError:
            port_is_one, parts = False, urlsplit("")
        if parts.scheme not in ("ws", "wss") or not parts.hostname or not port_is_one:
            raise UserError(f"{self.url!r} is no address of a server, such as wss://HOST:PORT")
        if parts.scheme == "ws" and parts.hostname not in _ON_THIS_MACHINE:
            raise UserError(f"{self.url!r}: servers on other machines need TLS, with wss://")
        object.__setattr__(self, "context", self._context() if parts.scheme == "wss" else None)

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.trusted)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"{self.trusted}: no certificates to trust: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context


async def take_part(
    server: Server,
    device: DeviceSide,
    report: Callable[[str], None],
    stop: Event,
    patience: float = math.inf,
) -> None:
    """Stay connected until the run is over, or until told to stop.

    Args:
        server: where to.
        device: who connects.
        report: told what happens to the connection, in short sentences.
        stop: ends it from another thread, within a second once the device is not at work.
        patience: seconds without being admitted after which it ends.
    """
    pauses = _Pauses(patience)
    while not (stop.is_set() or device.has_ended()):
        try:
            async with _connected(server) as connection:
                await _converse(connection, device, stop, pauses)
        except (OSError, InvalidHandshake, ConnectionClosed, DecodeError, ConfigError) as error:
            if device.has_ended():
                break
            pause = pauses.following()
            if pauses.are_over():
                report(f"{_said(error)}; giving up: not admitted for {patience:g} s (--patience)")
                break
            report(f"{_said(error)}; trying again in {pause:.1f} s")
            await _pause(pause, stop)
        except InvalidURI as error:
            raise UserError(str(error)) from None
    device.close()


class _Connect(connect):
    """A connection to the address that the user gave, and to no other."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Go nowhere else, whatever the server answers."""
        return exc


def _connected(server: Server) -> _Connect:
    return _Connect(
        server.url.rstrip("/") + PATH,
        ssl=server.context,
        subprotocols=[SUBPROTOCOL],
        compression=None,  # what passes are random numbers
        open_timeout=_OPENING_S,
        ping_interval=_PING_S,
        ping_timeout=_PONG_S,
        max_size=server.max_frame,
        max_queue=2,
    )


async def _converse(
    connection: ClientConnection, device: DeviceSide, stop: Event, pauses: "_Pauses"
) -> None:
    """Take part over one connection until it ends."""
    secure = connection.transport.get_extra_info("ssl_object")
    seen = None if secure is None else secure.getpeercert(binary_form=True)
    async with asyncio.timeout(_OPENING_S):
        challenge = await _frame(connection)
    await connection.send(device.hello(challenge, certificate_hash(seen)))
    while not (stop.is_set() or device.has_ended()):
        try:
            async with asyncio.timeout(_LOOK_S):
                frame = await _frame(connection)
        except TimeoutError:
            continue
        pauses.admitted()
        # in another thread, so that the server's heartbeat is answered while the device trains
        reply = await asyncio.to_thread(device.receive, frame)
        if reply is not None:
            await connection.send(reply)


async def _frame(connection: ClientConnection) -> bytes:
    frame = await connection.recv(decode=False)
    return frame if isinstance(frame, bytes) else b""


async def _pause(seconds: float, stop: Event) -> None:
    await asyncio.to_thread(stop.wait, seconds)


class _Pauses:
    """Seconds before each new try: they double, and are cut short at random.

    They begin anew after a connection that has lasted longer than the pause before it: two devices
    of one identity, or a server that ends connections at once, do not make each other hurry.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._next, self._since = _FIRST_PAUSE, time.monotonic()
        self._admitted: float | None = None  # when the current connection was

    def following(self) -> float:
        """The next one."""
        now, admitted, self._admitted = time.monotonic(), self._admitted, None
        if admitted is not None and now - admitted > self._next:
            self._next = _FIRST_PAUSE
        pause, self._next = self._next, min(2 * self._next, _LONGEST_PAUSE)
        return pause * (0.5 + secrets.randbelow(500) / 1000)

    def admitted(self) -> None:
        """The server has admitted the device, or said something since."""
        self._since = time.monotonic()
        if self._admitted is None:
            self._admitted = self._since

    def are_over(self) -> bool:
        """Whether it was tried for long enough."""
        return time.monotonic() - self._since > self._patience


def _said(error: Exception) -> str:
    if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.reason:
        return f"the server says: {error.rcvd.reason}"
    if isinstance(error, ConnectionClosed):
        return "the connection broke"
    if isinstance(error, ssl.SSLCertVerificationError):
        because = f"{error.verify_message}{_MEND if error.verify_code in _DATED else ''}"
        return f"the server's certificate is not accepted: {because}"
    if isinstance(error, NegotiationError | VersionError):
        return f"the server speaks another version than this device, {SUBPROTOCOL} ({error})"
    if isinstance(error, DecodeError | ConfigError):
        return f"the server breaks the rules of the transport ({error})"
    return f"the server cannot be reached ({error})"
