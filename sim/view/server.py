"""The live page of a run for a browser on this machine.

Any page that a browser has open could send requests here, and a name server could give this
machine's address to a name of its own. So a request must name the host by an address, or by a name
that is known; what other sites fetch is refused; and what changes anything must come from the page
itself. Nothing is read from requests but their first line and headers. There are never more than
`MAX_CONNECTIONS` of them: who sends slowly makes room for who comes later.
"""

import contextlib
import json
import re
import socket
import sys
import threading
from collections.abc import Collection
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

from deltafl.sim.errors import UserError
from deltafl.sim.settings.argument import joined
from deltafl.sim.view import page
from deltafl.sim.view.live import Watched

Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]
"""What a server is handed for each connection; of TCP, a socket."""

MAX_CONNECTIONS: Final = 32
"""The most that are open at a time; a page has one, for a moment."""

_TIMEOUT_S: Final = 20.0
_MAX_LABEL: Final = 200
_HTML: Final = "text/html; charset=utf-8"
_JSON: Final = "application/json"
_HOST: Final = re.compile(r"(?:[0-9a-z._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_OURS: Final = frozenset({"same-origin", "none"})


class Server(ThreadingHTTPServer):
    """Shows one run.

    Args:
        watched: the run.
        host: the address to listen at.
        port: the port; 0 for any that is free.

    Raises:
        UserError: nothing can listen there.
    """

    daemon_threads = True

    def __init__(self, watched: Watched, host: str, port: int) -> None:
        self.watched = watched
        self.names = {host.lower(), "localhost"}
        self._open: dict[Request, None] = {}  # the oldest first
        self._opening = threading.Lock()
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UserError(
                f"cannot listen at {joined(host, port)}: {error.strerror}; choose another address "
                "by --listen, or port 0 for any that is free"
            ) from error

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.socket.getsockname()[:2]
        return f"http://{joined(host, port)}/"

    def process_request(self, request: Request, client_address: object) -> None:
        """Answer in a thread of its own, and end the oldest of too many connections."""
        with self._opening:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > MAX_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                _hang_up(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Request) -> None:
        """Close a connection."""
        with self._opening:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Request, client_address: object) -> None:
        """Say nothing of connections that break; of everything else, as usual."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def knows(self, hosts: Collection[str]) -> bool:
        """Whether a request may call this machine so: by an address, or by a name that is known.

        Args:
            hosts: all its Host headers.
        """
        if len(hosts) != 1:
            return False
        (host,) = (one.strip().lower() for one in hosts)
        if not _HOST.fullmatch(host):
            return False
        name = urlsplit(f"//{host}").hostname or ""
        if name in self.names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _TIMEOUT_S

    def version_string(self) -> str:
        """What answers; not which version, nor of Python."""
        return "deltafl"

    def do_GET(self) -> None:
        """Answer with the page, its state, or the report of the audit."""
        if not self._is_for_us():
            return
        path, _, query = self.path.partition("?")
        watched = self.server.watched
        if path == "/":
            text = page.live_page(watched.shown())
            policy = page.policy(page.style(), page.script())
            self._answer(HTTPStatus.OK, _HTML, text, f"{policy}; frame-ancestors 'none'")
        elif path == "/state.json":
            wanted = _baseline(query)
            self._answer(HTTPStatus.OK, _JSON, json.dumps(page.state(watched.shown(wanted))))
        elif path == "/audit.html" and (report := watched.audit_report()) is not None:
            self._answer(HTTPStatus.OK, _HTML, report, "frame-ancestors 'none'")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")

    def do_POST(self) -> None:
        """Begin the audit."""
        if not self._is_for_us():
            return
        if self.headers.get("Origin") != f"http://{self.headers.get('Host')}":
            self._refuse(HTTPStatus.FORBIDDEN, "Only the page of the run may ask for this.")
        elif self.path != "/audit":
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")
        else:
            self.server.watched.ask_audit()
            self._answer(HTTPStatus.ACCEPTED, _JSON, "{}")

    def _is_for_us(self) -> bool:
        try:
            is_known = self.server.knows(self.headers.get_all("Host", []))
        except ValueError:  # no address that there is
            is_known = False
        if not is_known:
            self._refuse(
                HTTPStatus.MISDIRECTED_REQUEST, "This page is shown under another address."
            )
            return False
        # browsers say so; a link from elsewhere may be followed
        site, mode = (self.headers.get(f"Sec-Fetch-{what}") for what in ("Site", "Mode"))
        if site is not None and site not in _OURS and mode != "navigate":
            self._refuse(HTTPStatus.FORBIDDEN, "Only the page of the run may ask for this.")
            return False
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request that is answered here; repeats nothing of it."""
        del message, explain
        self.close_connection = True
        status = HTTPStatus(code)
        if self.request_version == "HTTP/0.9":  # it was not understood so far
            self.request_version = "HTTP/1.0"
        self._refuse(status, f"{status.phrase}.")

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self._answer(status, "text/plain; charset=utf-8", sentence + "\n")

    def _answer(self, status: HTTPStatus, kind: str, text: str, policy: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy or "default-src 'none'; frame-ancestors 'none'"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a page asks every two seconds."""


def _hang_up(request: Request) -> None:
    """End a connection; its own thread closes it."""
    if isinstance(request, socket.socket):
        with contextlib.suppress(OSError):  # it has ended by itself
            request.shutdown(socket.SHUT_RDWR)


def _baseline(query: str) -> str:
    """What methods are to be compared with; "" for the usual."""
    try:
        return parse_qs(query, max_num_fields=8).get("baseline", [""])[0][:_MAX_LABEL]
    except ValueError:  # too many fields
        return ""
