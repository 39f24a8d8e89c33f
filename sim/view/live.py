"""A run that is watched: looked at again whenever a page asks, and audited when somebody asks."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.html import render
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.inspect.audit.report import AuditReport
from deltafl.sim.view.look import Look, Reader
from deltafl.sim.view.sections import shown, wire_of
from deltafl.sim.view.shown import AuditShown, Shown
from deltafl.sim.view.wire import Wire

FRESH_S: Final = 1.0
"""A look serves all pages that ask within so many seconds after it."""


@dataclass(slots=True)
class Watched:
    """What the pages of a run show; may be used by several threads.

    Attributes:
        path: the run directory.
        clock: gives seconds, for how old a look is.
    """

    path: Path
    clock: Callable[[], float] = time.monotonic
    _reader: Reader = field(init=False)
    _wire: Wire | None = None
    _look: Look | None = None
    _looked: float = 0.0
    _audit: "Audit | None" = None
    _audited_run: tuple[object, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._reader = Reader(self.path)

    def shown(self, wanted: str | None = None) -> Shown:
        """What a page shows now.

        Args:
            wanted: the label of what methods are compared with; any other text means the usual one.
        """
        with self._lock:
            look = self._fresh()
            try:
                return shown([look], self._wire, self._audited(look), wanted=wanted or None)
            except ValueError:  # no method is called so
                return shown([look], self._wire, self._audited(look))

    def ask_audit(self) -> None:
        """Begin to audit the run, if it is over and nobody has asked before."""
        with self._lock:
            look = self._fresh()
            if self._audited(look).state == "ready":
                self._audit, self._audited_run = Audit(self.path), _identity(look)
                self._audit.start()

    def audit_report(self) -> str | None:
        """The page of the audit; None before it is done."""
        with self._lock:
            self._audited(self._fresh())
            report = None if self._audit is None else self._audit.report
        return None if report is None else render(report)

    def _fresh(self) -> Look:
        now = self.clock()
        if self._look is None or now - self._looked > FRESH_S:
            self._look = self._reader.look()
            wire = wire_of(self._look)
            if wire is None or self._wire is None or wire.grid != self._wire.grid:
                self._wire = wire  # of a run that has begun, or another one
            if self._wire is not None:
                self._wire.read_on()
            self._looked = self.clock()
        return self._look

    def _audited(self, look: Look) -> AuditShown:
        if self._audited_run != _identity(look):
            self._audit = None  # it was that of another run
        if self._audit is not None:
            return self._audit.shown()
        if look.config is None or not look.config.has_masked_sums:
            return AuditShown("none", sentence="Nothing was masked, so there is nothing to audit.")
        if not look.is_finished:
            return AuditShown("early", sentence="The run can be audited when it is finished.")
        return AuditShown("ready")


def _identity(look: Look) -> tuple[object, ...]:
    """What tells a finished run from another in the same place."""
    return look.config, look.summary


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

    def shown(self) -> AuditShown:
        """What a page says of it."""
        if self.report is not None:
            return AuditShown("done", 1.0, verdict(self.report), has_report=True)
        if self._failure:
            return AuditShown("failed", sentence=self._failure)
        return AuditShown("running", self._done)

    def advance(self, offset: int, size: int, round_number: int) -> None:
        """See `deltafl.sim.inspect.audit.auditor.Progress`."""
        del round_number
        self._done = offset / size if size else 1.0

    def _run(self) -> None:
        try:
            self.report = audit(self._path, progress=self)
        except (UserError, OSError) as error:
            self._failure = f"The run cannot be audited: {error}"
