"""How many connections a server has of those who have not been admitted, and in all."""

import contextlib
import math
import resource
import socket
import ssl
from asyncio import BaseTransport
from collections import Counter
from ipaddress import ip_address
from typing import Any, Final

from deltafl.sim.net.logs import Cause, Refusals

MOST_STRANGERS: Final = 1024
"""Most connections of whoever has not been admitted, from the first packet on."""

_OTHER_FILES: Final = 128  # that this process may need beside its connections


class Strangers:
    """The connections of those who have not been admitted, and how many files all of them take.

    If there are too many, the oldest of the network goes that has most of them: an honest device is
    admitted in less time than it takes to fill the places of one network, and cannot be locked out
    by others that say nothing.

    Args:
        refusals: where it is counted who goes.
    """

    def __init__(self, refusals: Refusals) -> None:
        self.refusals = refusals
        self._open: dict[Any, socket.socket] = {}  # by their addresses, the oldest first
        self._admitted: dict[Any, socket.socket] = {}

    def came(self, connection: socket.socket, address: Any) -> bool:  # noqa: ANN401 (of a family)
        """A connection has been accepted; whether there is a file for it."""
        self._open[address] = connection
        number, room = len(self._open) + len(self._admitted), _room()
        if len(self._open) <= MOST_STRANGERS and number <= room:
            return True
        for among in (self._open, self._admitted):
            for gone in [at for at, one in among.items() if one.fileno() < 0]:
                del among[gone]
        is_full = len(self._open) + len(self._admitted) > room
        if is_full:
            del self._open[address]
        if is_full or len(self._open) > MOST_STRANGERS:
            self._let_go()
        return not is_full

    def admitted(self, transport: BaseTransport) -> None:
        """Somebody is no stranger any more."""
        address = transport.get_extra_info("peername")
        if (connection := self._open.pop(address, None)) is not None:
            self._admitted[address] = connection

    def _let_go(self) -> None:
        networks = {address: _network(address) for address in self._open}
        crowded = Counter(networks.values()).most_common(1)
        if not crowded:
            return
        address = next(one for one, network in networks.items() if network == crowded[0][0])
        with contextlib.suppress(OSError):  # the transport, whose it is, sees the end and closes
            self._open.pop(address).shutdown(socket.SHUT_RDWR)
        self.refusals.note(
            Cause.CROWDED,
            f"more than {min(MOST_STRANGERS, _room()):g} connections are not admitted: the oldest "
            "of the network with most of them is closed",
            peer=address[0],
        )

    def seen_by(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """The same context, whose handshakes are counted if they fail."""
        refusals = self.refusals

        class Seen(ssl.SSLObject):
            def do_handshake(self) -> None:
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except ssl.SSLError as error:
                    what = str(error.reason or error)[:60].lower().replace("_", " ")
                    refusals.note(Cause.TLS, f"the TLS handshake failed: {what}")
                    raise

        context.sslobject_class = Seen
        return context


def _network(address: Any) -> bytes:  # noqa: ANN401 (of a family)
    """Where somebody is: an IPv4 address, or the first 64 bits of an IPv6 address."""
    return ip_address(str(address[0]).partition("%")[0]).packed[:8]


def _room() -> float:
    """How many connections this process has files for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if files == resource.RLIM_INFINITY else files - _OTHER_FILES


def allow_connections() -> None:
    """Let this process have as many connections as the system allows; a shell may allow fewer."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses "as many as you like"
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
