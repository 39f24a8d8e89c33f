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
import socket
from asyncio import BaseTransport
from asyncio.sslproto import SSLProtocol
from collections.abc import Awaitable, Callable, Iterator
from threading import Thread
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame

from deltafl.secagg import ClientId, DecodeError
from deltafl.sim.errors import UserError
from deltafl.sim.net import admission
from deltafl.sim.net.admission import Door, NotAdmittedError, frame_of, speaks_it
from deltafl.sim.net.certificates import Tls
from deltafl.sim.net.dialling import PATH, SUBPROTOCOL
from deltafl.sim.net.logs import Cause, Refusals
from deltafl.sim.net.post import Line, Post
from deltafl.sim.net.strangers import Strangers, allow_connections
from deltafl.sim.settings.given import joined

SENDING_S: Final = 120.0
"""Seconds that a device has to read one frame."""

HANDSHAKE_S: Final = 15.0
"""Seconds for a TLS handshake."""

MAX_HELLO: Final = 1024
"""Bytes of the longest frame of somebody who has not been admitted."""

ALIVE_S: Final = 5.0
"""Seconds that a connection has to show that it lives, where its device comes a second time."""

_REFUSED, _BROKE_RULES, _ENDED = 4401, 1008, 4409
_MALFORMED: Final = {1002: "it speaks no WebSocket", 1009: "the first frame is too long"}
_MOST_REASON: Final = 120  # bytes of the reason of a close, which are ASCII here
_PING_S: Final = 20.0
_CLOSING_S: Final = 5.0
_MOST_UNREAD: Final = 1 << 16  # bytes
_MOST_HEARD: Final = 2 * MAX_HELLO  # bytes after the request, of somebody who is not admitted
_PIECE: Final = 1 << 11  # bytes that are parsed at once
_MOST_PINGS: Final = 16.0  # at once, and then one a second
_TLS_READS: Final = 1 << 16  # bytes that are read at once
_STOPPING_S: Final = 5
_RESTARTED: Final = 1012
_GOODBYE: Final = "it has ended; once it is started again, its run may go on"
_TWICE: Final = (
    "the identity of this device is connected, and came again from another place",
    "this identity is connected already: stop one of the two, and never copy one",
)
_ARE_YOU_THERE: Final = b"are you there?"


def application(post: Post, door: Door) -> Starlette:
    """The ASGI application that devices connect to.

    Args:
        post: the exchange.
        door: by what devices are admitted.
    """
    reachable: dict[ClientId, Callable[[], Awaitable[bool]]] = {}

    async def connected(websocket: WebSocket) -> None:
        await websocket.accept(subprotocol=SUBPROTOCOL if speaks_it(websocket) else None)
        peer = websocket.client and websocket.client.host
        try:
            hello = await door.admitted(websocket)
            asked = None
            # others may come while one is asked
            while (earlier := reachable.get(hello.client)) is not asked and earlier is not None:
                if await earlier():
                    raise NotAdmittedError(Cause.TWICE, *_TWICE, hello.client)
                asked = earlier
        except NotAdmittedError as error:
            said = f"not admitted: {error}"
            door.refusals.note(error.cause, said, device=error.client, peer=peer)
            await _close(websocket, _REFUSED, error.told)
            return
        except WebSocketDisconnect as error:
            if error.code in _MALFORMED:
                said = f"not admitted: {_MALFORMED[error.code]}"
                door.refusals.note(Cause.MALFORMED, said, peer=peer)
            return
        websocket.state.admitted()
        door.compare(hello)
        loop, due = asyncio.get_running_loop(), asyncio.Event()

        def changed() -> None:
            due.set()
            if not line.is_open and line.sent > _MOST_UNREAD:
                websocket.state.cut_off()  # what was sent may take memory until it is read

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the server is stopping
                loop.call_soon_threadsafe(changed)

        line = post.connect(hello.client, wake)
        reachable[hello.client] = is_there = websocket.state.is_there
        try:
            broke = await _serve(websocket, post, line, due)
            if broke is not None:
                said = f"its connection is closed: {broke}"
                door.refusals.note(Cause.RULES, said, device=hello.client, peer=peer)
        finally:
            if reachable.get(hello.client) is is_there:
                del reachable[hello.client]
                door.copies.pop(hello.client, None)
            post.disconnect(line)

    return Starlette(routes=[WebSocketRoute(PATH, connected)])


