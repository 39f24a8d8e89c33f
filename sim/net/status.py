"""What a federation is doing: for its operator, as a page and as metrics.

Everything here follows from what the server may see: who is connected, which stage the round is in,
how long trips took, and the sums that rounds have revealed. No number is about a single device.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Final, TypeAlias, cast

from jinja2 import Environment, PackageLoader, Template
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route

from deltafl.fl.metrics import Summary
from deltafl.fl.registry import ERROR
from deltafl.protocol.server import RoundServer
from deltafl.secagg import ClientId
from deltafl.secagg.states import Stage
from deltafl.sim.net.admission import Door
from deltafl.sim.net.frames import Reason
from deltafl.sim.net.logs import REFUSED, Cause, say
from deltafl.sim.net.own_work import SummedMetrics
from deltafl.sim.net.post import Post
from deltafl.sim.record.events import Event
from deltafl.sim.record.memory import memory_of
from deltafl.sim.run.accounting import privacy_of, rounded_up
from deltafl.sim.run.stage_seconds import STAGE_WORDS
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import show

SHOWN_ROUNDS: Final = 20
"""Rounds on the page, the latest first."""

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The type of Prometheus' text format."""


_Metric: TypeAlias = tuple[str, str, Mapping[str, float]]
"""The name of a metric, what it is, and its values by their labels."""


_WAITING: Final = "waiting for devices"


