"""The arguments of `deltafl bench audit`; nothing heavy is loaded for its help."""

from dataclasses import dataclass

from deltafl.secagg import GraphKind
from deltafl.sim.bench.harness import command
from deltafl.sim.bench.round_flags import RoundBenchmark


@dataclass(frozen=True, slots=True)
class AuditBenchmark:
    """What to measure."""

    clients: int = 100
    dim: int = 115_646
    rounds: int = 1
    transcript: str = "full"
    method: str = "mm"
    graph: GraphKind = GraphKind.SPARSE
    seed: int = 1

    @property
    def each(self) -> RoundBenchmark:
        """Its rounds, whose searches are as long as they need to be."""
        return RoundBenchmark(
            self.clients, self.dim, self.method, queries=0, graph=self.graph, seed=self.seed
        )


add_arguments, main = command(
    AuditBenchmark,
    "deltafl.sim.bench.audit:measure",
    "Record rounds of simulated devices that do not train, audit the transcript, and print the "
    "cost: total seconds, seconds per round, and peak memory.",
)
