"""`deltafl bench round`: one protocol round without training.

All slots of a round of Algorithm 3 are summed: T − 1 queries of the `mm` search and the update of D
numbers. The first query and the update are tolerant slots, the other queries are whole. Every
message is encoded, sent, decoded and checked. All parties share this process. The benchmark
measures CPU time, which depends less on other load than the wall clock. In a verified search,
devices also check a proof of each sum; that is measured apart (`deltafl bench votes`).

Round trips are counted in sessions of few devices with the same slots, one unsigned and one signed.
"""

from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Final

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.quantile.search import SearchParams
from deltafl.secagg import ClientId, GraphKind, SessionParams, Stage, Step, Vanish, ring
from deltafl.sim.bench.harness import Report, command
from deltafl.sim.bench.session import Stopwatch, made_up, play, session_of
from deltafl.sim.bench.votes import answers_of
from deltafl.sim.cohort.seeds import Purpose, Seeds

_FEW: Final = 8  # devices of a session in which round trips are counted


@dataclass(frozen=True, slots=True)
class RoundBenchmark:
    """What to measure."""

    clients: int = 100
    dim: int = 115_646
    slots: int = 25
    graph: GraphKind = GraphKind.SPARSE
    signed: bool = False
    verified: bool = False
    dropout: float = 0.0
    seed: int = 1

    def config(self) -> RoundConfig:
        """The round."""
        return RoundConfig(
            round_index=0,
            cohort_size=self.clients,
            theta=Fraction(1, 2) if self.slots > 1 else Fraction(1),
            method="mm",
            search=SearchParams(self.slots - 1, verified=self.verified),
            update=UpdateParams(),
            update_length=self.dim,
        )


def measure(benchmark: RoundBenchmark) -> Report:
    """Run one round and return what it cost.

    Raises:
        SecAggError: no session withstands the threat with so few devices, or too many vanished.
    """
    watch, params, report = _played(benchmark)
    last = params.slots[-1]
    packed = ring.packed_size(last.length, last.ring_bits)
    return {
        **asdict(benchmark),
        "ring_bits": last.ring_bits,
        **report,
        "bytes_up_beside_update": round(watch.bytes_up(benchmark.clients) - packed, 1),
        "trips": {
            "unsigned": num_trips(replace(benchmark, signed=False, verified=False)),
            "signed": num_trips(replace(benchmark, signed=True)),
        },
    }


def num_trips(benchmark: RoundBenchmark) -> int:
    """The round trips of such a round from which nobody drops out, counted in a small session."""
    small = replace(benchmark, clients=_FEW, dim=1, graph=GraphKind.COMPLETE, dropout=0.0)
    watch, _, _ = _played(small)
    return watch.num_trips


def _played(benchmark: RoundBenchmark) -> tuple[Stopwatch, SessionParams, Report]:
    """Play it with random vectors; in a verified search with real answers, which are proved."""
    policy, params = session_of(
        benchmark.config(), graph=benchmark.graph, signed=benchmark.signed, seed=benchmark.seed
    )
    generator = Seeds(benchmark.seed).generator(Purpose.DROPOUT)
    inputs = made_up(params, generator)
    if benchmark.verified and benchmark.slots > 1:
        answers = answers_of(benchmark.config(), generator)
        for vectors, answer in zip(inputs.values(), answers, strict=True):
            vectors[:-1] = [answer] * (benchmark.slots - 1)
    gone = generator.permutation(benchmark.clients)[: round(benchmark.dropout * benchmark.clients)]
    vanishing = {
        ClientId(int(index)): Vanish(
            Step(Stage.MASK, int(generator.integers(2)) * (benchmark.slots - 1))
        )
        for index in gone
    }
    _, watch, report = play(params, inputs, policy, vanishing)
    return watch, params, report


add_arguments, main = command(
    RoundBenchmark,
    measure,
    "Measure one protocol round without training: CPU seconds of a device and of the server, and "
    "bytes, by stage, and the round trips of a round. The first T-1 slots contain queries of the "
    "private quantile, the last slot an update of D numbers. Devices that drop out do so before "
    "their vector of the first or of the last slot; one that is lost in between would end the "
    "search.",
)
