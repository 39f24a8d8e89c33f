"""The arguments of `deltafl bench audit`; nothing heavy is loaded for its help."""

from dataclasses import dataclass

from deltafl.secagg import GraphKind
from deltafl.sim.bench.harness import Report, command


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


def _measured(benchmark: AuditBenchmark) -> Report:
    from deltafl.sim.bench.audit import measure

    return measure(benchmark)


add_arguments, main = command(
    AuditBenchmark,
    _measured,
    "Record rounds of simulated devices that do not train, audit the transcript, and print the "
    "cost: total seconds, seconds per round, and peak memory.",
)
