"""`deltafl bench audit`: record rounds of simulated devices, and measure `deltafl audit` on them.

Devices have random losses and updates instead of training; every message is real. The audit runs in
a separate process, whose time and peak memory are measured.
"""

import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from deltafl.sim.bench.audit_flags import AuditBenchmark
from deltafl.sim.bench.harness import Report, timed
from deltafl.sim.bench.round import made_up_devices
from deltafl.sim.cohort.seeds import Seeds
from deltafl.sim.cohort.simulated import SimulatedCohort
from deltafl.sim.progress import Bar
from deltafl.sim.record.memory import peak_memory_mb
from deltafl.sim.record.record import write_record
from deltafl.sim.record.transcript import TranscriptWriter
from deltafl.sim.run.algorithms import build_rounds, strategy_of


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
    config, devices = benchmark.each.config(), made_up_devices(benchmark.each)
    strategy, seeds = strategy_of(config), Seeds(benchmark.seed)
    with write_record(path) as record:
        transcript = TranscriptWriter(record, benchmark.transcript)
        rounds = build_rounds(config, transcript)
        state = strategy.init(np.zeros(benchmark.dim, dtype=np.float32), benchmark.clients)
        for number in Bar(range(1, benchmark.rounds + 1), desc="recording"):
            transcript.begin_round(number, devices.weights)
            cohort = SimulatedCohort(devices, state.round, seeds, rounds)
            state, report = strategy.apply(state, cohort)
            transcript.end_round(getattr(report, "aborted", None))
        transcript.finish(benchmark.rounds)
        record.keep()
