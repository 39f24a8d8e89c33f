"""`deltafl bench round`: one protocol round without training.

All slots of a round of Algorithm 3 are summed: T − 1 queries of the `mm` search and the update of D
numbers. The first query and the update are tolerant slots, the other queries are whole. Every
message is encoded, sent, decoded and checked. All parties share this process. The benchmark
measures CPU time, which depends less on other load than the wall clock. In a verified search,
devices also check a proof of each sum; that is measured apart (`deltafl bench votes`).

Round trips are counted in sessions of few devices with the same slots, one unsigned and one signed.
"""

import argparse
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Annotated, Final

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import ClientId, GraphKind, SessionParams, Stage, Step, Vanish, ring
from deltafl.sim.bench.harness import (
    Clients,
    Dim,
    Dropout,
    Flag,
    Graph,
    Report,
    Seed,
    Signed,
    Slots,
    add_flags,
    case_of,
    check_dropout,
    check_least,
    command,
)
from deltafl.sim.bench.session import Stopwatch, made_up, play
from deltafl.sim.bench.votes import answers_of
from deltafl.sim.cohort.seeds import Purpose, Seeds

_FEW: Final = 8  # devices of a session in which round trips are counted


@dataclass(frozen=True, slots=True)
class RoundBenchmark:
    """What to measure."""

    clients: Clients = 100
    dim: Dim = 115_646
    slots: Slots = 25
    graph: Graph = GraphKind.SPARSE
    signed: Signed = False
    verified: Annotated[
        bool,
        Flag(
            "devices commit to their answers and check the sums of the queries; takes --signed "
            "and the complete graph"
        ),
    ] = False
    dropout: Dropout = 0.0
    seed: Seed = 1

    def __post_init__(self) -> None:
        check_least(
            clients=(self.clients, 1), slots=(self.slots, 1), dim=(self.dim, 1), seed=(self.seed, 0)
        )
        check_dropout(self.dropout)

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

    def session(self) -> tuple[RoundPolicy, SessionParams]:
        """What devices insist on, and the session; small cohorts and long searches are welcome."""
        policy = RoundPolicy(
            min_honest_tail=0,
            min_search_cohort=0,
            max_pivots=self.slots,
            max_mm_pivots_per_device=Fraction(self.slots),
        )
        sessions = Sessions(policy, graph=self.graph, min_cohort=5, signed=self.signed)
        seed = Seeds(self.seed).digest(Purpose.GRAPH)
        return policy, sessions.params(self.config(), b"", seed)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure one protocol round without training: CPU seconds of a device and of the server, "
        "and bytes, by stage, and the round trips of a round. The first T-1 slots contain queries "
        "of the private quantile, the last slot an update of D numbers. Devices that drop out do "
        "so before their vector of the first or of the last slot; one that is lost in between "
        "would end the search."
    )
    add_flags(parser, RoundBenchmark)


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
    policy, params = benchmark.session()
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


main = command(lambda options: measure(case_of(RoundBenchmark, options)))
