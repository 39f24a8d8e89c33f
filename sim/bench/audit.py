"""`deltafl bench audit`: record rounds of simulated devices, and measure `deltafl audit` on them.

Devices have random losses and updates instead of training; every message is real. The audit runs in
a separate process, whose time and peak memory are measured.
"""

import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.private_delta_fl import Encoding, PrivateDeltaFL
from deltafl.fl.vectors import Vector
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.registry import default_max_queries
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.sessions import Sessions
from deltafl.sim.bench.audit_flags import AuditBenchmark
from deltafl.sim.bench.harness import MOST_PIVOTS, Report, timed
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.cohort.simulated import SimulatedCohort
from deltafl.sim.cohort.work import device_objects
from deltafl.sim.progress import Bar
from deltafl.sim.record.memory import peak_memory_mb
from deltafl.sim.record.record import write_record
from deltafl.sim.record.transcript import TranscriptWriter

_MAX_SAMPLES: Final = 400
_UPDATE_SCALE: Final = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class _RandomDevice:
    """A device that has something to say, and learns nothing."""

    id: int
    weight: int
    generator: np.random.Generator

    def loss(self, model: Vector) -> float:
        del model
        return float(self.generator.gamma(2, 0.5))

    def update(self, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
        del objective
        noise: Vector = self.generator.normal(0, _UPDATE_SCALE, model.shape).astype(np.float32)
        return noise


def measure(benchmark: AuditBenchmark) -> Report:
    """Record, audit, and return what the audit cost.

    Raises:
        SecAggError: no session withstands the threat with so few devices.
        RuntimeError: the audit did not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.sqlite"
        _record(benchmark, path)
        words = [sys.executable, "-m", "deltafl", "audit", str(path), "--json"]
        audit = timed(lambda: subprocess.run(words, capture_output=True, check=False))  # noqa: S603 - our own
        if audit.result.returncode not in (0, 1):
            raise RuntimeError(audit.result.stderr.decode())
        found = json.loads(audit.result.stdout)
        return {
            **asdict(benchmark),
            "record_mb": round(path.stat().st_size / 1e6, 1),
            **{name: found[name] for name in ("records", "sums_released", "sums_replayed")},
            "findings": ", ".join(finding["rule"] for finding in found["findings"]),
            "exit_code": audit.result.returncode,
            "wall_s": round(audit.wall_s, 2),
            "wall_s_per_round": round(audit.wall_s / benchmark.rounds, 3),
            "peak_memory_mb": peak_memory_mb(resource.RUSAGE_CHILDREN),
        }


def _record(benchmark: AuditBenchmark, path: Path) -> None:
    seeds = Seeds(benchmark.seed)
    generator = seeds.generator(Purpose.COHORT)
    devices = device_objects(
        _RandomDevice(index, int(generator.integers(1, _MAX_SAMPLES)), generator)
        for index in range(benchmark.clients)
    )
    with write_record(path) as record:
        transcript = TranscriptWriter(record, benchmark.transcript)
        search = SearchParams(default_max_queries(benchmark.method))
        strategy = PrivateDeltaFL(Fraction(1, 2), Encoding(benchmark.method, search))
        policy = RoundPolicy(max_pivots=MOST_PIVOTS, max_mm_pivots_per_device=Fraction(MOST_PIVOTS))
        masked = MaskedRounds(Sessions(policy, graph=benchmark.graph), observer=transcript)
        state = TrainingState(np.zeros(benchmark.dim, dtype=np.float32))
        for number in Bar(range(1, benchmark.rounds + 1), desc="recording"):
            transcript.begin_round(number, devices.weights)
            cohort = SimulatedCohort(devices, state.round, seeds, masked)
            state, report = strategy.apply(state, cohort)
            transcript.end_round(report.aborted)
        transcript.finish(benchmark.rounds)
        record.keep()