async def _close(websocket: WebSocket, code: int, because: str) -> None:
    """Close the WebSocket of a stranger, who may have gone, or been closed for a long frame."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await websocket.close(code, because[:_MOST_REASON])


async def _serve(websocket: WebSocket, post: Post, line: Line, due: asyncio.Event) -> str | None:
    """Carry frames both ways until either side ends the connection; which rule the device broke."""
    listening = asyncio.create_task(_listen(websocket, post, line))
    talking = asyncio.create_task(_talk(websocket, post, line, due))
    done, others = await asyncio.wait((listening, talking), return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    broke = None
    for task in done:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            code, because = task.result()
            broke = because if code == _BROKE_RULES else broke
            async with asyncio.timeout(_CLOSING_S):
                await websocket.close(code, because[:_MOST_REASON])
    return broke


async def _listen(websocket: WebSocket, post: Post, line: Line) -> tuple[int, str]:
    while True:
        try:
            post.received(line, await frame_of(websocket))
        except DecodeError as error:
            return _BROKE_RULES, str(error)


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
    return _ENDED, line.because


@contextlib.contextmanager
def served(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    tls: Tls | None = None,
    max_frame: int = 1 << 20,
    refusals: Refusals | None = None,
    flag: str = "--listen",
) -> Iterator[tuple[str, int]]:
    """Serve an application in a thread of its own; the host and port where it listens.

    Args:
        app: what to serve.
        host: the address to listen at.
        port: the port; 0 for any that is free.
        tls: None to serve without.
        max_frame: bytes of the longest WebSocket message that is read.
        refusals: where it is counted whom the server gives up before the application knows of him.
        flag: by which the address was given.

    Raises:
        UserError: nothing can listen there, or the certificate cannot be used.
    """
    strangers = Strangers(refusals or Refusals())
    context = None if tls is None else strangers.seen_by(tls.read())
    config = uvicorn.Config(
        app,
        http=type("_OpeningHere", (_Opening,), {"strangers": strangers}),
        ws=type("_ProtocolHere", (_Protocol,), {"strangers": strangers}),
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
        ssl_context_factory=None if context is None else lambda _config, _default: context,
    )
    try:
        listener = _listener(host, port, strangers)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"cannot listen at {host}, port {port}: {error}; choose another {flag}"
        ) from None
    allow_connections()
    server = uvicorn.Server(config)

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
    post: Post, door: Door, at: tuple[str, int], *, max_frame: int, name: str = ""
) -> Iterator[str]:
    """Serve the exchange to devices; the address at which they connect.

    Args:
        post: the exchange.
        door: by what devices are admitted; its certificate is served.
        at: host and port, as for `served`.
        max_frame: likewise.
        name: what devices call the host, if they call it something else.

    Raises:
        UserError: as `served`.
    """
    app, (host, port), refusals = application(post, door), at, door.refusals
    with served(app, host, port, tls=door.tls, max_frame=max_frame, refusals=refusals) as at:
        yield f"{'ws' if door.tls is None else 'wss'}://{joined(name or at[0], at[1])}"


class _Protocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, but that it lets go of those who do not read, or ask too much.

    By itself it waits without end for what was sent to be read, also while it closes. (Over TLS, it
    sees that nothing is read only when a second frame is to be sent.) It answers pings as fast as
    they come, and takes frames of the same length from strangers as from devices. It parses all
    that has come at once: a quarter of a megabyte may be forty thousand frames, which take half a
    second and megabytes. It logs each text that is none. It reads on where the connection is cut
    off, which is an error. And it raises if the server stops while a connection is being closed.
    """

    strangers: Strangers

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.app_state = {
            **self.app_state,
            "cut_off": self.transport.abort,
            "admitted": self._admitted,
            "is_there": self._is_there,
        }
        self.conn.max_message_size = MAX_HELLO
        self._asked: asyncio.Future[None] | None = None
        self._is_stranger, self._heard = True, 0
        self._pings_left, self._pinged = _MOST_PINGS, self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Parse it in pieces, and of somebody who is not admitted only so much."""
        most = len(data)
        if self._is_stranger and self.handshake_initiated:
            most, self._heard = _MOST_HEARD - self._heard, self._heard + len(data)
        for start in range(0, min(most, len(data)), _PIECE):
            if self.transport.is_closing():
                return
            super().data_received(data[start : min(most, start + _PIECE)])
        if most < len(data):
            self._cut_off("it says more than who it is")

    def send_receive_event_to_app(self) -> None:
        """Hand a message to the application, which has no use for text, and closes for it."""
        if self.curr_msg_data_type == "text":
            self.bytes.clear()
        super().send_receive_event_to_app()

    async def receive(self) -> Any:  # noqa: ANN401 (of uvicorn)
        """The next event for the application; a connection that is cut off is read no further."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty() and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()
        return message

    def _cut_off(self, because: str) -> None:
        if self.transport.is_closing():
            return
        for event in [self.queue.get_nowait() for _ in range(self.queue.qsize())]:
            if event["type"] != "websocket.receive":  # nobody needs its frames any more
                self.queue.put_nowait(event)
        cause = Cause.MALFORMED if self._is_stranger else Cause.RULES
        said = f"its connection is cut off: {because}"
        self.strangers.refusals.note(cause, said, peer=self.client and self.client[0])
        self.transport.abort()

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
            self._cut_off("it pings all the time")
        elif not self.transport.is_closing():
            super().handle_ping()

    def shutdown(self) -> None:
        with contextlib.suppress(InvalidState):
            if self.handshake_complete:
                self.conn.send_close(_RESTARTED, _GOODBYE)
                self.transport.write(b"".join(self.conn.data_to_send()))
            super().shutdown()
        self.transport.close()

    def _admitted(self) -> None:
        self._is_stranger, self.conn.max_message_size = False, self.config.ws_max_size
        self.strangers.admitted(self.transport)

    async def _is_there(self) -> bool:
        """Whether the other end answers a ping."""
        if self.transport.is_closing():
            return False
        if self._asked is None or self._asked.done():  # else somebody else waits for it too
            self._asked = self.loop.create_future()
            self.conn.send_ping(_ARE_YOU_THERE)
            self.transport.write(b"".join(self.conn.data_to_send()))
        done, _ = await asyncio.wait((self._asked,), timeout=ALIVE_S)
        return bool(done)

    def handle_pong(self, event: Frame) -> None:
        is_answer = bytes(event.data) == _ARE_YOU_THERE
        if is_answer and self._asked is not None and not self._asked.done():
            self._asked.set_result(None)
        super().handle_pong(event)


