"""Who is admitted to a server: whose identity is on its list, in the version that it speaks."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from deltafl.secagg import ClientId, DecodeError, Directory
from deltafl.sim.net.certificates import Tls
from deltafl.sim.net.dialling import SUBPROTOCOL
from deltafl.sim.net.frames import Challenge, Hello, VersionError, decode, encode
from deltafl.sim.net.identities import DeviceList, fingerprint_of, why_not
from deltafl.sim.net.logs import Cause, Refusals

ADMISSION_S: Final = 20.0
"""Seconds that a device has to say who it is."""


class NotAdmittedError(Exception):
    """Somebody is not admitted: the cause, what is logged of it, and what he is told."""

    def __init__(
        self, cause: Cause, logged: str, told: str, client: ClientId | None = None
    ) -> None:
        super().__init__(logged)
        self.cause, self.told, self.client = cause, told, client


@dataclass(slots=True, eq=False)
class Door:
    """By what devices are admitted; what it has may change meanwhile.

    Attributes:
        devices: whose keys admit them, such as the federation's list.
        tls: the server's certificate; None without.
        refusals: where it is counted who is not.
        copies: the fingerprints of the lists that those have who are connected.
    """

    devices: Directory
    tls: Tls | None
    refusals: Refusals = field(default_factory=Refusals)
    copies: dict[ClientId, bytes] = field(default_factory=dict)

    async def admitted(self, websocket: WebSocket) -> Hello:
        """Find out who has connected.

        Raises:
            NotAdmittedError: somebody who is not admitted.
            WebSocketDisconnect: he has gone by himself.
        """
        if not speaks_it(websocket):
            offered = ", ".join(websocket.scope["subprotocols"])
            speaks = f"{offered[:40]!a}, and this server {SUBPROTOCOL}"
            raise NotAdmittedError(
                Cause.VERSION,
                f"somebody speaks {speaks}",
                f"the device speaks {speaks}: both need one version",
            )
        challenge, server = Challenge.drawn(), b"" if self.tls is None else self.tls.shown
        try:
            async with asyncio.timeout(ADMISSION_S):
                await websocket.send_bytes(encode(challenge))
                hello = decode(await frame_of(websocket))
        except TimeoutError:
            told = f"nothing was said in {ADMISSION_S:g} s"
            raise NotAdmittedError(Cause.SILENT, told, told) from None
        except VersionError as error:
            raise NotAdmittedError(Cause.VERSION, str(error), str(error)) from None
        except DecodeError as error:
            told = "the first frame is no Hello"
            raise NotAdmittedError(Cause.MALFORMED, f"{told}: {str(error)[:100]}", told) from None
        if not isinstance(hello, Hello):
            told = f"the first frame is a {type(hello).__name__}, and no Hello"
            raise NotAdmittedError(Cause.MALFORMED, told, told)
        if (cause := why_not(challenge, hello, server, self.devices)) is not None:
            raise NotAdmittedError(cause, *_WHY_NOT[cause], hello.client)
        return hello

    @property
    def strays(self) -> int:
        """How many devices are connected whose copy of the list is another than the server's."""
        if not isinstance(self.devices, DeviceList):
            return 0
        own = fingerprint_of(self.devices)
        return sum(copy not in (own, b"") for copy in self.copies.values())

    def compare(self, hello: Hello) -> None:
        """Note which copy of the list a device has that was admitted."""
        before, self.copies[hello.client] = self.strays, hello.listed
        if self.strays > before:
            self.refusals.note(
                Cause.LIST,
                "admitted, but its list is another than the server's: give it the same, and "
                "compare the fingerprints (deltafl enrol --list)",
                device=hello.client,
            )


def speaks_it(websocket: WebSocket) -> bool:
    """Whether somebody speaks this version; each header may have several."""
    offered: list[str] = websocket.scope["subprotocols"]
    return any(SUBPROTOCOL in re.split(r",\s*", one) for one in offered)


_NOT_LISTED: Final = "this device is not on the server's list, or not who it says"
_WHY_NOT: Final = {
    Cause.UNLISTED: ("the list has no device of this number", _NOT_LISTED),
    Cause.KEY: ("the list has another key for this number", _NOT_LISTED),
    Cause.SIGNATURE: (
        "the signature is not for the server's certificate: something in between ends TLS, or "
        "somebody is not who he says",
        "the signature is not for this server's certificate: does something in between end TLS?",
    ),
}
"""What is logged, and what is told: strangers do not learn which numbers are on the list."""


async def frame_of(websocket: WebSocket) -> bytes:
    """The next frame of a connection.

    Raises:
        DecodeError: it is one of text.
        WebSocketDisconnect: there is none.
    """
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    frame = message.get("bytes")
    if not isinstance(frame, bytes):
        raise DecodeError("a frame of text")
    return frame
