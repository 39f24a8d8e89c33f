"""`deltafl bench votes`: what checking the search costs, with proofs of votes and without.

In a verified search, each device commits to its answer and signs the commitment, and checks the sum
that the server proves: one signature of each other device, the product of all commitments, and one
commitment to the sum. With proved votes, the device also proves that its answer is valid, and the
server checks it. No session is played: answers, commitments, proofs and messages are real, and so
is the work for masks, whose secrets are drawn at random. Times are CPU times.

    answers     a device's answer (commit, prove, mask) and the server's work on it (read, check,
                add), without a proof and with those of a search's first query and of later ones;
                over no proof: how many times the same without a proof, turn by turn
    checks      what a device does beside its masks: to commit, and to check the proof of a sum;
                and the bytes of both, up beyond an answer of a search that is not verified
"""

import argparse
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from statistics import median
from typing import Annotated, Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile import ballots
from deltafl.protocol.quantile.ballots import Voter, admits
from deltafl.protocol.quantile.registry import METHODS, NOISY, default_max_queries
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.sessions import Sessions
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import GraphKind, identity, keys, openings, pedersen, ring, wire
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.masks import PairSecret, SlotContext
from deltafl.secagg.messages import MaskedInput, SumOpening
from deltafl.secagg.openings import COMMITTED_SIZE, Commitment, Opening
from deltafl.secagg.params import SessionId, SessionParams
from deltafl.secagg.primitives import add_pairwise
from deltafl.secagg.ring import Vector
from deltafl.secagg.signing import Signer
from deltafl.sim.bench.harness import (
    CLIENTS,
    Flag,
    Repeats,
    Report,
    Seed,
    add_flags,
    case_of,
    check_least,
    command,
    in_turns,
    ratios,
    timed,
)
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.errors import RunError

WITHOUT_NOISE: Final = tuple(name for name in METHODS if name != NOISY)
PROVED: Final = ballots.METHODS
_SIZES: Final = (100, 1000)
_POSITION: Final = 0
_BINDING: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class VotesBenchmark:
    """What to measure."""

    clients: int
    method: str
    pivots: Annotated[int, Flag("of a query of 'histogram'", "B")] = 32
    weights: Annotated[Weighting, Flag("of devices in the search")] = Weighting.SAMPLES
    repeats: Repeats = 5
    seed: Seed = 1

    def __post_init__(self) -> None:
        check_least(repeats=(self.repeats, 1), seed=(self.seed, 0), pivots=(self.pivots, 1))

    def config(self, *, verified: bool = True, proved: bool = False) -> RoundConfig:
        """A round with such a search."""
        search = SearchParams(
            default_max_queries(self.method),
            weighting=self.weights,
            verified=verified,
            proved=proved,
        )
        pivots = self.pivots if self.method == "histogram" else None
        return RoundConfig(
            0, self.clients, Fraction(1, 2), self.method, search, UpdateParams(), 1,
            num_pivots=pivots,
        )  # fmt: skip

    def session(self, config: RoundConfig) -> SessionParams:
        """The session of such a round, whose devices accept small cohorts and many pivots."""
        pivots = config.search.max_queries * config.quantile.num_pivots
        policy = RoundPolicy(
            min_honest_tail=0,
            min_search_cohort=0,
            max_pivots=pivots,
            max_pivots_if_equal=pivots,
            max_mm_pivots_per_device=Fraction(pivots),
        )
        sessions = Sessions(policy, graph=GraphKind.COMPLETE, min_cohort=5, signed=True)
        return sessions.params(config, b"", Seeds(self.seed).digest(Purpose.GRAPH))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure what one query of a verified search costs: a device's answer and the server's "
        "work on it, without a proof, and with the proofs of a search's first query and of later "
        "ones; and what a device does beside its masks, to commit to its answer and to check the "
        "sum that the server proves."
    )
    parser.add_argument(
        "--clients",
        type=CLIENTS,
        action="append",
        metavar="N",
        help="devices; may be repeated (100 and 1000)",
    )
    parser.add_argument(
        "--method",
        choices=WITHOUT_NOISE,
        action="append",
        help=f"of the search; may be repeated (all; votes are proved by {' and '.join(PROVED)})",
    )
    add_flags(parser, VotesBenchmark)


