"""What privacy costs: private rounds of Δ-FL over the same rounds in clear, end to end.

Strategies are those that the engine builds from settings. All rounds are played from one state, a
few rounds into training, so that losses differ and a search has something to find; rounds in clear
and by each method take turns. The protocol's CPU time is all that this process and its children
took but learning.

    task, repeats, backend              what was played
    kept_devices                        of the filter, in clear
    rounds      "clear", and by method:
        round_s         seconds of every timed round
        seconds         of a round: median, lowest, highest
        over_clear      private over clear, turn by turn: the same
        protocol_cpu_s  CPU seconds of the protocol in a round, median
        secure_sums     of a round, the search's among them
        kept_weight     Σ n_k over the devices that passed the filter
        certified       whether the filter is proved to be that of the exact quantile
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from statistics import median
from typing import Final

from deltafl.fl.strategies.base import RoundReport, Strategy, TrainingState
from deltafl.fl.strategies.private_delta_fl import PrivateRoundReport
from deltafl.secagg.session import NoObserver
from deltafl.sim.bench.harness import MOST_PIVOTS, Report, in_turns, ratios, spread
from deltafl.sim.bench.peers.ours import Simulator
from deltafl.sim.bench.peers.party import usage
from deltafl.sim.bench.peers.tasks import BenchmarkTask
from deltafl.sim.cohort.simulated import SecureRounds
from deltafl.sim.errors import RunError
from deltafl.sim.run.algorithms import build_rounds, strategy_of
from deltafl.sim.settings.config import FederationConfig, PrivacyConfig, QuantileConfig, RunConfig
from deltafl.sim.settings.policy import PolicyConfig

_ROUNDS_BEFORE: Final = 3
_CLEAR: Final = "clear"
_THETA: Final = Fraction(1, 2)


def measure(task: BenchmarkTask, methods: Sequence[str], repeats: int, backend: str) -> Report:
    """Play rounds in turns; the module says what is returned.

    Args:
        task: what is played; its clients are the cohort.
        methods: of searching for the threshold, but for noise.
        repeats: timed rounds in clear and by each method.
        backend: who does the devices' work, one of `deltafl.sim.settings.config.BACKENDS`.

    Raises:
        ValueError: the cohort is too small for a session.
        UserError: a method or the backend is not to be had so.
        RunError: a private round kept other devices than the one in clear.
    """
    names = [_CLEAR, *methods]
    configs = {name: config_of(task, name) for name in names}
    strategies = {name: strategy_of(config) for name, config in configs.items()}
    with closing(Simulator(task, backend)) as simulator:
        state = strategies[_CLEAR].init(task.first_model(), task.clients)
        for _ in range(_ROUNDS_BEFORE):
            state, _ = simulator.play(strategies[_CLEAR], state)

        def play(name: str) -> _Round:
            # anew, because devices answer for a model only once and all rounds are about one
            rounds = build_rounds(configs[_CLEAR], NoObserver())
            return _play(simulator, strategies[name], state, rounds)

        played = in_turns({name: partial(play, name) for name in names}, repeats, _check_filters)
    return {
        "task": asdict(task),
        "repeats": repeats,
        "backend": simulator.backend,
        "kept_devices": played[_CLEAR][-1].report.kept_devices,
        "rounds": {name: _row(rounds, played[_CLEAR]) for name, rounds in played.items()},
    }


def config_of(task: BenchmarkTask, method: str) -> RunConfig:
    """The settings of a run by a method, or "clear"."""
    private = method != _CLEAR
    least = min(PrivacyConfig().min_cohort, task.clients)
    return RunConfig(
        federation=FederationConfig(
            algorithm="private-delta-fl" if private else "delta-fl",
            cohort_size=task.clients,
            theta=_THETA,
        ),
        quantile=QuantileConfig(method=method) if private else QuantileConfig(),
        privacy=PrivacyConfig(graph="sparse", min_cohort=least),
        policy=PolicyConfig(max_pivots=MOST_PIVOTS, max_mm_pivots_per_device=Fraction(MOST_PIVOTS)),
    )


def _check_filters(played: Mapping[str, "_Round"]) -> None:
    for name, one in played.items():
        if name != _CLEAR:
            check_filter(name, one.report, played[_CLEAR].report)


def check_filter(name: str, private: RoundReport, clear: RoundReport) -> None:
    """Check that a private round trained the same devices as the round in clear.

    A filter that is not certified may keep more of them.

    Raises:
        RunError: it did not.
    """
    if not isinstance(private, PrivateRoundReport):
        raise TypeError(f"{name} reports no private round")
    if private.aborted is not None:
        raise RunError(f"the private round by {name} was given up: {private.aborted}")
    kept, expected = private.kept_weight, clear.kept_weight
    if private.certified is not False and kept != expected:
        raise RunError(
            f"the private round by {name} kept devices of {kept} samples in all, and the round in "
            f"clear of {expected}: they are not the same round, so their times are not compared"
        )


@dataclass(frozen=True, slots=True)
class _Round:
    """A round: seconds by the clock, the protocol's CPU seconds, and what it reports."""

    wall_s: float
    protocol_cpu_s: float
    report: RoundReport


def _play(
    simulator: Simulator, strategy: Strategy, state: TrainingState, rounds: SecureRounds
) -> _Round:
    learning, cpu, wall = simulator.clock.seconds, _cpu_s(), time.perf_counter()
    _, report = simulator.play(strategy, state, rounds)
    wall, cpu = time.perf_counter() - wall, _cpu_s() - cpu
    return _Round(wall, cpu - (simulator.clock.seconds - learning), report)


def _cpu_s() -> float:
    """CPU seconds of this process and its children, or of this process where /proc is not there."""
    all_of_us = usage(os.getpid())
    return time.process_time() if all_of_us is None else all_of_us.cpu_s


def _row(rounds: Sequence[_Round], clear: Sequence[_Round]) -> dict[str, object]:
    seconds, report = [one.wall_s for one in rounds], rounds[-1].report
    row: dict[str, object] = {
        "round_s": [round(one, 4) for one in seconds],
        "seconds": spread(seconds),
    }
    if not isinstance(report, PrivateRoundReport):
        return row
    return row | {
        "over_clear": ratios(seconds, [one.wall_s for one in clear]),
        "protocol_cpu_s": round(median(one.protocol_cpu_s for one in rounds), 3),
        "secure_sums": report.secure_sums,
        "kept_weight": report.kept_weight,
        "certified": report.certified,
    }
