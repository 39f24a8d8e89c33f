"""The arguments of `deltafl bench net`, and what follows from them; help loads nothing heavy."""

import os
from dataclasses import dataclass
from hashlib import sha256

from deltafl.secagg import ClientId, GraphKind, TrustedKeys
from deltafl.secagg.identity import Identity, generate
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.bench.harness import Report, command
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.settings.config import REMOTE, RunConfig
from deltafl.sim.settings.config_io import build_config


@dataclass(frozen=True, slots=True)
class NetBenchmark:
    """What to measure.

    Half of the devices that vanish do so at the first query, the others when their update is due.
    """

    clients: int = 100
    dim: int = 115_646
    queries: int = 24
    graph: GraphKind = GraphKind.SPARSE
    signed: bool = False
    dropout: float = 0.0
    processes: int = os.cpu_count() or 1
    no_tls: bool = False
    wait: float | None = None
    seed: int = 1

    @property
    def patience(self) -> float:
        """Seconds that the server waits for an answer."""
        usual = 30.0 if self.dropout else 600.0
        return usual if self.wait is None else self.wait

    def config(self) -> RunConfig:
        """The settings of the round, whose devices accept as long a search as is asked for."""
        sums = str(self.queries)
        settings: dict[str, dict[str, object]] = {
            "federation": {"rounds": 1, "cohort_size": self.clients, "devices": REMOTE},
            "quantile": {"max_queries": self.queries, "method": "mm"},
            "privacy": {"graph": str(self.graph), "signed": self.signed, "min_cohort": 5},
            "policy": {"max_pivots": self.queries, "max_mm_pivots_per_device": sums},
            "training": {"device": "cpu"},
            "experiment": {"seed": self.seed},
        }
        return build_config([settings])

    def identity(self, index: int) -> Identity:
        """A device's identity, which both sides of the benchmark work out."""
        seed = sha256(b"deltafl bench net %d %d" % (self.seed, index)).digest()
        return generate(SeededRandomness(seed))

    def directory(self) -> TrustedKeys:
        """The federation's list."""
        each = range(self.clients)
        return TrustedKeys({ClientId(i): self.identity(i).public for i in each})

    def losses(self) -> tuple[list[float], list[int]]:
        """The loss and the weight of each device."""
        generator = Seeds(self.seed).generator(Purpose.COHORT)
        losses = generator.gamma(2.0, 1.0, self.clients)
        return losses.tolist(), generator.integers(1, 200, self.clients).tolist()

    def vanishing(self) -> tuple[frozenset[int], frozenset[int]]:
        """Who vanishes at the first query, and who when an update is due."""
        number = round(self.dropout * self.clients)
        drawn = Seeds(self.seed).generator(Purpose.DROPOUT).permutation(self.clients)[:number]
        gone = [int(index) for index in drawn]
        return frozenset(gone[: number // 2]), frozenset(gone[number // 2 :])


def _measured(benchmark: NetBenchmark) -> Report:
    from deltafl.sim.bench.net import measure

    return measure(benchmark)


add_arguments, main = command(
    NetBenchmark,
    _measured,
    "Measure one round of private Δ-FL with N devices that are connected over loopback: wall clock "
    "and the server's CPU by stage, bytes, and peak memory of the server. The devices are "
    "coroutines in a few processes, which share this machine with the server. Half of the devices "
    "that vanish do so at the first query, the others when their update is due.",
)
