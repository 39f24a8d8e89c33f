"""`deltafl bench net`: one round of private Δ-FL with devices that are connected over the network.

The server runs as in `deltafl serve`, in this process. The devices are coroutines in a few other
processes, each device with a connection, an identity and a machine of its own; what they compute on
their data takes no time. All run on this machine and share its cores, so the wall clock says what
server and devices need together. The server's CPU time is its own. `deltafl bench round` measures
as many sums in one process, without connections.
"""

import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from typing import Final

import numpy as np

from deltafl.fl.strategies.base import RoundReport
from deltafl.fl.strategies.private_delta_fl import PrivateRoundReport
from deltafl.fl.vectors import Vector
from deltafl.protocol import wire
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Ask
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.server import RoundServer
from deltafl.secagg import ClientId, Stage, Step
from deltafl.secagg.ledger import MemoryLedger
from deltafl.secagg.wire import max_bytes
from deltafl.sim.bench.harness import Report, timed
from deltafl.sim.bench.net_flags import NetBenchmark
from deltafl.sim.bench.session import Stopwatch
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.errors import RunError
from deltafl.sim.net.admission import Door
from deltafl.sim.net.app import serving
from deltafl.sim.net.certificates import Tls, make_certificate
from deltafl.sim.net.device import DeviceSide
from deltafl.sim.net.dialling import Server, take_part
from deltafl.sim.net.frames import OVERHEAD, Carry, decode
from deltafl.sim.net.identities import OwnIdentity
from deltafl.sim.net.post import Post
from deltafl.sim.net.remote import RemotePopulation
from deltafl.sim.net.strangers import allow_connections
from deltafl.sim.net.trips import Site, Waiting
from deltafl.sim.record.memory import peak_memory_mb
from deltafl.sim.run.algorithms import check_session, policy_of, strategy_of

_HOST: Final = "127.0.0.1"
_UPDATE: Final = 2.0**-6  # every number of every update; exact after rounding
_CONNECTING_S: Final = 300.0
_ENDING_S: Final = 30.0


def measure(benchmark: NetBenchmark) -> Report:
    """Play one round and return what it cost.

    Raises:
        SecAggError: no session withstands the threat with so few devices.
        RunError: devices did not connect, the round was lost, or a sum is wrong.
    """
    config, directory = benchmark.remote(), benchmark.directory()
    strategy = strategy_of(config)
    state = strategy.init(np.zeros(benchmark.dim, dtype=np.float32), benchmark.clients)
    params = check_session(config, strategy, state, benchmark.clients)
    if params is None:
        raise RuntimeError("the benchmark's algorithm has no secure sums: this is a bug")
    post = Post(time.monotonic, 1)
    watch, context = _Timeline(), get_context("spawn")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tls = None if benchmark.no_tls else _certificates(folder)
        max_frame = max_bytes(params) + OVERHEAD
        served = serving(post, Door(directory, tls), (_HOST, 0), max_frame=max_frame)
        url = stack.enter_context(served)
        trusted = None if tls is None else str(folder / "server.pem")
        started = time.perf_counter()
        processes = [
            context.Process(
                target=_take_part,
                args=(benchmark, url, trusted, range(i, benchmark.clients, benchmark.processes)),
                daemon=True,
            )
            for i in range(benchmark.processes)
        ]
        for process in processes:
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)  # first, if it has not ended by itself
        site = Site(
            post,
            directory,
            time.monotonic,
            Waiting(benchmark.patience, benchmark.patience),
            _CONNECTING_S,
            _CONNECTING_S,
            stage=watch.begin,
        )
        population = RemotePopulation(site, ModelSpec(config.model.name, (benchmark.dim,), 2))
        devices = population.of_run(config, watch)
        devices.present(benchmark.clients, frozenset())
        connecting, before = time.perf_counter() - started, peak_memory_mb()
        cohort = devices.of_round([ClientId(i) for i in range(benchmark.clients)], 0)
        played = timed(lambda: strategy.apply(state, cohort))
        watch.end()
        post.finish()
        for process in processes:
            process.join(_ENDING_S)
    state, report = played.result
    _check(benchmark, state.model, report)
    return {
        **asdict(benchmark),
        "neighbours": params.degree,
        "threshold": params.threshold,
        "sums": watch.sums,
        "trips": watch.num_trips,
        "connecting_s": round(connecting, 3),
        "wall_s": round(played.wall_s, 3),
        "server_cpu_s": round(played.cpu_s, 3),
        "protocol_cpu_s": round(watch.totals()[0], 3),
        "memory_before_mb": before,
        "peak_memory_mb": peak_memory_mb(),
        "by_stage": watch.by_stage(benchmark.clients),
    }


def _certificates(folder: Path) -> Tls:
    made = make_certificate([_HOST])
    for name, data in (("server", made.certificate), ("key", made.key)):
        (folder / f"{name}.pem").write_bytes(data)
    return Tls(folder / "server.pem", folder / "key.pem")