def measure(benchmark: VotesBenchmark) -> dict[str, dict[str, object]]:
    """Answer and take the answer, by a method with proved votes: one row for each kind of answer.

    Raises:
        ConfigurationError: a sum would not fit the ring.
        SecAggError: no signed session has so few or so many devices.
        RunError: a true proof was refused.
    """
    plain, proved = benchmark.config(), benchmark.config(proved=True)
    answers = {
        "no proof": _Answer.of(benchmark, plain, slot=0),
        "first query": _Answer.of(benchmark, proved, slot=0),
        "later query": _Answer.of(benchmark, proved, slot=1),
    }
    found = in_turns({kind: each.costs for kind, each in answers.items()}, benchmark.repeats)
    device, server = (
        {kind: [cost[party] for cost in costs] for kind, costs in found.items()} for party in (0, 1)
    )
    return {
        kind: {
            "device_cpu_ms": round(1e3 * median(device[kind]), 3),
            "device_over_no_proof": ratios(device[kind], device["no proof"]),
            "server_cpu_ms": round(1e3 * median(server[kind]), 3),
            "server_over_no_proof": ratios(server[kind], server["no proof"]),
            "server_cpu_s_for_all": round(benchmark.clients * median(server[kind]), 3),
            "bytes_up": max(size for _, _, size in costs),
        }
        for kind, costs in found.items()
    }


def measure_checks(benchmark: VotesBenchmark) -> dict[str, object]:
    """Commit and check as devices do: CPU times and bytes of one device and query.

    Raises:
        ConfigurationError: a sum would not fit the ring.
        SecAggError: no signed session has so few or so many devices.
        RunError: the proof of a true sum was refused.
    """
    config = benchmark.config()
    params = benchmark.session(config)
    spec, context = params.slots[0], SlotContext.of(params, SessionId(bytes(32)), 0, _BINDING)
    answers = answers_of(config, Seeds(benchmark.seed).generator(Purpose.WEIGHTS))
    owners = [identity.generate(os.urandom) for _ in answers]
    sealing = [keys.generate(os.urandom).public for _ in answers]
    pedersen.commit([1] * spec.length, 1)  # makes the generators, which devices do once

    def commit(answer: Vector, own: identity.Identity, key: PublicKey) -> tuple[Vector, bytes]:
        vector = ring.as_vector(answer, spec.length, spec.ring_bits)
        return openings.commit(context, spec, vector, own, key, os.urandom)

    spent, total = [], np.zeros(spec.wire_length, dtype=np.uint64)
    committed: dict[int, bytes] = {}
    for position, (answer, own, key) in enumerate(zip(answers, owners, sealing, strict=True)):
        made = timed(partial(commit, answer, own, key))
        blinded, committed[position] = made.result
        spent.append(made.cpu_s)
        total += blinded.astype(np.uint64)
    words = ring.to_words(total, spec.ring_bits)
    ring.reduce(words, spec.ring_bits)
    message = wire.encode(SumOpening(0, ring.pack(words, spec.ring_bits), committed), params)
    signers = tuple(Signer(own.public, key) for own, key in zip(owners, sealing, strict=True))
    check = partial(_check_proof, message, params, context, signers)
    checks = [timed(check).cpu_s for _ in range(benchmark.repeats)]
    plain = benchmark.config(verified=False).slots()[0]
    packed = ring.packed_size(spec.wire_length, spec.ring_bits)
    return {
        "answer": f"{spec.length} × {spec.ring_bits} bits",
        "commit_cpu_ms": round(1e3 * median(spent), 3),
        "check_cpu_ms": round(1e3 * median(checks), 3),
        "bytes_up": packed + COMMITTED_SIZE - ring.packed_size(plain.length, plain.ring_bits),
        "bytes_down": len(message),
    }


def answers_of(config: RoundConfig, generator: np.random.Generator) -> list[Vector]:
    """The answers of a cohort with random losses and weights to a search's first query."""
    query = _first_query(config)
    losses = generator.gamma(2.0, size=config.cohort_size)
    weights = generator.integers(1, 400, size=config.cohort_size)
    return [
        DeviceRound.measured(config, float(loss), int(weight)).answer(query)
        for loss, weight in zip(losses, weights, strict=True)
    ]


def _first_query(config: RoundConfig) -> Query:
    query = config.start_search().query
    if not isinstance(query, Query):
        raise RunError("this search asks nothing")
    return query