@dataclass(slots=True)
class Status:
    """All that is shown; may be read and written by several threads. A `Progress`.

    Attributes:
        config: the run's settings.
        post: the exchange, which knows who is connected.
        door: by what devices are admitted; it has the list, the certificate and who was refused.
    """

    config: RunConfig
    post: Post
    door: Door
    _stage: str = _WAITING
    _asked: int = 0  # in the trip that is going on
    _events: list[Event] = field(default_factory=list)
    _rounds_done: int = 0
    _is_over: bool = False
    _is_ready: bool = False
    _at: float = field(default_factory=time.time)  # the last round ended, or this process began
    _taken: dict[Stage, list[float]] = field(default_factory=dict)  # answers, and their seconds
    _measured: dict[int, SummedMetrics] = field(default_factory=dict)
    _totals: Counter[str] = field(default_factory=Counter)
    _declined: Counter[Reason] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def begin(self, config: RunConfig, rounds_done: int) -> None:
        """The run starts, or continues."""
        del config
        with self._lock:
            self._rounds_done, self._at = rounds_done, time.time()

    def played(self, event: Event) -> None:
        """A round was played."""
        with self._lock:
            self._stage, self._asked, self._at = _WAITING, 0, time.time()
            self._rounds_done = cast("int", event["round"])
            self._events = [event, *self._events][:SHOWN_ROUNDS]
            self._totals["sums"] += cast("int", event.get("secure_sums") or 0)
            self._totals["lost"] += bool(event.get("aborted"))
            dropped = cast("Mapping[str, int]", event.get("dropped_by_stage") or {})
            self._totals["dropped"] += sum(dropped.values())

    def evaluated(self, round_number: int, errors: Mapping[str, Summary]) -> None:
        """Nothing: the server of a federation evaluates nothing."""

    def measured(self, sums: SummedMetrics) -> None:
        """A model was measured on all connected devices together."""
        with self._lock:
            self._measured[sums.level] = sums
        say(str(sums))

    def taken(self, stage: Stage, seconds: Sequence[float]) -> None:
        """So many devices were in time with a stage, and took so long for it."""
        with self._lock:
            so_far = self._taken.setdefault(stage, [0, 0.0])
            so_far[:] = so_far[0] + len(seconds), so_far[1] + sum(seconds)

    def ready(self, *, is_ready: bool) -> None:
        """Devices are served, and rounds go on; or no more."""
        self._is_ready = is_ready

    def over(self) -> None:
        """The run is finished."""
        with self._lock:
            self._is_over = True

    @property
    def listed(self) -> int:
        """How many devices are on the list."""
        return len(getattr(self.door.devices, "keys", ()))

    def stage(self, server: RoundServer, asked: int) -> None:
        """A trip begins."""
        words = STAGE_WORDS[server.step.stage]
        if server.awaits_updates:
            words = "devices train and send masked updates"
        with self._lock:
            self._stage, self._asked = words, asked
            self._totals["trips"] += 1

    def declined(self, client: ClientId, reason: Reason, detail: str) -> None:
        """A device does not go on with its round."""
        with self._lock:
            self._declined[reason] += 1
            number = self._declined[reason]
        why = f"{reason.words}: {detail}" if detail else reason.words
        if reason is Reason.SETTINGS:
            why += "; it counts as absent until it connects anew"
        said = f"device {client} does not go on with the round: {why} ({number} so far)"
        self.door.refusals.note(Cause.DECLINED, said, device=client)

    def late(self, client: ClientId) -> None:
        """A device has not answered in time."""
        said = f"device {client} has not answered in time, and is lost for this round"
        self.door.refusals.note(Cause.LATE, said, device=client)

    def page(self) -> str:
        """The page, in HTML."""
        with self._lock:
            return _template().render(
                config=self.config,
                theta=[show(theta) for theta in self.config.federation.thetas],
                rounds_done=self._rounds_done,
                stage="the run is finished" if self._is_over else self._stage,
                asked=self._asked,
                connected=len(self.post.connected),
                listed=self.listed,
                totals=self._totals,
                declined=sorted((reason.words, n) for reason, n in self._declined.items()),
                epsilon=self._epsilon(),
                measured=[str(one) for _, one in sorted(self._measured.items())],
                events=self._events,
                is_over=self._is_over,
            )

    def metrics(self) -> str:
        """The metrics, in Prometheus' text format."""
        thetas = self.config.federation.thetas
        with self._lock:
            totals, known = self._totals, self._measured.items()
            errors = {
                _label("theta", show(thetas[level])): one.error
                for level, one in known
                if one.error is not None and one.metric == ERROR
            }
            declined = {_label("reason", one.name): self._declined[one] for one in Reason}
            in_time, took = (
                {_label("stage", stage.name): so_far[k] for stage, so_far in self._taken.items()}
                for k in range(2)
            )
            gauges: list[_Metric] = [
                ("rounds_done", "Rounds of the run so far.", {"": self._rounds_done}),
                ("rounds", "Rounds of the run.", {"": self.config.federation.rounds}),
                ("devices_listed", "Devices on the list.", {"": self.listed}),
                ("devices_connected", "Connected now.", {"": len(self.post.connected)}),
                ("devices_asked", "Asked in the current trip.", {"": self._asked}),
                ("devices_with_another_list", "Connected now.", {"": self.door.strays}),
                ("test_error", "Share of test samples that the model gets wrong.", errors),
                ("since_round_seconds", "Since a round ended.", {"": time.time() - self._at}),
                ("memory_bytes", "Of this process, in RAM.", {"": memory_of("self")}),
            ]
            if self.door.tls is not None:
                expires = {"": self.door.tls.expires}
                gauges.append(("certificate_expiry_timestamp_seconds", "Since 1970.", expires))
            passed, refusals = self.post.passed, self.door.refusals.counts
            refused = {_label("reason", one): refusals[one] for one in REFUSED}
            counters: list[_Metric] = [
                ("trips_total", "Trips since the start.", {"": totals["trips"]}),
                ("sums_total", "Sums learnt since the start.", {"": totals["sums"]}),
                ("lost_rounds_total", "Rounds lost.", {"": totals["lost"]}),
                ("dropped_total", "Devices lost in rounds.", {"": totals["dropped"]}),
                ("declined_total", "Devices that did not go on with a round.", declined),
                ("refused_total", "Connections that were refused or closed.", refused),
                ("reconnections_total", "Of devices.", {"": passed["reconnections"]}),
                ("received_bytes_total", "Of frames of devices.", {"": passed["in"]}),
                ("sent_bytes_total", "Of frames to devices.", {"": passed["out"]}),
                ("answers_total", "Of devices in time.", in_time),
                ("answers_seconds_total", "They took.", took),
                ("cpu_seconds_total", "Of this process.", {"": time.process_time()}),
            ]
        return "".join([*_exposed("gauge", gauges), *_exposed("counter", counters)])

    def application(self) -> Starlette:
        """The ASGI application that shows all this, for the operator alone."""

        async def page(_request: Request) -> HTMLResponse:
            headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
            return HTMLResponse(self.page(), headers=headers)

        async def metrics(_request: Request) -> PlainTextResponse:
            return PlainTextResponse(self.metrics(), media_type=METRICS_TYPE)

        async def health(_request: Request) -> PlainTextResponse:
            return PlainTextResponse("ok\n")

        async def readiness(_request: Request) -> PlainTextResponse:
            is_ready = self._is_ready and not self._is_over
            words = "ready\n" if is_ready else "not ready: devices are not served\n"
            return PlainTextResponse(words, status_code=200 if is_ready else 503)

        answers = {"/": page, "/metrics": metrics, "/healthz": health, "/readyz": readiness}
        return Starlette(routes=[Route(path, answer) for path, answer in answers.items()])

    def _epsilon(self) -> str:
        """ε of all that a device has answered so far, or of its answers in noisy searches."""
        told = self._events[0] if self._events else {}
        if isinstance(epsilon := told.get("epsilon"), float):
            return f"ε = {rounded_up(epsilon)} at δ = {self.config.dp.delta:g}, updates included"
        spent = privacy_of(self.config, self._rounds_done)
        if spent is None:
            return "no noise is added"
        if not math.isfinite(spent.epsilon):
            return "ε is not bounded"
        return f"ε = {rounded_up(spent.epsilon)}, of searches alone"


def _label(name: str, value: str) -> str:
    return f'{{{name}="{value.lower()}"}}'


def _exposed(kind: str, metrics: Sequence[_Metric]) -> Iterator[str]:
    """Metrics of a kind as Prometheus reads them, line by line."""
    for name, what, values in metrics:
        yield f"# HELP deltafl_{name} {what}\n# TYPE deltafl_{name} {kind}\n"
        for labels, value in values.items():
            yield f"deltafl_{name}{labels} {value}\n"


@cache
def _template() -> Template:
    loader = PackageLoader("deltafl.sim.net", "")
    return Environment(loader=loader, autoescape=True).get_template("status.html.j2")
