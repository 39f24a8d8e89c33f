"""`deltafl bench secagg`: the cost of one secure sum for devices and server.

Every message is encoded, sent, decoded and checked; all parties share this process. The benchmark
measures CPU time, which depends less on other load than the wall clock. It compares the sum with
the plain one before it reports anything.

With `--peer flower`, the secure aggregation of the package flwr then sums the same amount of
numbers over as many devices, with the same neighbours, threshold and drop-outs.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from deltafl.secagg import (
    Adversary,
    ClientId,
    DevicePolicy,
    GraphKind,
    SessionParams,
    SlotSpec,
    SlotSum,
    Stage,
    Step,
    ThreatModel,
    Vanish,
    ring,
    run_session,
)
from deltafl.secagg.errors import SecAggError
from deltafl.secagg.ring import Vector
from deltafl.sim.bench.flower_peer import FlowerCost
from deltafl.sim.bench.flower_peer import measure as measure_flower
from deltafl.sim.bench.report import costs, machine, table
from deltafl.sim.bench.sizes import CLIENTS, check_least
from deltafl.sim.bench.stopwatch import Stopwatch
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.progress import Bar
from deltafl.sim.record.memory import peak_memory_mb

_POLICY: Final = DevicePolicy(
    min_cohort=2,
    min_threshold=2,
    min_threshold_share=0,
    sparse_if_active=True,
    colluding_rate=0.0,
    dropout_rate=0.9,
)
_DIFFERENT_INPUTS: Final = 8
_RAW_CHUNK: Final = 1 << 16
_RAW_SECONDS: Final = 0.1
_RAW_REPETITIONS: Final = 5


@dataclass(frozen=True, slots=True)
class SessionBenchmark:
    """What to measure.

    Attributes:
        clients: devices.
        dim: numbers in a device's vector, D.
        ring_bits: of each number.
        graph: who shares masks with whom.
        dropout: share of the devices that vanish before their masked vector.
        threat: what degree and threshold are computed from.
        signed: whether devices have identities and agree on the survivors.
        neighbours: degree of the sparse graph; None computes it.
        threshold: None computes it; with a degree given, a majority of the neighbours.
        seed: of inputs and drop-outs; keys come from the operating system.
    """

    clients: int
    dim: int
    ring_bits: int
    graph: GraphKind
    dropout: float
    threat: ThreatModel
    signed: bool
    neighbours: int | None
    threshold: int | None
    seed: int

    def __post_init__(self) -> None:
        check_least(clients=(self.clients, 2), dim=(self.dim, 1), seed=(self.seed, 0))
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} is not in [0, 1)")
        if self.neighbours is not None and self.graph is GraphKind.COMPLETE:
            raise ValueError(
                f"neighbours={self.neighbours} with the complete graph: take --graph sparse"
            )

    @property
    def num_dropped(self) -> int:
        """Devices that vanish."""
        return round(self.dropout * self.clients)

    def params(self) -> SessionParams:
        """The session's parameters.

        Raises:
            UsageError: there are none for so few devices.
        """
        slots = (SlotSpec("benchmark", self.dim, self.ring_bits),)
        graph_seed = Seeds(self.seed).digest(Purpose.GRAPH)
        if self.neighbours is None:
            params = SessionParams.for_threat(
                self.clients,
                slots,
                threat=self.threat,
                graph=self.graph,
                signed=self.signed,
                graph_seed=graph_seed,
                context=bytes(32),
            )
        else:
            least = self.neighbours // 2 + 1
            params = SessionParams(
                slots=slots,
                num_invited=self.clients,
                degree=self.neighbours,
                threshold=least,
                min_cohort=max(
                    least,
                    self.threat.num_colluding(self.clients) + 2,
                    self.clients - self.threat.num_dropped(self.clients),
                ),
                graph_seed=graph_seed,
                context=bytes(32),
                signed=self.signed or self.threat.adversary is Adversary.ACTIVE,
            )
        if self.threshold is not None:
            least = max(params.min_cohort, self.threshold)
            params = replace(params, threshold=self.threshold, min_cohort=least)
        return params


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure one secure sum over N devices of D numbers each: CPU seconds of a device "
        "(median) and of the server, and bytes, by stage; peak memory; and the speed of masking "
        "compared with plain ChaCha20 plus addition, measured in the same run."
    )
    parser.add_argument("--clients", type=CLIENTS, default=100, metavar="N", help="devices (100)")
    parser.add_argument(
        "--dim", type=int, default=100_000, metavar="D", help="numbers per device (100000)"
    )
    parser.add_argument(
        "--graph",
        choices=[str(kind) for kind in GraphKind],
        default=str(GraphKind.SPARSE),
        help="which devices share masks (sparse)",
    )
    parser.add_argument(
        "--dropout",
        type=float,
        default=0.0,
        metavar="P",
        help="share of the devices that drop out before they send their masked vector (0)",
    )
    parser.add_argument(
        "--ring-bits", type=int, default=32, metavar="B", help="bits per number (32)"
    )
    parser.add_argument(
        "--adversary",
        choices=[str(kind) for kind in Adversary],
        default=str(Adversary.CURIOUS),
        help="the server to defend against; active implies --signed and a larger threshold "
        "(curious)",
    )
    parser.add_argument(
        "--signed",
        action="store_true",
        help="use identities and the consistency round against a curious server too",
    )
    parser.add_argument(
        "--colluding", type=float, default=0.1, metavar="G", help="share of colluding devices (0.1)"
    )
    parser.add_argument(
        "--expected-dropout",
        type=float,
        default=0.1,
        metavar="P",
        help="share of devices that may drop out, from which degree and threshold are computed "
        "(0.1)",
    )
    parser.add_argument(
        "--neighbours",
        type=int,
        metavar="K",
        help="degree of the sparse graph, instead of the computed one; for comparisons only",
    )
    parser.add_argument(
        "--threshold", type=int, metavar="T", help="threshold, instead of the computed one"
    )
    parser.add_argument(
        "--peer",
        choices=["flower"],
        help="also measure SecAgg(+) of the package flwr (extra `bench`) and print the ratios",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="seed of inputs and drop-outs (1)"
    )
    add_json(parser)
    add_quiet(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark and print what was measured; the exit code."""
    try:
        benchmark = SessionBenchmark(
            clients=arguments.clients,
            dim=arguments.dim,
            ring_bits=arguments.ring_bits,
            graph=GraphKind(arguments.graph),
            dropout=arguments.dropout,
            threat=ThreatModel(
                arguments.colluding, arguments.expected_dropout, Adversary(arguments.adversary)
            ),
            signed=arguments.signed,
            neighbours=arguments.neighbours,
            threshold=arguments.threshold,
            seed=arguments.seed,
        )
        measured = measure(benchmark)
        if arguments.peer is not None:
            measured |= _beside_flower(benchmark, measured)
    except (SecAggError, UserError, ValueError) as error:
        print(f"deltafl: {error}", file=sys.stderr)
        return 2
    print(json.dumps(measured, indent=2) if arguments.json else _describe(measured))
    return 0


