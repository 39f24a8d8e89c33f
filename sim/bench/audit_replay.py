"""`deltafl bench audit`: record rounds of simulated devices, and measure `deltafl audit` on them.

Devices have random losses and updates instead of training; every message is real. The audit runs in
a separate process, whose time and peak memory are measured.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.private_delta_fl import Encoding, PrivateDeltaFL
from deltafl.fl.vectors import Vector
from deltafl.protocol.quantile.registry import default_max_queries
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import GraphKind, SecAggError
from deltafl.sim.bench.report import machine
from deltafl.sim.bench.sizes import CLIENTS, MANY, check_least
from deltafl.sim.cohort.devices import device_objects
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.cohort.simulated import SimulatedCohort
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.progress import Bar
from deltafl.sim.record.memory import peak_memory_of_children_mb
from deltafl.sim.record.transcript import TranscriptWriter

_MAX_SAMPLES = 400
_UPDATE_SCALE = 0.01


@dataclass(frozen=True, slots=True)
class AuditBenchmark:
    """One measurement.

    Attributes:
        clients: devices in a round.
        dim: numbers in the update.
        rounds: rounds in the transcript.
        mode: "headers", "full" or "every=N".
        method: quantile method of the search.
        graph: who shares masks with whom.
        seed: of losses, weights and updates; keys come from the operating system.
    """

    clients: int
    dim: int
    rounds: int
    mode: str
    method: str
    graph: GraphKind
    seed: int


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Record rounds of simulated devices that do not train, audit the transcript, and print the "
        "cost: total seconds, seconds per round, and peak memory."
    )
    parser.add_argument("--clients", type=CLIENTS, default=100, metavar="N", help="devices (100)")
    parser.add_argument(
        "--dim", type=int, default=115_646, metavar="D", help="numbers in the update (115646)"
    )
    parser.add_argument("--rounds", type=MANY, default=1, metavar="R", help="rounds (1)")
    parser.add_argument(
        "--transcript", default="full", metavar="full|every=N|headers", help="what to record (full)"
    )
    parser.add_argument("--method", default="mm", metavar="NAME", help="quantile method (mm)")
    parser.add_argument(
        "--graph",
        choices=[str(kind) for kind in GraphKind],
        default=str(GraphKind.SPARSE),
        help="which devices share masks (sparse)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="seed of losses and updates (1)"
    )
    add_json(parser)
    add_quiet(parser)


def main(options: argparse.Namespace) -> int:
    """Run the benchmark and print what was measured; the exit code."""
    benchmark = AuditBenchmark(
        clients=options.clients,
        dim=options.dim,
        rounds=options.rounds,
        mode=options.transcript,
        method=options.method,
        graph=GraphKind(options.graph),
        seed=options.seed,
    )
    try:
        measured = measure(benchmark)
    except (SecAggError, ValueError) as error:
        print(f"deltafl: {error}", file=sys.stderr)
        return 2
    print(json.dumps(measured, indent=2) if options.json else _describe(measured))
    return 0


def measure(benchmark: AuditBenchmark) -> dict[str, object]:
    """Record, audit, and return what the audit cost.

    Raises:
        ValueError: an argument is out of its range.
        SecAggError: no session withstands the threat with so few devices.
        RuntimeError: the audit did not run.
    """
    check_least(
        clients=(benchmark.clients, 1), dim=(benchmark.dim, 1), rounds=(benchmark.rounds, 1)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "transcript.bin"
        _record(benchmark, path)
        command = [sys.executable, "-m", "deltafl", "audit", str(path), "--json"]
        start = time.perf_counter()
        audited = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - our own
        wall = time.perf_counter() - start
        if audited.returncode not in (0, 1):
            raise RuntimeError(audited.stderr.decode())
        report = json.loads(audited.stdout)
        return {
            "clients": benchmark.clients,
            "dim": benchmark.dim,
            "rounds": benchmark.rounds,
            "transcript": benchmark.mode,
            "method": benchmark.method,
            "transcript_mb": round(path.stat().st_size / 1e6, 1),
            "records": report["records"],
            "sums_released": report["sums_released"],
            "sums_replayed": report["sums_replayed"],
            "findings": [finding["rule"] for finding in report["findings"]],
            "exit_code": audited.returncode,
            "audit_wall_s": round(wall, 2),
            "wall_s_per_round": round(wall / benchmark.rounds, 3),
            "peak_memory_mb": peak_memory_of_children_mb(),
            "machine": machine(),
        }


def _record(benchmark: AuditBenchmark, path: Path) -> None:
    seeds = Seeds(benchmark.seed)
    generator = seeds.generator(Purpose.COHORT)
    devices = device_objects(
        _RandomDevice(index, int(generator.integers(1, _MAX_SAMPLES)), generator)
        for index in range(benchmark.clients)
    )
    with TranscriptWriter(path, benchmark.mode) as transcript:
        search = SearchParams(default_max_queries(benchmark.method))
        strategy = PrivateDeltaFL(Fraction(1, 2), Encoding(benchmark.method, search))
        masked = MaskedRounds(Sessions(graph=benchmark.graph), observer=transcript)
        state = TrainingState(np.zeros(benchmark.dim, dtype=np.float32))
        rounds = range(1, benchmark.rounds + 1)
        for number in Bar(rounds, desc="recording"):
            transcript.begin_round(number, devices.weights)
            cohort = SimulatedCohort(devices, state.round, seeds, masked)
            state, report = strategy.apply(state, cohort)
            transcript.end_round(report.aborted)
        transcript.finish(benchmark.rounds)
        transcript.flush()


def _describe(measured: dict[str, object]) -> str:
    return (
        f"{measured['rounds']} rounds of {measured['clients']} devices, {measured['dim']} numbers, "
        f"{measured['method']}, transcript {measured['transcript']}: {measured['transcript_mb']} "
        f"MB, {measured['records']} records\n"
        f"{measured['sums_replayed']} of {measured['sums_released']} sums computed again\n"
        f"audit {measured['audit_wall_s']} s wall ({measured['wall_s_per_round']} s a round), peak "
        f"memory {measured['peak_memory_mb']} MB"
    )
