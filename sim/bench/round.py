"""`deltafl bench round`: one round of private Δ-FL by the real protocol, without training.

Every message is encoded, sent, decoded and checked. All parties share this process, but nothing
that they compute. The benchmark measures CPU time, which depends less on other load than the wall
clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.private_delta_fl import PrivateRoundReport
from deltafl.fl.vectors import Vector
from deltafl.secagg import Vanish, ring
from deltafl.secagg.primitives import Primitives
from deltafl.sim.bench.harness import Report, timed
from deltafl.sim.bench.round_flags import RoundBenchmark
from deltafl.sim.bench.session import Stopwatch
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.cohort.simulated import SimulatedCohort
from deltafl.sim.cohort.work import Devices, device_objects
from deltafl.sim.errors import RunError
from deltafl.sim.run.algorithms import check_session, sessions_of, strategy_of

_UPDATE_SCALE: Final = 0.01


def measure(benchmark: RoundBenchmark) -> Report:
    """Play one round and return what it cost.

    Raises:
        SecAggError: no session withstands the threat with so few devices.
        RunError: too many vanished.
    """
    config = benchmark.config()
    strategy, watch = strategy_of(config), Stopwatch()
    state = strategy.init(np.zeros(benchmark.dim, dtype=np.float32), benchmark.clients)
    params = check_session(config, strategy, state, benchmark.clients)
    if params is None:
        raise RuntimeError("the benchmark's algorithm has no secure sums: this is a bug")
    rounds = MaskedRounds(sessions_of(config), observer=watch, primitives=Primitives)

    def vanishing(_: int, ids: Sequence[int], num_slots: int) -> Mapping[int, Vanish]:
        del ids
        return benchmark.vanishing(num_slots)

    cohort = SimulatedCohort(
        made_up_devices(benchmark), 0, Seeds(benchmark.seed), rounds, vanishing
    )
    played = timed(lambda: strategy.apply(state, cohort))
    _, report = played.result
    if not isinstance(report, PrivateRoundReport) or report.aborted is not None:
        raise RunError(f"the round was lost: {report}")
    last = params.slots[-1]
    packed = ring.packed_size(last.length, last.ring_bits)
    return {
        **asdict(benchmark),
        "ring_bits": last.ring_bits,
        **watch.report(params, played),
        "bytes_up_beside_update": round(watch.bytes_up(benchmark.clients) - packed, 1),
        "sums": watch.sums,
        "trips": watch.num_trips,
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Device:
    """A device that has something to say, and learns nothing."""

    id: int
    weight: int
    own_loss: float
    generator: np.random.Generator

    def loss(self, model: Vector) -> float:
        del model
        return self.own_loss

    def update(self, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
        del objective
        noise: Vector = self.generator.normal(0, _UPDATE_SCALE, model.shape).astype(np.float32)
        return noise


def made_up_devices(benchmark: RoundBenchmark) -> Devices:
    """The cohort, with random updates."""
    generator = Seeds(benchmark.seed).generator(Purpose.WEIGHTS)
    losses, weights = benchmark.losses()
    return device_objects(
        _Device(index, weight, loss, generator)
        for index, (loss, weight) in enumerate(zip(losses, weights, strict=True))
    )
