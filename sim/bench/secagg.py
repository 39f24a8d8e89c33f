"""`deltafl bench secagg`: the cost of one secure sum for devices and server.

Every message is encoded, sent, decoded and checked; all parties share this process. The benchmark
measures CPU time, which depends less on other load than the wall clock. It compares the sum with
the plain one before it reports anything.

With `--peer flower`, the secure aggregation of the package flwr then sums the same amount of
numbers over as many devices, with the same neighbours, threshold and drop-outs.
"""

import time
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
    Stage,
    Step,
    ThreatModel,
    Vanish,
    run_session,
)
from deltafl.sim.bench.harness import Report, command, timed
from deltafl.sim.bench.peers.flower_sums import measure as measure_flower
from deltafl.sim.bench.session import Stopwatch
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.errors import RunError

_POLICY: Final = DevicePolicy(Adversary.NONCOLLUDING, dropout_rate=0.9, min_cohort=2)
_THREAT: Final = ThreatModel(adversary=Adversary.CURIOUS)
_RING_BITS: Final = 32
_DIFFERENT_VECTORS: Final = 8
_RAW_CHUNK: Final = 1 << 16
_RAW_SECONDS: Final = 0.1
_RAW_REPETITIONS: Final = 5


@dataclass(frozen=True, slots=True)
class SessionBenchmark:
    """What to measure; with `neighbours`, the threshold is a majority of them."""

    clients: int = 100
    dim: int = 100_000
    graph: GraphKind = GraphKind.SPARSE
    neighbours: int | None = None
    signed: bool = False
    dropout: float = 0.0
    seed: int = 1
    peer: str | None = None

    def __post_init__(self) -> None:
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
        params = SessionParams.for_threat(
            self.clients,
            (SlotSpec("benchmark", self.dim, _RING_BITS),),
            threat=_THREAT,
            graph=self.graph if self.neighbours is None else GraphKind.COMPLETE,
            signed=self.signed,
            graph_seed=Seeds(self.seed).digest(Purpose.GRAPH),
            context=bytes(32),
        )
        if self.neighbours is None:
            return params
        return replace(
            params,
            degree=self.neighbours,
            threshold=self.neighbours // 2 + 1,
            min_cohort=max(params.min_cohort, self.clients - _THREAT.num_dropped(self.clients)),
        )


def measure(benchmark: SessionBenchmark) -> Report:
    """Run one session and return what it cost.

    Raises:
        UsageError: no parameters for so few devices.
        PeerError: parameters beyond what any device accepts.
        SessionAborted: too many vanished.
        RunError: the sum is wrong.
    """
    params = benchmark.params()
    generator = Seeds(benchmark.seed).generator(Purpose.DROPOUT)
    # a few in turn: the benchmark's memory is the protocol's
    different = [
        generator.integers(0, 1 << _RING_BITS, benchmark.dim, np.uint32)
        for _ in range(min(_DIFFERENT_VECTORS, benchmark.clients))
    ]
    inputs = {ClientId(i): [different[i % len(different)]] for i in range(benchmark.clients)}
    gone = generator.permutation(benchmark.clients)[: benchmark.num_dropped].tolist()
    vanishing = {ClientId(index): Vanish(Step(Stage.MASK)) for index in gone}
    watch, raw = Stopwatch(), [_raw_seconds_per_byte()]
    played = timed(
        lambda: run_session(
            params, inputs, [b"benchmark"], vanishing=vanishing, policy=_POLICY, observer=watch
        )
    )
    raw.append(_raw_seconds_per_byte())
    (result,) = played.result
    expected = np.zeros(benchmark.dim, dtype=np.uint32)
    for client in result.contributors:
        expected += inputs[client][0]
    if not np.array_equal(expected, result.vector):
        raise RunError("the sum is not that of the contributors' vectors: this is a bug")
    sent = watch.bytes_up(benchmark.clients)
    measured = {
        **asdict(benchmark),
        "dropped": benchmark.num_dropped,
        **watch.report(params, played),
        "upload": {"bytes": round(sent, 1), "over_packed": round(sent / params.longest_vector, 5)},
        "masking": _masking(params, watch, median(raw)),
    }
    return measured | (_beside_flower(benchmark, measured) if benchmark.peer else {})


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
    num_masks = min(params.degree, params.num_invited - 1) + 1
    size = num_masks * spec.length * _RING_BITS // 8
    spent = watch.device_cpu_s(Stage.MASK)
    return {
        "masks_per_device": num_masks,
        "raw_keystream_and_add_gb_per_s": round(1e-9 / raw, 3),
        "reached_gb_per_s": round(1e-9 * size / spent, 3),
        "share_of_raw": round(raw * size / spent, 4),
    }


def _beside_flower(benchmark: SessionBenchmark, measured: Report) -> Report:
    """What the peer costs, and how many times more that is."""
    params = benchmark.params()
    peer = measure_flower(
        clients=benchmark.clients,
        dim=benchmark.dim,
        neighbours=None if params.is_complete else params.degree,
        threshold=params.threshold,
        dropped=benchmark.num_dropped,
        seed=benchmark.seed,
    )
    costs = {**peer, "device_cpu_s": sum(peer["device_cpu_s"].values())}
    compared = ("total_cpu_s", "device_cpu_s", "server_cpu_s")
    ratio = {name: round(costs[name] / float(str(measured[name])), 2) for name in compared}
    return {"flower": peer, "ratio": ratio}


add_arguments, main = command(
    SessionBenchmark,
    measure,
    "Measure one secure sum over N devices of D numbers each: CPU seconds of a device (median) and "
    "of the server, and bytes, by stage; peak memory; and the speed of masking compared with plain "
    "ChaCha20 plus addition, measured in the same run. Devices that drop out do so before they "
    "send their masked vector.",
)
