"""`deltafl bench votes`: what it costs to prove that votes are valid, and to check it.

An answer of a device to a query of a verified search is its commitment, signature and masks; the
server reads it, checks commitment and signature, and adds it up. With proved votes, the device also
makes a proof, and the server checks it. Both are timed in one run, so that their ratio holds
whatever else the machine does. No session is played: answers, commitments, proofs and messages are
real, and so is the work for masks, whose secrets are drawn at random. Times are CPU times.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from statistics import median
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.ballots import METHODS, Voter, admits
from deltafl.protocol.quantile.registry import default_max_queries
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.sessions import Sessions
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import GraphKind, identity, keys, openings, pedersen, ring, wire
from deltafl.secagg.errors import SecAggError
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.masks import PairSecret, SlotContext
from deltafl.secagg.messages import MaskedInput
from deltafl.secagg.openings import Check, Commitment
from deltafl.secagg.params import SessionId, SessionParams
from deltafl.secagg.primitives import add_pairwise
from deltafl.secagg.signing import Signer
from deltafl.sim.bench.report import machine
from deltafl.sim.bench.sizes import CLIENTS, add_repetition, check_least
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.progress import Bar

_THETA: Final = Fraction(1, 2)
_SIZES: Final = (100, 1000)
_POSITION: Final = 0
_BINDING: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class VotesBenchmark:
    """What to measure.

    Attributes:
        clients: devices, N.
        method: of the search, one with proved votes.
        pivots: of a query of `histogram`.
        weighting: of devices in the search.
        repeats: how often each step is timed; the median counts.
        seed: of losses and weights; keys come from the operating system.
    """

    clients: int
    method: str
    pivots: int = 32
    weighting: str = Weighting.SAMPLES.value
    repeats: int = 5
    seed: int = 1

    def __post_init__(self) -> None:
        check_least(repeats=(self.repeats, 1), seed=(self.seed, 0), pivots=(self.pivots, 1))

    def config(self, *, proved: bool) -> RoundConfig:
        """A round with such a search."""
        search = SearchParams(
            default_max_queries(self.method),
            weighting=Weighting(self.weighting),
            verified=True,
            proved=proved,
        )
        pivots = self.pivots if self.method == "histogram" else None
        return RoundConfig(
            0, self.clients, _THETA, self.method, search, UpdateParams(), 1, num_pivots=pivots
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured for a method and a number of devices; see `measure` for the kinds."""

    method: str
    clients: int
    kinds: Mapping[str, Mapping[str, float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure what proved votes cost: a device's answer to a query and the server's work on it, "
        "without proof, and with the proofs of a search's first query and of later ones."
    )
    parser.add_argument(
        "--clients",
        type=CLIENTS,
        action="append",
        metavar="N",
        help="devices; may be repeated (100 and 1000)",
    )
    parser.add_argument(
        "--method", choices=METHODS, action="append", help="of the search; may be repeated (both)"
    )
    parser.add_argument(
        "--pivots", type=int, default=32, metavar="B", help="of a query of 'histogram' (32)"
    )
    parser.add_argument(
        "--weights",
        choices=tuple(Weighting),
        default=Weighting.SAMPLES.value,
        help="of devices in the search (samples)",
    )
    add_repetition(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark and print what was measured; the exit code."""
    cases = [(m, n) for m in arguments.method or METHODS for n in arguments.clients or _SIZES]
    measured = list[Measured]()
    try:
        for method, clients in Bar(cases, desc="measured"):
            benchmark = VotesBenchmark(
                clients,
                method,
                arguments.pivots,
                arguments.weights,
                arguments.repeats,
                arguments.seed,
            )
            measured.append(Measured(method, clients, measure(benchmark)))
    except (SecAggError, ProtocolError, UserError, ValueError) as error:
        print(f"deltafl: {error}", file=sys.stderr)
        return 2
    report = {"measured": [asdict(each) for each in measured], "machine": machine()}
    print(json.dumps(report, indent=2) if arguments.json else _describe(measured))
    return 0


def measure(benchmark: VotesBenchmark) -> dict[str, dict[str, float]]:
    """CPU times and bytes of one device and query, by kind: "trusted", "first" and "later".

    `device_cpu_ms` is to commit, prove and mask, `server_cpu_ms` to read, check and add one answer,
    and `bytes_up` a device's message.

    Raises:
        ConfigurationError: a sum would not fit the ring.
        SecAggError: no signed session has so few or so many devices.
        RunError: a true proof was refused.
    """
    plain, proved = benchmark.config(proved=False), benchmark.config(proved=True)
    work = {
        "trusted": _Work.of(benchmark, plain, slot=0),
        "first": _Work.of(benchmark, proved, slot=0),
        "later": _Work.of(benchmark, proved, slot=1),
    }
    found: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in work}
    for each in work.values():
        each.answer()  # makes the generators, which everybody does once
    for _ in range(benchmark.repeats):  # in turn, so that a busy machine slows all of them
        for kind, each in work.items():
            start = time.process_time()
            message = each.answer()
            middle = time.process_time()
            each.take(message)
            found[kind].append((middle - start, time.process_time() - middle, len(message)))
    return {
        kind: {
            "device_cpu_ms": round(1e3 * median(device for device, _, _ in timed), 3),
            "server_cpu_ms": round(1e3 * median(server for _, server, _ in timed), 3),
            "bytes_up": max(size for _, _, size in timed),
        }
        for kind, timed in found.items()
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
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
    def of(cls, benchmark: VotesBenchmark, config: RoundConfig, slot: int) -> "_Work":
        """The work in a slot of a new session."""
        # Many pivots are timed too, so these devices accept them.
        pivots = config.search.max_queries * config.quantile.num_pivots
        policy = RoundPolicy(
            min_honest_tail=0,
            min_search_cohort=0,
            max_pivots=pivots,
            max_pivots_if_equal=pivots,
        )
        seeds = Seeds(benchmark.seed)
        sessions = Sessions(policy, graph=GraphKind.COMPLETE, min_cohort=5, signed=True)
        params = sessions.params(config, b"", seeds.digest(Purpose.GRAPH))
        generator = seeds.generator(Purpose.WEIGHTS)
        loss, weight = float(generator.gamma(2.0)), int(generator.integers(1, 400))
        device = DeviceRound.measured(config, loss, weight)
        query = config.start_search().query
        if not isinstance(query, Query):
            raise RunError("this search asks nothing")
        context = SlotContext.of(params, SessionId(bytes(32)), slot, _BINDING)
        info = context.whole_slot_info(np.ones(benchmark.clients, dtype=np.bool_))
        pairs = [PairSecret(p, os.urandom(32), info) for p in range(1, benchmark.clients)]
        searched = config.search_config
        voter = Voter.drawn(searched, searched.search.weighting.of(weight), os.urandom)
        weights = {_POSITION: _sum_of(voter.commitments)} if slot else {}
        own, sealing_key = identity.generate(os.urandom), keys.generate(os.urandom).public
        return cls(
            config, params, slot, context, device, query, own, sealing_key, pairs, voter, weights
        )

    def answer(self) -> bytes:
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

    def take(self, data: bytes) -> None:
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
            is_good &= self._check(self._commitment(message.committed), message.proof)
        total = ring.zeros(spec.wire_length, spec.ring_bits)
        np.add(total, masked, out=total)
        if not is_good:
            raise RunError("a true answer was refused: this is a bug")

    @property
    def _check(self) -> Check:
        search = self.config.search_config
        return partial(admits, search, self.query, self.weights, is_first=self.slot == 0)

    def _commitment(self, committed: bytes) -> Commitment:
        signer = Signer(self.own.public, self.sealing_key)
        return Commitment(self.context, _POSITION, signer, committed[: pedersen.COMMITMENT_SIZE])


def _sum_of(points: Sequence[bytes]) -> bytes:
    total = pedersen.add(points)
    if total is None:
        raise RunError("a commitment is no point: this is a bug")
    return total


_KINDS: Final = {"trusted": "no proof", "first": "first query", "later": "later query"}


def _describe(measured: Sequence[Measured]) -> str:
    lines = [
        "an answer to a query of a verified search: without a proof, and with one; times are CPU "
        "times,",
        "those of the server for one answer and for all of a query",
        "",
        f"{'':<11}{'devices':>8}  {'':<12}{'device, ms':>11}{'×':>6}{'server, ms':>12}{'×':>6}"
        f"{'all, s':>9}{'kB up':>8}",
    ]
    for each in measured:
        trusted = each.kinds["trusted"]
        for kind, found in each.kinds.items():
            all_seconds = found["server_cpu_ms"] * each.clients / 1e3
            ratios = [found[key] / trusted[key] for key in ("device_cpu_ms", "server_cpu_ms")]
            lines.append(
                f"{each.method:<11}{each.clients:>8}  {_KINDS[kind]:<12}"
                f"{found['device_cpu_ms']:>11.2f}{ratios[0]:>6.1f}"
                f"{found['server_cpu_ms']:>12.2f}{ratios[1]:>6.1f}"
                f"{all_seconds:>9.2f}{found['bytes_up'] / 1e3:>8.2f}"
            )
    return "\n".join(lines)