def _take_part(benchmark: NetBenchmark, url: str, trusted: str | None, share: range) -> None:
    """Be some of the devices until the round is over."""
    allow_connections()
    server, directory, config = Server(url, trusted), benchmark.directory(), benchmark.remote()
    policy, (losses, weights) = policy_of(config), benchmark.losses()
    gone = {index: one.step.slot == 0 for index, one in benchmark.vanishing(2).items()}
    update: Vector = np.full(benchmark.dim, _UPDATE, dtype=np.float32)

    def side(index: int) -> "_Device":
        client = ClientId(index)
        work = _Work(losses[index], weights[index], update)
        own = OwnIdentity(client, benchmark.identity(index))
        return _Device(
            own,
            directory,
            policy,
            MemoryLedger(),
            lambda _task, _machine: work,
            gone=gone.get(index),
        )

    async def all_of_them() -> None:
        sides = [side(index) for index in share]
        await asyncio.gather(*(take_part(server, one, lambda _: None, one.stop) for one in sides))

    asyncio.run(all_of_them())


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """Takes no time; an `OwnWork`."""

    own_loss: float
    own_weight: int
    own_update: Vector

    def weight(self) -> int:
        return self.own_weight

    def loss(self, model: bytes) -> float:
        del model
        return self.own_loss

    def update(self, model: bytes) -> Vector:
        del model
        return self.own_update

    def wait(self, model: bytes) -> None:
        del model


@dataclass(slots=True, eq=False)
class _Device(DeviceSide):
    """A device that may vanish.

    Attributes:
        gone: whether it vanishes when its first answer is due, or else its update; None for never.
        stop: set when it has vanished.
    """

    gone: bool | None = None
    stop: Event = field(default_factory=Event)

    def receive(self, data: bytes) -> bytes | None:
        frame = decode(data)
        asked = wire.decode(frame.data) if isinstance(frame, Carry) else None
        if isinstance(asked, Ask) and isinstance(asked.question, Query) is self.gone:
            self.stop.set()
            return None
        return DeviceSide.receive(self, data)


class _Timeline(Stopwatch):
    """Watches the server's side of a round, by the wall clock too.

    A trip lasts until the next one begins. Of that, the server waits for nobody's answer from the
    last answer to the moment at which it goes on. CPU time is that of the round's own thread.
    """

    def __init__(self) -> None:
        super().__init__(time.thread_time)
        self._wall_s: dict[Stage, float] = defaultdict(float)
        self._waited_s: dict[Stage, float] = defaultdict(float)
        self._began = self._free = time.perf_counter()
        self._stage: Stage | None = None
        self._gap = 0.0

    def begin(self, server: RoundServer, asked: int) -> None:
        """A trip begins."""
        del asked
        self.end()
        self._stage = server.step.stage

    def end(self) -> None:
        """The trip that was under way has ended."""
        now = time.perf_counter()
        if self._stage is not None:
            self._wall_s[self._stage] += now - self._began
            self._waited_s[self._stage] += self._gap
        self._began, self._gap = now, 0.0

    @contextmanager
    def working(self, party: ClientId | None, step: Step) -> Iterator[None]:
        """Count the thread's CPU time of a block, and how long it had nothing to do before."""
        self._gap = time.perf_counter() - self._free
        try:
            with super().working(party, step):
                yield
        finally:
            self._free = time.perf_counter()

    def by_stage(self, devices: int) -> dict[str, dict[str, float]]:
        """What each stage took, of all slots together."""
        return {
            stage.name.lower(): {
                "wall_s": round(self._wall_s[stage], 3),
                "waited_in_vain_s": round(self._waited_s[stage], 3),
                "protocol_cpu_s": round(self.cpu_s[stage][None], 3),
                **self.traffic(stage, devices),
            }
            for stage in sorted(self._wall_s)
        }


def _check(benchmark: NetBenchmark, model: Vector, report: RoundReport) -> None:
    """Compare the round with what the devices' numbers say.

    Raises:
        RunError: it was lost, or is wrong.
    """
    if not isinstance(report, PrivateRoundReport) or report.eta is None:
        raise RuntimeError("not a round with a threshold: this is a bug")
    if report.aborted is not None:
        raise RunError(f"the round was lost: {report.aborted}. {_slow(benchmark)}")
    (losses, weights), gone = benchmark.losses(), benchmark.vanishing(2)
    late = sum(report.dropped_by_stage.values()) - len(gone)
    if late > 0:
        stages = ", ".join(f"{n} at {stage}" for stage, n in report.dropped_by_stage.items())
        raise RunError(
            f"{late} devices more than asked for were lost ({stages}). {_slow(benchmark)}"
        )
    least, quantile = report.eta - (report.half_width or 0.0), benchmark.remote().quantile
    grid = LossGrid(quantile.resolution_bits, quantile.loss_bound)
    rounded = [grid.value(grid.tick(loss)[0]) for loss in losses]  # as devices compare them
    kept = [i for i in range(benchmark.clients) if i not in gone and rounded[i] >= least]
    right = {report.kept_devices: len(kept), report.kept_weight: sum(weights[i] for i in kept)}
    wrong = [f"{told} is not {true}" for told, true in right.items() if told != true]
    if wrong or not np.all(model == np.float32(_UPDATE)):
        raise RunError(f"the sums are wrong ({', '.join(wrong) or 'the model'}): this is a bug")


def _slow(benchmark: NetBenchmark) -> str:
    return (
        "On a machine that is busy or slow, devices do not answer within "
        f"{benchmark.patience:g} s: pass a longer --wait"
    )
