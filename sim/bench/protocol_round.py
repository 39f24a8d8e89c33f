"""`deltafl bench round`: one protocol round without training.

All slots of a round of Algorithm 3 are summed: T − 1 queries of the `mm` search and the update of D
numbers. Every message is encoded, sent, decoded and checked. All parties share this process. The
benchmark measures CPU time, which depends less on other load than the wall clock.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from tqdm import tqdm

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import ClientId, GraphKind, SessionParams, Stage, Step, Vanish, run_session
from deltafl.secagg.errors import SecAggError
from deltafl.secagg.primitives import PLAIN
from deltafl.secagg.ring import Vector
from deltafl.sim.bench.report import costs, machine, table
from deltafl.sim.bench.stopwatch import Stopwatch
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.cohort.shared import simulated
from deltafl.sim.record.memory import peak_memory_mb


@dataclass(frozen=True, slots=True)
class RoundBenchmark:
    """What to measure.

    Attributes:
        clients: devices.
        dim: numbers in the update, D.
        slots: sums in the round, T.
        graph: who shares masks with whom.
        signed: whether devices sign their keys and the survivors of every slot.
        dropout: share of the devices that vanish, before their vector of the first or last slot.
        seed: of inputs and drop-outs; keys come from the operating system.
        simulated: whether devices share what simulations compute once for both ends of a pair.
    """

    clients: int
    dim: int
    slots: int
    graph: GraphKind
    signed: bool
    dropout: float
    seed: int
    simulated: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure one protocol round without training: CPU seconds of a device and of the server, "
        "and bytes, by stage. The first T-1 slots contain queries of the private quantile, the "
        "last slot an update of D numbers."
    )
    parser.add_argument("--clients", type=int, default=100, metavar="N", help="devices (100)")
    parser.add_argument(
        "--dim", type=int, default=115_646, metavar="D", help="numbers in the update (115646)"
    )
    parser.add_argument("--slots", type=int, default=25, metavar="T", help="secure sums (25)")
    parser.add_argument(
        "--graph",
        choices=[str(kind) for kind in GraphKind],
        default=str(GraphKind.SPARSE),
        help="which devices share masks (sparse)",
    )
    parser.add_argument(
        "--signed",
        action="store_true",
        help="give devices identities and let them agree on the survivors of every sum",
    )
    parser.add_argument(
        "--dropout",
        type=float,
        default=0.0,
        metavar="P",
        help="share of the devices that drop out before they send their vector of the first or of "
        "the last slot (0); a device lost in between would end the search",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="seed of inputs and drop-outs (1)"
    )
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="compute what two devices share only once for both, as simulations do: the bytes stay "
        "the same, but the times are not those of a single device",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark and print what was measured; the exit code."""
    benchmark = RoundBenchmark(
        clients=arguments.clients,
        dim=arguments.dim,
        slots=arguments.slots,
        graph=GraphKind(arguments.graph),
        signed=arguments.signed,
        dropout=arguments.dropout,
        seed=arguments.seed,
        simulated=arguments.simulated,
    )
    try:
        measured = measure(benchmark)
    except (SecAggError, ProtocolError, ValueError) as error:
        print(f"deltafl: {error}", file=sys.stderr)
        return 2
    print(json.dumps(measured, indent=2) if arguments.json else _describe(measured))
    return 0


def measure(benchmark: RoundBenchmark) -> dict[str, object]:
    """Run one round and return what it cost.

    Raises:
        ValueError: an argument is out of its range.
        SecAggError: no session withstands the threat with so few devices, or too many vanished.
    """
    if min(benchmark.clients, benchmark.slots, benchmark.dim) < 1:
        raise ValueError(
            f"clients={benchmark.clients}, slots={benchmark.slots} and dim={benchmark.dim} must "
            f"be at least 1"
        )
    if not 0 <= benchmark.dropout < 1 or benchmark.seed < 0:
        raise ValueError(
            f"dropout={benchmark.dropout} must lie in [0, 1) and seed={benchmark.seed} not be "
            "negative"
        )
    seeds = Seeds(benchmark.seed)
    config = _round_config(benchmark)
    sessions = Sessions(graph=benchmark.graph, signed=benchmark.signed)
    params = sessions.params(config, b"", seeds.digest(Purpose.GRAPH))
    generator = seeds.generator(Purpose.DROPOUT)
    ids = [ClientId(index) for index in range(benchmark.clients)]
    inputs = {client: _inputs(params, generator) for client in ids}
    gone = generator.permutation(benchmark.clients)[: round(benchmark.dropout * benchmark.clients)]
    vanishing = {
        ids[index]: Vanish(Step(Stage.MASK, int(generator.integers(2)) * (benchmark.slots - 1)))
        for index in gone
    }
    watch = Stopwatch()
    with tqdm(total=1, desc="one round", file=sys.stderr, leave=False, disable=None):
        cpu, wall = time.process_time(), time.perf_counter()
        run_session(
            params,
            inputs,
            [b"benchmark"] * benchmark.slots,
            vanishing=vanishing,
            policy=sessions.policy,
            observer=watch,
            primitives=simulated() if benchmark.simulated else PLAIN,
        )
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return _report(benchmark, params, watch, cpu, wall)


def _round_config(benchmark: RoundBenchmark) -> RoundConfig:
    return RoundConfig(
        round_index=0,
        cohort_size=benchmark.clients,
        theta=Fraction(1, 2) if benchmark.slots > 1 else Fraction(1),
        method="mm",
        search=SearchParams(benchmark.slots - 1),
        update=UpdateParams(),
        update_length=benchmark.dim,
    )


def _inputs(params: SessionParams, generator: np.random.Generator) -> list[Vector]:
    return [
        generator.integers(0, 1 << slot.ring_bits, slot.length, dtype=np.uint64)
        for slot in params.slots
    ]


def _report(
    benchmark: RoundBenchmark, params: SessionParams, watch: Stopwatch, cpu: float, wall: float
) -> dict[str, object]:
    return {
        "clients": benchmark.clients,
        "dim": benchmark.dim,
        "slots": benchmark.slots,
        "graph": str(benchmark.graph),
        "signed": params.signed,
        "neighbours": params.degree,
        "threshold": params.threshold,
        "ring_bits": params.slots[-1].ring_bits,
        "dropout": benchmark.dropout,
        "simulated": benchmark.simulated,
        "total_cpu_s": round(cpu, 4),
        "wall_s": round(wall, 4),
        "devices_cpu_s": round(watch.total_device_cpu_s(), 4),
        **costs(watch, benchmark.clients, signed=params.signed),
        "peak_memory_mb": peak_memory_mb(),
        "machine": machine(),
    }


def _describe(measured: dict[str, object]) -> str:
    lines = [
        f"{measured['clients']} devices, {measured['graph']} graph with {measured['neighbours']} "
        f"neighbours and threshold {measured['threshold']}, "
        f"{'signed' if measured['signed'] else 'unsigned'}; {measured['slots']} slots, "
        f"{measured['dim']} numbers of {measured['ring_bits']} bits; "
        f"{measured['dropout']:.0%} vanish"
        f"{'; agreements computed once for both ends' if measured['simulated'] else ''}",
        f"all parties {measured['total_cpu_s']} s CPU, {measured['wall_s']} s wall, "
        f"peak memory {measured['peak_memory_mb']} MB",
        "",
        *table(measured),
    ]
    return "\n".join(lines)
