"""The command `deltafl watch`: the live page of a run for a browser, and its audit, on demand.

Any page that a browser has open could send requests here, and a name server could give this
machine's address to a name of its own. So a request must name the host by an address, or by a name
that is known; what other sites fetch is refused; and what changes anything must come from the page
itself. Nothing is read from requests but their first line and headers. There are never more than
`MAX_CONNECTIONS` of them: who sends slowly makes room for who comes later.
"""

import argparse
import contextlib
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.html import render
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.inspect.audit.report import AuditReport
from deltafl.sim.record.rundir import DEVICES, FEDERATED, RunDirectory
from deltafl.sim.record.snapshot import Reader, Snapshot
from deltafl.sim.settings.given import address, joined
from deltafl.sim.view import page
from deltafl.sim.view.sections import AuditState, Page
from deltafl.sim.visible import say


def main(options: argparse.Namespace) -> int:
    """Show the page until the user ends it; the exit code.

    Raises:
        UserError: there is no such run, or nothing can listen there.
    """
    if options.run.exists() and not options.run.is_dir():
        raise UserError(f"{options.run} is not a directory: name the directory of a run")
    run = _run_in(options.run)
    host, port = address(options.listen, "--listen")
    with Server(Watched(run), host, port) as server, contextlib.suppress(KeyboardInterrupt):
        say(f"{run} is shown at {server.url} (Ctrl-C ends it)")
        if not _is_this_machine(host):
            say("note: others can reach this address, and see the errors of single devices there")
        server.serve_forever()
    return 0


def _run_in(folder: Path) -> Path:
    """The run that is meant: the folder, or of a federation on this machine, the run in it."""
    is_run = RunDirectory(folder).record.exists()
    return folder / FEDERATED if not is_run and (folder / DEVICES).exists() else folder


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]
"""What a server is handed for each connection; of TCP, a socket."""

MAX_CONNECTIONS: Final = 32
"""The most that are open at a time; a page has one, for a moment."""

FRESH_S: Final = 1.0
"""What was read serves all pages that ask within so many seconds after it."""

_TIMEOUT_S: Final = 20.0
_MAX_LABEL: Final = 200
_HTML: Final = "text/html; charset=utf-8"
_JSON: Final = "application/json"
_HOST: Final = re.compile(r"(?:[0-9a-z._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_OURS: Final = frozenset({"same-origin", "none"})


@dataclass(slots=True)
class Watched:
    """What the pages of a run show; may be used by several threads.

    Attributes:
        path: the run directory.
        clock: gives seconds, for how old a snapshot is.
    """

    path: Path
    clock: Callable[[], float] = time.monotonic
    _reader: Reader = field(init=False)
    _snapshot: Snapshot | None = None
    _read_at: float = 0.0
    _audit: "Audit | None" = None
    _audited_run: tuple[object, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._reader = Reader(self.path)

    def page(self, wanted: str | None = None) -> Page:
        """What a page shows now.

        Args:
            wanted: the label of what methods are compared with; any other text means the usual one.
        """
        with self._lock:
            snapshot = self._fresh()
            shown = Page([snapshot], self._audited(snapshot), wanted or None)
        return shown if wanted in shown.labels else replace(shown, wanted=None)

    def ask_audit(self) -> None:
        """Begin to audit the run, if it is over and nobody has asked before."""
        with self._lock:
            snapshot = self._fresh()
            if self._audited(snapshot).state == "ready":
                self._audit, self._audited_run = Audit(self.path), _identity(snapshot)
                self._audit.start()

    def audit_report(self) -> str | None:
        """The page of the audit; None before it is done."""
        with self._lock:
            self._audited(self._fresh())
            report = None if self._audit is None else self._audit.report
        return None if report is None else render(report)

    def _fresh(self) -> Snapshot:
        now = self.clock()
        if self._snapshot is None or now - self._read_at > FRESH_S:
            self._snapshot = self._reader.read()
            self._read_at = self.clock()
        return self._snapshot

    def _audited(self, snapshot: Snapshot) -> AuditState:
        if self._audited_run != _identity(snapshot):
            self._audit = None  # it was that of another run
        if self._audit is not None:
            return self._audit.state()
        if snapshot.config is None or not snapshot.config.has_masked_sums:
            return AuditState("none", sentence="Nothing was masked, so there is nothing to audit.")
        if not snapshot.is_finished:
            return AuditState("early", sentence="The run can be audited when it is finished.")
        return AuditState("ready")


def _identity(snapshot: Snapshot) -> tuple[object, ...]:
    """What tells a finished run from another in the same place."""
    return snapshot.config, snapshot.summary


class Audit:
    """An audit in a thread of its own.

    Args:
        path: the run directory.

    Attributes:
        report: what was found; None before.
    """

    def __init__(self, path: Path) -> None:
        self.report: AuditReport | None = None
        self._path = path
        self._done = 0.0
        self._failure = ""

    def start(self) -> None:
        """Begin. The thread does not keep the program from ending."""
        threading.Thread(target=self._run, daemon=True).start()

    def state(self) -> AuditState:
        """What a page says of it."""
        if self.report is not None:
            return AuditState("done", 1.0, verdict(self.report), has_report=True)
        if self._failure:
            return AuditState("failed", sentence=self._failure)
        return AuditState("running", self._done)

    def _advance(self, offset: int, size: int, round_number: int) -> None:
        """See `deltafl.sim.inspect.audit.auditor.Progress`."""
        del round_number
        self._done = offset / size if size else 1.0

    def _run(self) -> None:
        try:
            self.report = audit(self._path, progress=self._advance)
        except Exception as error:
            self._failure = f"The run cannot be audited: {str(error) or repr(error)}"
            if not isinstance(error, UserError | OSError):
                raise  # our own fault: the terminal shows where


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
            text = page.live_page(watched.page())
            policy = f"{page.live_policy()}; frame-ancestors 'none'"
            self._answer(HTTPStatus.OK, _HTML, text, policy)
        elif path == "/state.json":
            wanted = _baseline(query)
            self._answer(HTTPStatus.OK, _JSON, json.dumps(page.state(watched.page(wanted))))
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
