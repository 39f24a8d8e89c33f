"""`deltafl bench sim`: the speed of the simulator, compared with its peers or with privacy.

Without `--private`, every party runs synchronous rounds of FedAvg on the same arrays, and the
benchmark measures client updates per second by the wall clock. Each party is a separate process
that starts once and then waits (`deltafl.sim.bench.peers`). They take turns, one round each, so
that other load affects all of them alike. Start-up and the first round are not timed; after the
first round all models must agree. With `--private`, see `deltafl.sim.bench.privacy_overhead`.

`--json` prints one object. Seconds are by the wall clock unless they are called CPU seconds.

    task        name, model, clients, samples, batch_size, learning_rate, seed, …
    repeats     timed rounds of each party
    parties     by name, "ours" first:
        how             what it runs, in words
        versions        of its packages
        round_s         seconds of every timed round, in order
        updates_per_s   client updates per second: median, lowest, highest
        peak_rss_mb     sum over its living processes of each one's peak, 10^6 bytes; or null
        processes       how many they are; or null
        idle_cpu_s      CPU seconds that it took while others played
        differs_by      ‖w − w_ours‖ / ‖w_ours − w_0‖ after the first round
    ratio       by peer: updates per second of ours over the peer's, turn by turn: median, lowest,
                highest
    best_peer   the one with the most updates per second (median); null without peers
    missing     by peer: the packages that it would need
    hardware    processor, cores, load (of the last minute, before the start), machine, numpy; and
                what of the environment chooses the kernels of BLAS, such as OPENBLAS_CORETYPE
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.superquantile import parse_theta
from deltafl.protocol.errors import ProtocolError
from deltafl.secagg.errors import SecAggError
from deltafl.sim.bench import privacy_overhead
from deltafl.sim.bench.peers.party import NEEDS, OURS, USUAL, Party, missing
from deltafl.sim.bench.peers.tasks import TASKS, BenchmarkTask, make, resized
from deltafl.sim.bench.report import machine
from deltafl.sim.bench.sizes import CLIENTS, check_least
from deltafl.sim.cohort.hardware import processor, usable_cores
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.progress import Bar
from deltafl.sim.settings.config import BACKENDS, METHODS

TOLERANCE: Final = 0.01
"""How far models may differ after one round, as a share of how far ours has moved. Rounding of
float32 alone makes 1e-6; where two numbers of a pooling are equal up to it, the gradient may take
the other way, which has made 2e-3 of forty clients' ConvNet. Another shuffle makes 0.04 or more."""

_KERNELS: Final = ("OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""By these a processor is kept from its best kernels, or led to them: figures depend on it."""

_REPEATS: Final = 5
_PRIVATE_CLIENTS: Final = 100
_EXTRA: Final = "pip install '.[bench]'"
_EXAMPLES: Final = """\
examples:
  deltafl bench sim --task cnn
      the paper's ConvNet, 40 clients: ours compared with every installed peer
  deltafl bench sim --task linear --peers plain --repeats 20
      compared only with the plain PyTorch loop, with more rounds
  deltafl bench sim --task cnn --private --methods histogram,mm
      the cost of privacy: private rounds compared with the same rounds without it

peers: "plain" is the textbook loop in one process with one thread per core. "plain-warm" (only if
named) is the same after one evaluation, which makes glibc keep freed memory. "flower" is flwr's
simulation on Ray with one single-threaded actor per core. "pfl" is the simulated backend of
pfl-research with one single-threaded process per core. flower and pfl need the extra: pip install
'.[bench]'; pfl needs Python 3.12 or older.
Run this on an otherwise idle machine, and trust ratios more than numbers from a single machine.
"""


@dataclass(frozen=True, slots=True)
class SimulationBenchmark:
    """What to measure.

    Attributes:
        task: what is played.
        peers: beside whom.
        repeats: timed rounds of each party.
        backend: who does our devices' work, one of `deltafl.sim.settings.config.BACKENDS`.
    """

    task: BenchmarkTask
    peers: Sequence[str]
    repeats: int
    backend: str = "auto"

    def __post_init__(self) -> None:
        check_least(repeats=(self.repeats, 1))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure client updates per second in synchronous rounds of FedAvg. Our simulator and each "
        "peer take turns on the same samples. With --private, measure instead how much private "
        "rounds cost compared with rounds without secure aggregation."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--task",
        choices=list(TASKS),
        required=True,
        help="cnn: ConvNet, 40 clients of 179 images, batch 16; linear: 784 -> 62, 100 clients of "
        "179, batch 10; gru: GRU(128) on 53 symbols, 10 clients of 1288 texts, batch 16",
    )
    parser.add_argument(
        "--backend", choices=BACKENDS, default="auto", help="backend of our simulator (auto)"
    )
    parser.add_argument(
        "--peers",
        metavar="NAME,…",
        help=f"peers to compare with, from {', '.join(NEEDS)}, or none (default: the installed "
        f"ones of {', '.join(USUAL)})",
    )
    parser.add_argument(
        "--clients",
        type=CLIENTS,
        metavar="N",
        help="number of clients (default: the task's; with --private: 100)",
    )
    parser.add_argument(
        "--samples", type=int, metavar="N", help="samples per client (default: the task's)"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=_REPEATS,
        metavar="R",
        help=f"timed rounds of each party ({_REPEATS})",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="seed of data and shuffles (1)"
    )
    parser.add_argument(
        "--private", action="store_true", help="measure the overhead of privacy, without peers"
    )
    parser.add_argument(
        "--methods",
        default="histogram,bracketed,mm",
        metavar="NAME,…",
        help="with --private: methods of the threshold search (histogram,bracketed,mm)",
    )
    parser.add_argument(
        "--theta",
        default="0.5",
        metavar="θ",
        help="with --private: the tail fraction that is kept (0.5)",
    )
    add_json(parser)
    add_quiet(parser)


