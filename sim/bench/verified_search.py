"""`deltafl bench verify`: what one query of a verified search costs beside its masks.

In a verified search, each device commits to its answer and signs the commitment, and checks the sum
that the server proves: one signature of each other device, the product of all commitments, and one
commitment to the sum. No session is played: the answers are real, on the layout that a round has,
and no message is sent. Times are CPU times.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.registry import METHODS, NOISY, default_max_queries
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import GraphKind, identity, keys, openings, pedersen, ring, wire
from deltafl.secagg.errors import SecAggError
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import SumOpening
from deltafl.secagg.openings import COMMITTED_SIZE, Opening
from deltafl.secagg.params import SessionId, SessionParams
from deltafl.secagg.ring import Vector
from deltafl.secagg.signing import Signer
from deltafl.sim.bench.report import machine
from deltafl.sim.bench.sizes import CLIENTS, add_repetition, check_least
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.progress import Bar

WITHOUT_NOISE: Final = tuple(name for name in METHODS if name != NOISY)
_THETA: Final = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class VerifyBenchmark:
    """What to measure.

    Attributes:
        clients: devices, N.
        method: of the search.
        repeats: how often a device's work is timed; the median counts.
        seed: of losses and weights; keys come from the operating system.
    """

    clients: int
    method: str
    repeats: int = 5
    seed: int = 1

    def __post_init__(self) -> None:
        check_least(repeats=(self.repeats, 1), seed=(self.seed, 0))

    def config(self, *, verified: bool) -> RoundConfig:
        """A round with such a search."""
        search = SearchParams(default_max_queries(self.method), verified=verified)
        return RoundConfig(0, self.clients, _THETA, self.method, search, UpdateParams(), 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure what one query of a verified search costs a device beside its masks: to commit to "
        "its answer, to check the sum that the server proves, and the bytes of both."
    )
    parser.add_argument("--clients", type=CLIENTS, default=100, metavar="N", help="devices (100)")
    parser.add_argument(
        "--method",
        choices=WITHOUT_NOISE,
        action="append",
        help="of the search; may be repeated (all)",
    )
    add_repetition(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark and print what was measured; the exit code."""
    methods = arguments.method or WITHOUT_NOISE
    try:
        measured = {
            method: measure(
                VerifyBenchmark(arguments.clients, method, arguments.repeats, arguments.seed)
            )
            for method in Bar(methods, desc="methods")
        }
    except (SecAggError, ProtocolError, UserError, ValueError) as error:
        print(f"deltafl: {error}", file=sys.stderr)
        return 2
    report = {"clients": arguments.clients, "methods": measured, "machine": machine()}
    print(
        json.dumps(report, indent=2) if arguments.json else _describe(arguments.clients, measured)
    )
    return 0