def measure(benchmark: SessionBenchmark) -> dict[str, object]:
    """Run one session and return what it cost.

    Raises:
        UsageError: no parameters for so few devices.
        PeerError: parameters beyond what any device accepts.
        SessionAborted: too many vanished.
        RunError: the sum is wrong.
    """
    params = benchmark.params()
    generator = Seeds(benchmark.seed).generator(Purpose.DROPOUT)
    ids = [ClientId(index) for index in range(benchmark.clients)]
    inputs = _inputs(params.slots[0], ids, generator)
    gone = generator.permutation(benchmark.clients)[: benchmark.num_dropped].tolist()
    vanishing = {ids[index]: Vanish(Step(Stage.MASK)) for index in gone}
    watch = Stopwatch()
    with Bar(total=1, desc="one session"):
        raw = [_raw_seconds_per_byte()]
        cpu, wall = time.process_time(), time.perf_counter()
        (result,) = run_session(
            params, inputs, [b"benchmark"], vanishing=vanishing, policy=_POLICY, observer=watch
        )
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        raw.append(_raw_seconds_per_byte())
    _check_sum(params.slots[0], result, inputs)
    return {
        "clients": benchmark.clients,
        "dim": benchmark.dim,
        "ring_bits": benchmark.ring_bits,
        "graph": str(benchmark.graph),
        "adversary": str(benchmark.threat.adversary),
        "signed": params.signed,
        "neighbours": min(params.degree, params.num_invited - 1),
        "threshold": params.threshold,
        "dropped": benchmark.num_dropped,
        "total_cpu_s": round(cpu, 4),
        "wall_s": round(wall, 4),
        "devices_cpu_s": round(watch.total_device_cpu_s(), 4),
        "device_total_cpu_s": round(watch.median_total_device_cpu_s(), 6),
        "server_total_cpu_s": round(sum(watch.server_cpu_s.values()), 4),
        **costs(watch, benchmark.clients),
        "upload": _upload(params, watch, benchmark),
        "masking": _masking(params, watch, median(raw)),
        "peak_memory_mb": peak_memory_mb(),
        "machine": machine(),
    }


def _inputs(
    slot: SlotSpec, ids: Sequence[ClientId], generator: np.random.Generator
) -> Mapping[ClientId, list[Vector]]:
    """A vector for every device, a few in turn: the benchmark's memory is the protocol's."""
    highest = 2**slot.ring_bits - 1
    vectors = [
        ring.to_words(
            generator.integers(0, highest, slot.length, np.uint64, endpoint=True), slot.ring_bits
        )
        for _ in range(min(_DIFFERENT_INPUTS, len(ids)))
    ]
    return {client: [vectors[i % len(vectors)]] for i, client in enumerate(ids)}


