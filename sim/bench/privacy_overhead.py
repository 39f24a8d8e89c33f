"""What privacy costs: private rounds of Δ-FL over the same rounds in clear, end to end.

Strategies are those that the engine builds from settings. All rounds are played from one state, a
few rounds into training, so that losses differ and a search has something to find; rounds in clear
and by each method take turns. The protocol's CPU time is all that this process and its children
took but learning.

    task, repeats, theta, backend, hardware     what was played, and where
    clear       round_s: seconds of every timed round; kept_devices: of the filter
    methods     by name:
        round_s         seconds of every timed round
        over_clear      private over clear, turn by turn: median, lowest, highest
        protocol_cpu_s  CPU seconds of the protocol in a round, median
        secure_sums     of a round, the search's among them
        kept_weight     Σ n_k over the devices that passed the filter
        certified       whether the filter is proved to be that of the exact quantile
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from statistics import median
from typing import Final

import numpy as np

from deltafl.fl.strategies.base import RoundReport, Strategy, TrainingState
from deltafl.fl.strategies.private_delta_fl import PrivateRoundReport
from deltafl.secagg.session import NoObserver
from deltafl.sim.bench.peers.ours import Simulator
from deltafl.sim.bench.peers.process_tree import usage
from deltafl.sim.bench.peers.tasks import BenchmarkTask, make
from deltafl.sim.bench.sizes import check_least
from deltafl.sim.cohort.simulated import SecureRounds
from deltafl.sim.errors import RunError
from deltafl.sim.progress import Bar
from deltafl.sim.run.algorithms import build_rounds
from deltafl.sim.run.levels import strategy_of
from deltafl.sim.settings.config import (
    FederationConfig,
    PolicyConfig,
    PrivacyConfig,
    QuantileConfig,
    RunConfig,
)

_ROUNDS_BEFORE: Final = 3
_MOST_PIVOTS: Final = 320  # of `histogram`; devices of a benchmark accept them, of `mm` too
_CLEAR: Final = "clear"


@dataclass(frozen=True, slots=True)
class PrivacyBenchmark:
    """What to measure.

    Attributes:
        task: what is played; its clients are the cohort.
        methods: of searching for the threshold: `deltafl.sim.settings.config.METHODS`, but for
            noise.
        theta: θ, the tail fraction that is kept, in (0, 1].
        repeats: timed rounds in clear and by each method.
        backend: who does the devices' work, one of `deltafl.sim.settings.config.BACKENDS`.
    """

    task: BenchmarkTask
    methods: Sequence[str]
    theta: Fraction
    repeats: int
    backend: str = "auto"

    def __post_init__(self) -> None:
        check_least(repeats=(self.repeats, 1))

    def config(self, method: str) -> RunConfig:
        """The settings of a run by a method, or "clear".

        Raises:
            ValueError: θ is out of its range.
        """
        private = method != _CLEAR
        defaults = PrivacyConfig()
        return RunConfig(
            federation=FederationConfig(
                algorithm="private-delta-fl" if private else "delta-fl",
                cohort_size=self.task.clients,
                theta=self.theta,
            ),
            quantile=QuantileConfig(method=method) if private else QuantileConfig(),
            privacy=replace(
                defaults, graph="sparse", min_cohort=min(defaults.min_cohort, self.task.clients)
            ),
            policy=PolicyConfig(
                max_pivots=_MOST_PIVOTS, max_mm_pivots_per_device=Fraction(_MOST_PIVOTS)
            ),
        )


def measure(benchmark: PrivacyBenchmark) -> dict[str, object]:
    """Play rounds in turns; the module says what is returned.

    Raises:
        ValueError: θ is out of its range, or the cohort too small for a session.
        UserError: a method or the backend is not to be had so.
        RunError: a private round kept other devices than the one in clear.
    """
    names = [_CLEAR, *benchmark.methods]
    configs = {name: benchmark.config(name) for name in names}
    strategies = {name: strategy_of(config) for name, config in configs.items()}
    common = configs[_CLEAR]
    spent: dict[str, list[float]] = {name: [] for name in names}
    protocol: dict[str, list[float]] = {name: [] for name in names}
    reports: dict[str, RoundReport] = {}
    federation = make(benchmark.task)
    with (
        Simulator(federation, benchmark.backend) as simulator,
        Bar(
            total=_ROUNDS_BEFORE + len(names) * (1 + benchmark.repeats), unit="round", desc="rounds"
        ) as bar,
    ):
        state = strategies[_CLEAR].init(np.array(federation.model), benchmark.task.clients)
        for _ in range(_ROUNDS_BEFORE):
            bar.set_description("training")
            state, _ = simulator.play(strategies[_CLEAR], state)
            bar.update()
        for turn in range(1 + benchmark.repeats):
            for name in names:
                bar.set_description(name)
                # anew, because devices answer for a model only once and all rounds are about one
                rounds = build_rounds(common, NoObserver())
                wall, cpu, reports[name] = _play(simulator, strategies[name], state, rounds)
                bar.update()
                if turn > 0:
                    spent[name].append(wall)
                    protocol[name].append(cpu)
            if turn == 0:
                for name in benchmark.methods:
                    check_filter(name, reports[name], reports[_CLEAR])
    return {
        "task": asdict(benchmark.task),
        "repeats": benchmark.repeats,
        "theta": str(benchmark.theta),
        "backend": simulator.backend,
        "clear": {
            "round_s": [round(one, 4) for one in spent[_CLEAR]],
            "kept_devices": reports[_CLEAR].kept_devices,
        },
        "methods": {
            name: _method(reports[name], spent[name], spent[_CLEAR], protocol[name])
            for name in benchmark.methods
        },
    }


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


def _play(
    simulator: Simulator, strategy: Strategy, state: TrainingState, rounds: SecureRounds
) -> tuple[float, float, RoundReport]:
    """Seconds by the clock, the protocol's CPU seconds, and what the round reports."""
    learning, cpu, wall = simulator.clock.seconds, _cpu_s(), time.perf_counter()
    _, report = simulator.play(strategy, state, rounds)
    wall, cpu = time.perf_counter() - wall, _cpu_s() - cpu
    return wall, cpu - (simulator.clock.seconds - learning), report