class _Opening(H11Protocol):
    """Uvicorn's protocol for connections as they open, with a bound on their time and requests."""

    strangers: Strangers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._ending = self.loop.call_later(admission.ADMISSION_S, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.transport.close()  # else one connection could ask without end
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: Any) -> None:  # noqa: ANN401 (of h11)
        self._ending.cancel()
        super().handle_websocket_upgrade(event)

    def _end(self) -> None:
        said = f"it became no WebSocket in {admission.ADMISSION_S:g} s"
        self.strangers.refusals.note(Cause.SILENT, said, peer=self.client and self.client[0])
        self.transport.close()  # what is being sent is sent first
        self._ending = self.loop.call_later(_CLOSING_S, self.transport.abort)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers do not wait long for TLS to begin or end."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:  # noqa: ANN401
        if options.get("ssl") is not None:
            SSLProtocol.max_size = _TLS_READS  # each connection has so much memory from the first
            options |= {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": _CLOSING_S}
        server: asyncio.Server = await super().create_server(*args, **options)
        return server


class _Listener(socket.socket):
    """Accepts no more connections than there is room for.

    Attributes:
        strangers: who has not been admitted.
    """

    strangers: Strangers

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and close it if there is no file for it: asyncio goes on."""
        connection, address = super().accept()
        if not self.strangers.came(connection, address):
            connection.close()
            raise ConnectionAbortedError("there are too many connections")
        return connection, address


def _listener(host: str, port: int, strangers: Strangers) -> _Listener:
    listener = _Listener(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.strangers = strangers
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except BaseException:
        listener.close()
        raise
    return listener
