"""`deltafl bench round`: one protocol round without training.

All slots of a round of Algorithm 3 are summed: T − 1 queries of the `mm` search and the update of D
numbers. The first query and the update are tolerant slots, the other queries are whole. Every
message is encoded, sent, decoded and checked. All parties share this process. The benchmark
measures CPU time, which depends less on other load than the wall clock. In a verified search,
devices also check a proof of each sum; that is measured apart (`deltafl bench verify`).

Round trips are counted in sessions of few devices with the same slots, one unsigned and one signed.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import (
    ClientId,
    GraphKind,
    SessionParams,
    Stage,
    Step,
    Vanish,
    ring,
    run_session,
)
from deltafl.secagg.errors import SecAggError
from deltafl.secagg.primitives import PLAIN
from deltafl.secagg.ring import Vector
from deltafl.sim.bench.report import costs, machine, table
from deltafl.sim.bench.sizes import CLIENTS, SLOTS, check_least
from deltafl.sim.bench.stopwatch import Stopwatch
from deltafl.sim.bench.verified_search import VerifyBenchmark, answers_of
from deltafl.sim.bench.verified_search import measure as measure_checks
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.cohort.shared import simulated
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.progress import Bar
from deltafl.sim.record.memory import peak_memory_mb

_FEW: Final = 8  # devices of a session in which round trips are counted


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
        verified: whether devices check the search; only in signed sessions over all pairs.
    """

    clients: int
    dim: int
    slots: int
    graph: GraphKind
    signed: bool
    dropout: float
    seed: int
    simulated: bool = False
    verified: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure one protocol round without training: CPU seconds of a device and of the server, "
        "and bytes, by stage, and the round trips of a round. The first T-1 slots contain queries "
        "of the private quantile, the last slot an update of D numbers."
    )
    parser.add_argument("--clients", type=CLIENTS, default=100, metavar="N", help="devices (100)")
    parser.add_argument(
        "--dim", type=int, default=115_646, metavar="D", help="numbers in the update (115646)"
    )
    parser.add_argument("--slots", type=SLOTS, default=25, metavar="T", help="secure sums (25)")
    parser.add_argument(
        "--graph",
        choices=[str(kind) for kind in GraphKind],
        help="which devices share masks (sparse; complete with --verified)",
    )
    parser.add_argument(
        "--signed",
        action="store_true",
        help="give devices identities and let them agree on the survivors of every sum",
    )
    parser.add_argument(
        "--verified",
        action="store_true",
        help="let devices commit to their answers and check the sums of the queries; implies "
        "--signed and the complete graph",
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
    add_json(parser)
    add_quiet(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark and print what was measured; the exit code."""
    verified = arguments.verified
    graph = arguments.graph or (GraphKind.COMPLETE if verified else GraphKind.SPARSE)
    benchmark = RoundBenchmark(
        clients=arguments.clients,
        dim=arguments.dim,
        slots=arguments.slots,
        graph=GraphKind(graph),
        signed=arguments.signed or verified,
        dropout=arguments.dropout,
        seed=arguments.seed,
        simulated=arguments.simulated,
        verified=verified,
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
    check_least(
        clients=(benchmark.clients, 1),
        slots=(benchmark.slots, 1),
        dim=(benchmark.dim, 1),
        seed=(benchmark.seed, 0),
    )
    if not 0 <= benchmark.dropout < 1:
        raise ValueError(f"dropout={benchmark.dropout} must lie in [0, 1)")
    sessions, params = _session(benchmark)
    generator = Seeds(benchmark.seed).generator(Purpose.DROPOUT)
    ids = [ClientId(index) for index in range(benchmark.clients)]
    inputs = _inputs(benchmark, params, generator)
    gone = generator.permutation(benchmark.clients)[: round(benchmark.dropout * benchmark.clients)]
    vanishing = {
        ids[index]: Vanish(Step(Stage.MASK, int(generator.integers(2)) * (benchmark.slots - 1)))
        for index in gone
    }
    watch = Stopwatch()
    with Bar(total=1, desc="one round"):
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


def num_trips(benchmark: RoundBenchmark) -> int:
    """The round trips of such a round from which nobody drops out, counted in a small session."""
    small = replace(benchmark, clients=_FEW, dim=1, graph=GraphKind.COMPLETE, dropout=0.0)
    sessions, params = _session(small)
    inputs = _inputs(small, params, Seeds(small.seed).generator(Purpose.DROPOUT))
    watch, bindings = Stopwatch(), [b"benchmark"] * small.slots
    run_session(params, inputs, bindings, policy=sessions.policy, observer=watch)
    return watch.num_trips


def _session(benchmark: RoundBenchmark) -> tuple[Sessions, SessionParams]:
    # Small cohorts and long searches are timed too, so these devices accept them.
    policy = RoundPolicy(
        min_honest_tail=0,
        min_search_cohort=0,
        max_pivots=benchmark.slots,
        max_mm_pivots_per_device=Fraction(benchmark.slots),
    )
    sessions = Sessions(policy, graph=benchmark.graph, min_cohort=5, signed=benchmark.signed)
    graph_seed = Seeds(benchmark.seed).digest(Purpose.GRAPH)
    return sessions, sessions.params(_round_config(benchmark), b"", graph_seed)


def _round_config(benchmark: RoundBenchmark) -> RoundConfig:
    return RoundConfig(
        round_index=0,
        cohort_size=benchmark.clients,
        theta=Fraction(1, 2) if benchmark.slots > 1 else Fraction(1),
        method="mm",
        search=SearchParams(benchmark.slots - 1, verified=benchmark.verified),
        update=UpdateParams(),
        update_length=benchmark.dim,
    )


def _inputs(
    benchmark: RoundBenchmark, params: SessionParams, generator: np.random.Generator
) -> dict[ClientId, list[Vector]]:
    """Random vectors; in a verified search real answers, whose sums can be proved."""
    inputs: dict[ClientId, list[Vector]] = {
        ClientId(index): [
            generator.integers(0, 1 << slot.ring_bits, slot.length, dtype=np.uint64)
            for slot in params.slots
        ]
        for index in range(benchmark.clients)
    }
    if benchmark.verified and benchmark.slots > 1:
        answers = answers_of(_round_config(benchmark), generator)
        for vectors, answer in zip(inputs.values(), answers, strict=True):
            vectors[:-1] = [answer] * (benchmark.slots - 1)
    return inputs


def _report(
    benchmark: RoundBenchmark, params: SessionParams, watch: Stopwatch, cpu: float, wall: float
) -> dict[str, object]:
    by_stage = costs(watch, benchmark.clients)
    last = params.slots[-1]
    trips = {
        "unsigned": num_trips(replace(benchmark, signed=False, verified=False)),
        "signed": num_trips(replace(benchmark, signed=True)),
    }
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
        "verified": benchmark.verified,
        "total_cpu_s": round(cpu, 4),
        "wall_s": round(wall, 4),
        "devices_cpu_s": round(watch.total_device_cpu_s(), 4),
        **by_stage,
        "bytes_up_beside_update": round(
            sum(by_stage["bytes_up_per_device"].values())
            - ring.packed_size(last.length, last.ring_bits),
            1,
        ),
        "trips": trips,
        "checks": _checks(benchmark),
        "peak_memory_mb": peak_memory_mb(),
        "machine": machine(),
    }


def _checks(benchmark: RoundBenchmark) -> dict[str, float] | None:
    """What the proofs of a verified search cost a device, for each query; see `verified_search`."""
    if not benchmark.verified or benchmark.slots == 1:
        return None
    return measure_checks(VerifyBenchmark(benchmark.clients, "mm", seed=benchmark.seed))


def _describe(measured: dict[str, object]) -> str:
    lines = [
        f"{measured['clients']} devices, {measured['graph']} graph with {measured['neighbours']} "
        f"neighbours and threshold {measured['threshold']}, "
        f"{'signed' if measured['signed'] else 'unsigned'}"
        f"{', verified search' if measured['verified'] else ''}; {measured['slots']} slots, "
        f"{measured['dim']} numbers of {measured['ring_bits']} bits; "
        f"{measured['dropout']:.0%} vanish"
        f"{'; agreements computed once for both ends' if measured['simulated'] else ''}",
        f"all parties {measured['total_cpu_s']} s CPU, {measured['wall_s']} s wall, "
        f"peak memory {measured['peak_memory_mb']} MB",
        "",
        *table(measured),
        "",
        f"kB up per device beside the masked update: {_kilobytes(measured)}",
        f"round trips with these sums: {_counted(measured['trips'])}",
    ]
    checks = measured["checks"]
    if isinstance(checks, dict):
        lines.append(
            f"beside these, a device takes {checks['check_cpu_ms']} ms to check each query's sum, "
            f"whose proof has {checks['bytes_down']} bytes; of the above, "
            f"{checks['commit_cpu_ms']} ms and {checks['bytes_up']} bytes up are for a commitment"
        )
    return "\n".join(lines)


def _kilobytes(measured: Mapping[str, object]) -> str:
    return f"{float(str(measured['bytes_up_beside_update'])) / 1e3:.2f}"


def _counted(trips: object) -> str:
    if not isinstance(trips, dict):
        raise TypeError("not what measure returns")
    return ", ".join(f"{number} {kind}" for kind, number in trips.items())