def _cpu_s() -> float:
    """CPU seconds of this process and its children, or of this process where /proc is not there."""
    all_of_us = usage(os.getpid())
    return time.process_time() if all_of_us is None else all_of_us.cpu_s


def _method(
    report: RoundReport, spent: Sequence[float], clear: Sequence[float], protocol: Sequence[float]
) -> dict[str, object]:
    ratios = [private / plain for private, plain in zip(spent, clear, strict=True)]
    return {
        "round_s": [round(one, 4) for one in spent],
        "over_clear": {
            "median": round(median(ratios), 4),
            "lowest": round(min(ratios), 4),
            "highest": round(max(ratios), 4),
        },
        "protocol_cpu_s": round(median(protocol), 3),
        "secure_sums": report.secure_sums,
        "kept_weight": report.kept_weight,
        "certified": report.certified if isinstance(report, PrivateRoundReport) else None,
    }


def describe(measured: Mapping[str, object]) -> str:
    """What `measure` returned, for people."""
    task, clear, methods = measured["task"], measured["clear"], measured["methods"]
    if not (
        isinstance(task, Mapping) and isinstance(clear, Mapping) and isinstance(methods, Mapping)
    ):
        raise TypeError("not what measure returns")
    lines = [
        f"{task['name']}: {task['clients']} clients of {task['samples']} samples, θ = "
        f"{measured['theta']}, backend {measured['backend']!r}; {measured['repeats']} rounds each, "
        "in turns, from one state",
        "",
        f"{'':<12}{'round s':>9}{'over clear':>12}{'lowest':>8}{'highest':>9}{'protocol CPU s':>16}"
        f"{'secure sums':>13}{'certified':>11}",
        f"{_CLEAR:<12}{median(clear['round_s']):>9.3f}",
    ]
    for name, method in methods.items():
        ratio = method["over_clear"]
        lines.append(
            f"{name:<12}{median(method['round_s']):>9.3f}{ratio['median']:>12.3f}"
            f"{ratio['lowest']:>8.3f}{ratio['highest']:>9.3f}{method['protocol_cpu_s']:>16.3f}"
            f"{method['secure_sums']:>13}{method['certified']!s:>11}"
        )
    return "\n".join(lines)