def measure(benchmark: VerifyBenchmark) -> dict[str, float]:
    """Commit and check as devices do; CPU times and bytes of one device and query.

    `length` and `ring_bits` are those of an answer, `bytes_up` what a device sends beyond the
    answer of a search that is not verified, `bytes_down` the proof.

    Raises:
        ConfigurationError: a sum would not fit the ring.
        SecAggError: no signed session has so few or so many devices.
        RunError: the proof of a true sum was refused.
    """
    config = benchmark.config(verified=True)
    seeds = Seeds(benchmark.seed)
    # Small cohorts and many pivots are timed too, so these devices accept them.
    pivots = config.search.max_queries * config.quantile.num_pivots
    policy = RoundPolicy(
        min_honest_tail=0,
        min_search_cohort=0,
        max_pivots=pivots,
        max_mm_pivots_per_device=Fraction(pivots),
    )
    sessions = Sessions(policy, graph=GraphKind.COMPLETE, min_cohort=5, signed=True)
    params = sessions.params(config, b"", seeds.digest(Purpose.GRAPH))
    spec = params.slots[0]
    context = SlotContext.of(params, SessionId(bytes(32)), 0, bytes(32))
    answers = answers_of(config, seeds.generator(Purpose.WEIGHTS))
    owners = [identity.generate(os.urandom) for _ in answers]
    sealing = [keys.generate(os.urandom).public for _ in answers]
    pedersen.commit([1] * spec.length, 1)  # makes the generators, which devices do once
    spent, total = [], np.zeros(spec.wire_length, dtype=np.uint64)
    committed: dict[int, bytes] = {}
    for position, (answer, own, key) in enumerate(zip(answers, owners, sealing, strict=True)):
        start = time.process_time()
        vector = ring.as_vector(answer, spec.length, spec.ring_bits)
        blinded, committed[position] = openings.commit(context, spec, vector, own, key, os.urandom)
        spent.append(time.process_time() - start)
        total += blinded.astype(np.uint64)
    words = ring.to_words(total, spec.ring_bits)
    ring.reduce(words, spec.ring_bits)
    message = wire.encode(SumOpening(0, ring.pack(words, spec.ring_bits), committed), params)
    signers = tuple(Signer(own.public, key) for own, key in zip(owners, sealing, strict=True))
    checks = [
        _seconds_to_check(message, params, context, signers) for _ in range(benchmark.repeats)
    ]
    plain = benchmark.config(verified=False).slots()[0]
    packed = ring.packed_size(spec.wire_length, spec.ring_bits)
    return {
        "length": spec.length,
        "ring_bits": spec.ring_bits,
        "commit_cpu_ms": round(1e3 * median(spent), 3),
        "check_cpu_ms": round(1e3 * median(checks), 3),
        "bytes_up": packed + COMMITTED_SIZE - ring.packed_size(plain.length, plain.ring_bits),
        "bytes_down": len(message),
    }


def answers_of(config: RoundConfig, generator: np.random.Generator) -> list[Vector]:
    """The answers of a cohort with random losses and weights to a search's first query."""
    query = config.start_search().query
    if not isinstance(query, Query):
        raise RunError("this search asks nothing")
    losses = generator.gamma(2.0, size=config.cohort_size)
    weights = generator.integers(1, 400, size=config.cohort_size)
    return [
        DeviceRound.measured(config, float(loss), int(weight)).answer(query)
        for loss, weight in zip(losses, weights, strict=True)
    ]


def _seconds_to_check(
    message: bytes, params: SessionParams, context: SlotContext, signers: Sequence[Signer]
) -> float:
    """CPU seconds in which a device reads and checks a proof.

    Raises:
        RunError: the check failed.
    """
    start = time.process_time()
    read = wire.decode(message, params)
    if not isinstance(read, SumOpening):
        raise RunError("the proof was read as another message: this is a bug")
    committed = tuple(bytes(each) for each in read.committed.values())
    spec = params.slots[read.slot]
    flaw = openings.examine(Opening(context, spec, read.packed, tuple(signers), committed))
    spent = time.process_time() - start
    if flaw is not None:
        raise RunError(f"the proof of a true sum was refused ({flaw[1]}): this is a bug")
    return spent


def _describe(clients: int, measured: Mapping[str, Mapping[str, float]]) -> str:
    lines = [
        f"a query of a verified search over {clients} devices; each figure is for one device",
        "",
        f"{'':<12}{'answer':>16}{'commit, CPU ms':>16}{'check, CPU ms':>15}{'kB up':>8}"
        f"{'kB down':>9}",
    ]
    for name, found in measured.items():
        answer = f"{found['length']} × {found['ring_bits']} bits"
        lines.append(
            f"{name:<12}{answer:>16}{found['commit_cpu_ms']:>16.2f}{found['check_cpu_ms']:>15.2f}"
            f"{found['bytes_up'] / 1e3:>8.2f}{found['bytes_down'] / 1e3:>9.2f}"
        )
    return "\n".join(lines)