def main(arguments: argparse.Namespace) -> int:
    """Run the benchmark and print what was measured; the exit code."""
    hardware, clients = _hardware(), arguments.clients
    if arguments.private and clients is None:
        clients = _PRIVATE_CLIENTS
    try:
        task = resized(
            TASKS[arguments.task], clients=clients, samples=arguments.samples, seed=arguments.seed
        )
        if arguments.private:
            measured = privacy_overhead.measure(
                privacy_overhead.PrivacyBenchmark(
                    task=task,
                    methods=_names(arguments.methods, METHODS, "--methods"),
                    theta=parse_theta(arguments.theta),
                    repeats=arguments.repeats,
                    backend=arguments.backend,
                )
            )
        else:
            peers, absent = _peers(arguments.peers)
            measured = measure(
                SimulationBenchmark(task, peers, arguments.repeats, arguments.backend)
            )
            measured["missing"] = absent
        measured["hardware"] = hardware
    except (UserError, SecAggError, ProtocolError, ValueError) as error:
        print(f"deltafl: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"deltafl: the benchmark failed: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(measured, indent=2))
    else:
        print(privacy_overhead.describe(measured) if arguments.private else _describe(measured))
        print(", ".join(f"{name} {value}" for name, value in hardware.items()))
    return 0


def measure(benchmark: SimulationBenchmark) -> dict[str, object]:
    """Let all parties play in turns; the module says what is returned.

    Raises:
        RunError: a party fails, or its model is not ours after the first round.
    """
    names = [OURS, *benchmark.peers]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deltafl-bench-")))
        federation = make(benchmark.task)
        federation.save(folder)
        bar = stack.enter_context(
            Bar(total=len(names) * (1 + benchmark.repeats), unit="round", desc="rounds")
        )
        parties = []
        for name in names:
            bar.set_description(f"{name} starts")
            more = [benchmark.backend] if name == OURS else []
            parties.append(stack.enter_context(Party(name, folder, *more)))
        for turn in range(1 + benchmark.repeats):
            for party in parties:
                bar.set_description(party.name)
                spent = party.play()
                bar.update()
                if turn > 0:
                    seconds[party.name].append(spent)
            if turn == 0:
                models = {party.name: party.model() for party in parties}
                differences = differences_from(models, federation.model)
                check_agreement(differences)
        described = {
            party.name: _party(party, seconds[party.name], benchmark.task.clients)
            | {"differs_by": differences[party.name]}
            for party in parties
        }
    fastest = sorted(benchmark.peers, key=lambda peer: median(seconds[peer]))
    return {
        "task": asdict(benchmark.task),
        "repeats": benchmark.repeats,
        "parties": described,
        "ratio": {
            peer: spread([p / o for p, o in zip(seconds[peer], seconds[OURS], strict=True)])
            for peer in benchmark.peers
        },
        "best_peer": fastest[0] if fastest else None,
    }


