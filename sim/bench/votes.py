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

import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from statistics import median
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.quantile import ballots
from deltafl.protocol.quantile.ballots import Voter, admits
from deltafl.protocol.quantile.registry import QUANTILE_METHODS, default_max_queries
from deltafl.protocol.quantile.search import Query, SearchParams
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
from deltafl.sim.bench.harness import Report, command, in_turns, ratios, timed
from deltafl.sim.bench.session import session_of
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.errors import RunError

PROVED: Final = ballots.METHODS
_SIZES: Final = (100, 1000)
_POSITION: Final = 0
_BINDING: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class VotesBenchmark:
    """What to measure; without a number of clients, of a hundred and of a thousand."""

    clients: int | None = None
    methods: Sequence[str] = QUANTILE_METHODS
    pivots: int = 32
    weights: Weighting = Weighting.SAMPLES
    repeats: int = 5
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Votes:
    """What one row of each table is about.

    Attributes:
        benchmark: what to measure.
        clients: devices of the cohort.
        method: of the search.
    """

    benchmark: VotesBenchmark
    clients: int
    method: str

    def config(self, *, verified: bool = True, proved: bool = False) -> RoundConfig:
        """A round with such a search."""
        search = SearchParams(
            default_max_queries(self.method),
            weighting=self.benchmark.weights,
            verified=verified,
            proved=proved,
        )
        pivots = self.benchmark.pivots if self.method == "histogram" else None
        return RoundConfig(
            0, self.clients, Fraction(1, 2), self.method, search, UpdateParams(), 1,
            num_pivots=pivots,
        )  # fmt: skip

    def session(self, config: RoundConfig) -> SessionParams:
        """The session of such a round."""
        seed = self.benchmark.seed
        return session_of(config, graph=GraphKind.COMPLETE, signed=True, seed=seed)[1]

    def generator(self) -> np.random.Generator:
        """Draws losses and weights."""
        return Seeds(self.benchmark.seed).generator(Purpose.WEIGHTS)


def measure_answers(votes: Votes) -> dict[str, dict[str, object]]:
    """Answer and take the answer, by a method with proved votes: one row for each kind of answer.

    Raises:
        ConfigurationError: a sum would not fit the ring.
        SecAggError: no signed session has so few or so many devices.
        RunError: a true proof was refused.
    """
    plain, proved = votes.config(), votes.config(proved=True)
    answers = {
        "no proof": _Answer(votes, plain, slot=0),
        "first query": _Answer(votes, proved, slot=0),
        "later query": _Answer(votes, proved, slot=1),
    }
    found = in_turns({kind: each.costs for kind, each in answers.items()}, votes.benchmark.repeats)
    device, server = (
        {kind: [cost[party] for cost in costs] for kind, costs in found.items()} for party in (0, 1)
    )
    return {
        kind: {
            "device_cpu_ms": round(1e3 * median(device[kind]), 3),
            "device_over_no_proof": ratios(device[kind], device["no proof"]),
            "server_cpu_ms": round(1e3 * median(server[kind]), 3),
            "server_over_no_proof": ratios(server[kind], server["no proof"]),
            "server_cpu_s_for_all": round(votes.clients * median(server[kind]), 3),
            "bytes_up": max(size for _, _, size in costs),
        }
        for kind, costs in found.items()
    }


def measure_checks(votes: Votes) -> dict[str, object]:
    """Commit and check as devices do: CPU times and bytes of one device and query.

    Raises:
        ConfigurationError: a sum would not fit the ring.
        SecAggError: no signed session has so few or so many devices.
        RunError: the proof of a true sum was refused.
    """
    config = votes.config()
    params = votes.session(config)
    spec, context = params.slots[0], SlotContext.of(params, SessionId(bytes(32)), 0, _BINDING)
    answers = answers_of(config, votes.generator())
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
    checks = [timed(check).cpu_s for _ in range(votes.benchmark.repeats)]
    plain = votes.config(verified=False).slots()[0]
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


class _Answer:
    """One device's answer to one query of a new session, and what the server does with it.

    Args:
        votes: what is measured.
        config: of the round.
        slot: that the answer is for.
    """

    def __init__(self, votes: Votes, config: RoundConfig, slot: int) -> None:
        self.config, self.slot, self.params = config, slot, votes.session(config)
        generator = votes.generator()
        loss, weight = float(generator.gamma(2.0)), int(generator.integers(1, 400))
        self.device = DeviceRound.measured(config, loss, weight)
        self.query = _first_query(config)
        self.context = SlotContext.of(self.params, SessionId(bytes(32)), slot, _BINDING)
        info = self.context.whole_slot_info(np.ones(votes.clients, dtype=np.bool_))
        self.own = identity.generate(os.urandom)
        self.sealing_key = keys.generate(os.urandom).public
        self.pairs = [PairSecret(p, os.urandom(32), info) for p in range(1, votes.clients)]
        searched = config.search_config
        self.voter = Voter.drawn(searched, searched.search.weighting.of(weight), os.urandom)
        self.weights = {_POSITION: _sum_of(self.voter.commitments)} if slot else {}

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


def measure(benchmark: VotesBenchmark) -> Report:
    """Both tables, a row for each method and size."""
    answers: dict[str, dict[str, object]] = {}
    checks: dict[str, dict[str, object]] = {}
    sizes = _SIZES if benchmark.clients is None else (benchmark.clients,)
    for method, clients in itertools.product(benchmark.methods, sizes):
        votes, name = Votes(benchmark, clients, method), f"{method}, {clients} devices"
        checks[name] = measure_checks(votes)
        if method in PROVED:
            answers |= {f"{name}, {kind}": row for kind, row in measure_answers(votes).items()}
    return {"answers": answers, "checks": checks}


add_arguments, main = command(
    VotesBenchmark,
    measure,
    "Measure what one query of a verified search costs: a device's answer and the server's work on "
    "it, without a proof, and with the proofs of a search's first query and of later ones; and "
    "what a device does beside its masks, to commit to its answer and to check the sum that the "
    f"server proves. Without --clients, of 100 and of 1000; votes are proved by "
    f"{' and '.join(PROVED)}.",
)