def _check_proof(
    message: bytes, params: SessionParams, context: SlotContext, signers: Sequence[Signer]
) -> None:
    """Read and check the proof of a sum, as a device does.

    Raises:
        RunError: the check failed.
    """
    read = wire.decode(message, params)
    if not isinstance(read, SumOpening):
        raise RunError("the proof was read as another message: this is a bug")
    committed = tuple(bytes(each) for each in read.committed.values())
    spec = params.slots[read.slot]
    flaw = openings.examine(Opening(context, spec, read.packed, tuple(signers), committed))
    if flaw is not None:
        raise RunError(f"the proof of a true sum was refused ({flaw[1]}): this is a bug")


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    """One device's answer to one query, and what the server does with it."""

    config: RoundConfig
    params: SessionParams
    slot: int
    context: SlotContext
    device: DeviceRound
    query: Query
    own: identity.Identity
    sealing_key: PublicKey
    pairs: Sequence[PairSecret]
    voter: Voter
    weights: dict[int, bytes]

    @classmethod
    def of(cls, benchmark: VotesBenchmark, config: RoundConfig, slot: int) -> "_Answer":
        """The answer in a slot of a new session."""
        params = benchmark.session(config)
        generator = Seeds(benchmark.seed).generator(Purpose.WEIGHTS)
        loss, weight = float(generator.gamma(2.0)), int(generator.integers(1, 400))
        context = SlotContext.of(params, SessionId(bytes(32)), slot, _BINDING)
        info = context.whole_slot_info(np.ones(benchmark.clients, dtype=np.bool_))
        searched = config.search_config
        voter = Voter.drawn(searched, searched.search.weighting.of(weight), os.urandom)
        return cls(
            config=config,
            params=params,
            slot=slot,
            context=context,
            device=DeviceRound.measured(config, loss, weight),
            query=_first_query(config),
            own=identity.generate(os.urandom),
            sealing_key=keys.generate(os.urandom).public,
            pairs=[PairSecret(p, os.urandom(32), info) for p in range(1, benchmark.clients)],
            voter=voter,
            weights={_POSITION: _sum_of(voter.commitments)} if slot else {},
        )

    def costs(self) -> tuple[float, float, int]:
        """CPU seconds of the device and of the server, and the bytes of the answer."""
        start = time.process_time()
        message = self._made()
        middle = time.process_time()
        self._take(message)
        return middle - start, time.process_time() - middle, len(message)

    def _made(self) -> bytes:
        """What the device sends."""
        spec = self.params.slots[self.slot]
        vector = ring.as_vector(self.device.answer(self.query), spec.length, spec.ring_bits)
        total, committed = openings.commit(
            self.context, spec, vector, self.own, self.sealing_key, os.urandom
        )
        proof = b""
        if spec.proof_size:
            proof = self.voter.prove(
                self.config.search_config,
                self.query,
                self.device.tick,
                self._commitment(committed),
                pedersen.join_blinding(total[spec.length :].tolist()),
                os.urandom,
                is_first=self.slot == 0,
            )
        add_pairwise(total, _POSITION, self.pairs)
        ring.reduce(total, spec.ring_bits)
        packed = ring.pack(total, spec.ring_bits)
        return wire.encode(MaskedInput(self.slot, packed, committed, proof), self.params)

    def _take(self, data: bytes) -> None:
        """What the server does.

        Raises:
            RunError: it refused the answer.
        """
        spec = self.params.slots[self.slot]
        message = wire.decode(data, self.params)
        if not isinstance(message, MaskedInput):
            raise RunError("the answer was read as another message: this is a bug")
        masked = ring.unpack(message.packed, spec.wire_length, spec.ring_bits)
        signer = Signer(self.own.public, self.sealing_key)
        is_good = openings.is_signed(self.context, signer, message.committed)
        is_good &= openings.is_point(message.committed)
        if spec.proof_size:
            is_good &= admits(
                self.config.search_config,
                self.query,
                self.weights,
                self._commitment(message.committed),
                message.proof,
                is_first=self.slot == 0,
            )
        total = ring.zeros(spec.wire_length, spec.ring_bits)
        np.add(total, masked, out=total)
        if not is_good:
            raise RunError("a true answer was refused: this is a bug")

    def _commitment(self, committed: bytes) -> Commitment:
        signer = Signer(self.own.public, self.sealing_key)
        return Commitment(self.context, _POSITION, signer, committed[: pedersen.COMMITMENT_SIZE])


def _sum_of(points: Sequence[bytes]) -> bytes:
    total = pedersen.add(points)
    if total is None:
        raise RunError("a commitment is no point: this is a bug")
    return total


def _measured(options: argparse.Namespace) -> Report:
    answers: dict[str, dict[str, object]] = {}
    checks: dict[str, dict[str, object]] = {}
    methods, sizes = options.method or WITHOUT_NOISE, options.clients or _SIZES
    for options.method, options.clients in itertools.product(methods, sizes):
        case, name = (
            case_of(VotesBenchmark, options),
            f"{options.method}, {options.clients} devices",
        )
        checks[name] = measure_checks(case)
        if case.method in PROVED:
            answers |= {f"{name}, {kind}": row for kind, row in measure(case).items()}
    return {"answers": answers, "checks": checks}


main = command(_measured)