def differences_from(
    models: Mapping[str, npt.NDArray[np.float32]], start: npt.NDArray[np.float32]
) -> dict[str, float]:
    """How far each party's model is from ours, as a share of how far ours has moved.

    Args:
        models: by party, with "ours", after the same round.
        start: the model before it.
    """
    moved = float(np.linalg.norm(models[OURS] - start))
    return {
        name: float(np.linalg.norm(model - models[OURS])) / moved for name, model in models.items()
    }


def check_agreement(differences: Mapping[str, float]) -> None:
    """Check that everybody played the same round.

    Raises:
        RunError: a model differs by more than `TOLERANCE`.
    """
    for name, difference in differences.items():
        if not difference <= TOLERANCE:
            raise RunError(
                f"after one round the model of {name} differs from ours by {difference:.2g} of the "
                f"way that ours has gone, and rounding makes less than {TOLERANCE:g}: the parties "
                "do not play the same round, so their speeds are not compared"
            )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {
        "median": round(median(values), 4),
        "lowest": round(min(values), 4),
        "highest": round(max(values), 4),
    }


def _party(party: Party, seconds: Sequence[float], clients: int) -> dict[str, object]:
    usage = party.usage()
    return {
        "how": party.how,
        "versions": party.versions,
        "round_s": [round(one, 5) for one in seconds],
        "updates_per_s": spread([clients / one for one in seconds]),
        "peak_rss_mb": None if usage is None else round(usage.peak_rss_mb, 1),
        "processes": None if usage is None else usage.processes,
        "idle_cpu_s": round(party.idle_cpu_s, 2),
    }


def _peers(asked: str | None) -> tuple[list[str], dict[str, list[str]]]:
    """The peers to play with, and those that are not installed.

    Raises:
        UserError: a peer that was asked for by name is unknown or not installed.
    """
    if asked == "none":
        return [], {}
    names = list(USUAL) if asked is None else _names(asked, tuple(NEEDS), "--peers")
    absent = {name: packages for name in names if (packages := missing(name))}
    for name, packages in absent.items():
        sentence = f"{name} needs {' and '.join(packages)}, not installed here: {_EXTRA}"
        if asked is not None:
            raise UserError(f"--peers {asked}: {sentence}")
        print(f"deltafl: note: {sentence}; the others go on", file=sys.stderr)
    return [name for name in names if name not in absent], absent


def _names(text: str, known: Sequence[str], option: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise UserError(f"{option} {text}: {name!r} is none of {', '.join(known)}")
    return names


def _hardware() -> dict[str, object]:
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "load": round(os.getloadavg()[0], 2),
        "machine": machine(),
        "numpy": np.__version__,
        **{name: os.environ[name] for name in _KERNELS if name in os.environ},
    }


def _describe(measured: Mapping[str, object]) -> str:
    task, parties, ratios = measured["task"], measured["parties"], measured["ratio"]
    if not (
        isinstance(task, Mapping) and isinstance(parties, Mapping) and isinstance(ratios, Mapping)
    ):
        raise TypeError("not what measure returns")
    lines = [
        f"{task['name']}: {task['clients']} clients of {task['samples']} samples, batch "
        f"{task['batch_size']}, one epoch; {measured['repeats']} rounds each, in turns; start-up "
        "and the first round are not timed",
        "",
        f"{'':<8}{'updates/s':>10}{'lowest':>9}{'highest':>9}{'ours/peer':>11}{'peak MB':>9}"
        f"{'idle CPU s':>12}",
    ]
    for name, party in parties.items():
        speed = party["updates_per_s"]
        ratio = f"{ratios[name]['median']:.2f}" if name in ratios else ""
        lines.append(
            f"{name:<8}{speed['median']:>10.4g}{speed['lowest']:>9.4g}{speed['highest']:>9.4g}"
            f"{ratio:>11}{party['peak_rss_mb'] or '?':>9}{party['idle_cpu_s']:>12}"
        )
    lines.append("")
    best = measured["best_peer"]
    if best is not None:
        span = ratios[best]
        lines.append(
            f"ours over the best peer, {best}: {span['median']:.2f} "
            f"({span['lowest']:.2f}-{span['highest']:.2f})"
        )
    for name, party in parties.items():
        versions = ", ".join(
            f"{package} {version}" for package, version in party["versions"].items()
        )
        lines.append(f"{name}: {party['how']} ({versions})")
    lines.append("peak MB: the sum of every living process's largest resident set")
    return "\n".join(lines)
