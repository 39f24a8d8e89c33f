"""The live page of a run for a browser on this machine.

Any page that a browser has open could send requests here, and a name server could give this
machine's address to a name of its own. So a request must name the host by an address, or by a name
that is known; and what changes anything must come from the page itself. Nothing is read from
requests but their first line and headers.
"""

import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qs, urlsplit

from deltafl.sim.errors import UserError
from deltafl.sim.settings.argument import joined
from deltafl.sim.view import page
from deltafl.sim.view.live import Watched

_TIMEOUT_S: Final = 20.0
_MAX_LABEL: Final = 200
_HTML: Final = "text/html; charset=utf-8"
_JSON: Final = "application/json"


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
        if ":" in host:
            from socket import AF_INET6

            self.address_family = AF_INET6
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

    def knows(self, host: str) -> bool:
        """Whether a request may call this machine so: by an address, or by a name that is known."""
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
    server_version = "deltafl"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page, its state, or the report of the audit."""
        if not self._is_for_us():
            return
        asked, watched = urlsplit(self.path), self.server.watched
        if asked.path == "/":
            text = page.live_page(watched.shown())
            policy = page.policy(page.style(), page.script())
            self._answer(HTTPStatus.OK, _HTML, text, f"{policy}; frame-ancestors 'none'")
        elif asked.path == "/state.json":
            wanted = parse_qs(asked.query).get("baseline", [""])[0][:_MAX_LABEL]
            self._answer(HTTPStatus.OK, _JSON, json.dumps(page.state(watched.shown(wanted))))
        elif asked.path == "/audit.html" and (report := watched.audit_report()) is not None:
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
            is_known = self.server.knows(self.headers.get("Host", ""))
        except ValueError:  # no host at all
            is_known = False
        if not is_known:
            self._refuse(
                HTTPStatus.MISDIRECTED_REQUEST, "This page is shown under another address."
            )
        return is_known

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
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a page asks every two seconds."""