def _check_sum(
    slot: SlotSpec, result: SlotSum, inputs: Mapping[ClientId, Sequence[Vector]]
) -> None:
    expected = np.zeros(slot.length, dtype=np.uint64)
    for client in result.contributors:
        expected += inputs[client][0]
    expected &= np.uint64(2**slot.ring_bits - 1)
    if not np.array_equal(expected, result.vector):
        raise RunError("the sum is not that of the contributors' vectors: this is a bug")


def _raw_seconds_per_byte() -> float:
    """CPU time of ChaCha20 keystream and of adding it, for one byte, all in the cache."""
    zeros, buffer = bytes(_RAW_CHUNK), bytearray(_RAW_CHUNK)
    total = np.zeros(_RAW_CHUNK // 4, dtype=np.uint32)
    mask = np.frombuffer(buffer, dtype=np.uint32)
    stream = Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), mode=None).encryptor()
    times = []
    for _ in range(_RAW_REPETITIONS):
        chunks, start = 0, time.process_time()
        while (spent := time.process_time() - start) < _RAW_SECONDS / _RAW_REPETITIONS:
            for _ in range(100):
                stream.update_into(zeros, buffer)
                np.add(total, mask, out=total)
            chunks += 100
        times.append(spent / (chunks * _RAW_CHUNK))
    return median(times)


def _masking(params: SessionParams, watch: Stopwatch, raw: float) -> dict[str, float]:
    """What a device's masking costs, and the least that its masks could cost."""
    spec = params.slots[0]
    word = 4 if spec.ring_bits <= 32 else 8
    num_masks = min(params.degree, params.num_invited - 1) + 1
    least = raw * num_masks * spec.length * word
    spent = watch.median_device_cpu_s(Stage.MASK)
    return {
        "masks_per_device": num_masks,
        "raw_keystream_and_add_gb_per_s": round(1e-9 / raw, 3),
        "reached_gb_per_s": round(1e-9 * num_masks * spec.length * word / spent, 3),
        "share_of_raw": round(least / spent, 4),
    }


def _upload(
    params: SessionParams, watch: Stopwatch, benchmark: SessionBenchmark
) -> dict[str, float]:
    """All bytes that a device sends, where none vanishes, over those of its packed vector."""
    sent = sum(watch.num_bytes(stage, sent=False) for stage in Stage) / benchmark.clients
    return {"bytes": round(sent, 1), "over_packed": round(sent / params.longest_vector, 5)}


def _beside_flower(
    benchmark: SessionBenchmark, measured: Mapping[str, object]
) -> dict[str, object]:
    params = benchmark.params()
    complete = benchmark.graph is GraphKind.COMPLETE
    peer = measure_flower(
        clients=benchmark.clients,
        dim=benchmark.dim,
        neighbours=None if complete else params.degree,
        threshold=params.threshold,
        dropped=benchmark.num_dropped,
        seed=benchmark.seed,
    )
    return {"flower": asdict(peer), "ratio": _ratios(measured, peer)}


def _ratios(measured: Mapping[str, object], peer: FlowerCost) -> dict[str, float]:
    """How many times more the peer costs."""
    own = {key: float(str(measured[key])) for key in _OWN_TOTALS}
    peer_device = sum(peer.device_cpu_s.values())
    return {
        "total_cpu": round(peer.total_cpu_s / own["total_cpu_s"], 2),
        "device_cpu": round(peer_device / own["device_total_cpu_s"], 2),
        "server_cpu": round(peer.server_cpu_s / own["server_total_cpu_s"], 2),
    }


_OWN_TOTALS: Final = ("total_cpu_s", "device_total_cpu_s", "server_total_cpu_s")


def _describe(measured: Mapping[str, object]) -> str:
    lines = [
        f"{measured['clients']} devices, {measured['graph']} graph with {measured['neighbours']} "
        f"neighbours and threshold {measured['threshold']}, {measured['adversary']} server"
        f"{', signed' if measured['signed'] else ''}; {measured['dim']} numbers of "
        f"{measured['ring_bits']} bits; {measured['dropped']} vanish",
        f"all parties {measured['total_cpu_s']} s CPU, {measured['wall_s']} s wall, peak memory "
        f"{measured['peak_memory_mb']} MB; a device {measured['device_total_cpu_s']} s (median), "
        f"the server {measured['server_total_cpu_s']} s",
        "",
        *table(dict(measured)),
        "",
    ]
    for key in ("upload", "masking", "flower", "ratio"):
        values = measured.get(key)
        if isinstance(values, Mapping):
            lines.append(f"{key}: " + ", ".join(f"{name} {v}" for name, v in values.items()))
    return "\n".join(lines)
