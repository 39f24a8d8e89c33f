"""`deltafl bench round`: one protocol round without training.

All slots of a round of Algorithm 3 are summed: T − 1 queries of the `mm` search and the update of D
numbers. The first query and the update are tolerant slots, the other queries are whole. Every
message is encoded, sent, decoded and checked. All parties share this process. The benchmark
measures CPU time, which depends less on other load than the wall clock. What a verified search adds
is measured apart (`deltafl bench votes`).
"""

from dataclasses import asdict, dataclass
from fractions import Fraction

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.quantile.search import SearchParams
from deltafl.secagg import ClientId, GraphKind, Stage, Step, Vanish, ring
from deltafl.sim.bench.harness import Report, command
from deltafl.sim.bench.session import made_up, play, session_of
from deltafl.sim.cohort.seeds import Purpose, Seeds


@dataclass(frozen=True, slots=True)
class RoundBenchmark:
    """What to measure."""

    clients: int = 100
    dim: int = 115_646
    slots: int = 25
    graph: GraphKind = GraphKind.SPARSE
    signed: bool = False
    dropout: float = 0.0
    seed: int = 1

    def config(self) -> RoundConfig:
        """The round."""
        return RoundConfig(
            round_index=0,
            cohort_size=self.clients,
            theta=Fraction(1, 2) if self.slots > 1 else Fraction(1),
            method="mm",
            search=SearchParams(self.slots - 1),
            update=UpdateParams(),
            update_length=self.dim,
        )


def measure(benchmark: RoundBenchmark) -> Report:
    """Play one round and return what it cost.

    Vectors are random.

    Raises:
        SecAggError: no session withstands the threat with so few devices, or too many vanished.
    """
    config = benchmark.config()
    policy, params = session_of(
        config, graph=benchmark.graph, signed=benchmark.signed, seed=benchmark.seed
    )
    generator = Seeds(benchmark.seed).generator(Purpose.DROPOUT)
    inputs = made_up(params, generator)
    gone = generator.permutation(benchmark.clients)[: round(benchmark.dropout * benchmark.clients)]
    vanishing = {
        ClientId(int(index)): Vanish(
            Step(Stage.MASK, int(generator.integers(2)) * (benchmark.slots - 1))
        )
        for index in gone
    }
    _, watch, report = play(params, inputs, policy, vanishing)
    last = params.slots[-1]
    packed = ring.packed_size(last.length, last.ring_bits)
    return {
        **asdict(benchmark),
        "ring_bits": last.ring_bits,
        **report,
        "bytes_up_beside_update": round(watch.bytes_up(benchmark.clients) - packed, 1),
        "trips": watch.num_trips,
    }


add_arguments, main = command(
    RoundBenchmark,
    measure,
    "Measure one protocol round without training: CPU seconds of a device and of the server, and "
    "bytes, by stage, and the round trips of a round. The first T-1 slots contain queries of the "
    "private quantile, the last slot an update of D numbers. Devices that drop out do so before "
    "their vector of the first or of the last slot; one that is lost in between would end the "
    "search.",
)
