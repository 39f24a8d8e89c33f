"""`deltafl bench sim`: the speed of the simulator, compared with its peers or with privacy.

Without `--private`, every party runs synchronous rounds of FedAvg on the same arrays, and the
benchmark measures client updates per second by the wall clock. Each party is a separate process
that starts once and then waits (`deltafl.sim.bench.peers`). They take turns, one round each, so
that other load affects all of them alike. Start-up and the first round are not timed; after the
first round all models must agree. With `--private`, see `deltafl.sim.bench.privacy`.

    task        name, model, clients, samples, batch_size, learning_rate, seed, …
    parties     by name, "ours" first:
        round_s         seconds of every timed round, in order
        updates_per_s   client updates per second: median, lowest, highest
        ours_over       updates per second of ours over the party's, turn by turn
        peak_rss_mb     sum over its living processes of each one's peak, 10^6 bytes; or null
        processes       how many they are; or null
        differs_by      ‖w − w_ours‖ / ‖w_ours − w_0‖ after the first round
    made_of     by party: what it runs, and the versions of its packages
    best_peer   the one with the most updates per second (median); null without peers
    missing     by peer: the packages that it would need
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.superquantile import parse_theta
from deltafl.sim.bench import privacy
from deltafl.sim.bench.harness import (
    CLIENTS,
    Flag,
    Repeats,
    Report,
    Seed,
    add_flags,
    check_least,
    command,
    in_turns,
    ratios,
    spread,
)
from deltafl.sim.bench.peers.party import NEEDS, OURS, USUAL, Party, missing
from deltafl.sim.bench.peers.tasks import TASKS, BenchmarkTask, make, resized
from deltafl.sim.errors import RunError, UserError
from deltafl.sim.settings.config import BACKENDS, METHODS

TOLERANCE: Final = 0.01
"""How far models may differ after one round, as a share of how far ours has moved. Rounding of
float32 alone makes 1e-6; where two numbers of a pooling are equal up to it, the gradient may take
the other way, which has made 2e-3 of forty clients' ConvNet. Another shuffle makes 0.04 or more."""

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


@dataclass(frozen=True, slots=True)
class _Flags:
    task: Annotated[
        str,
        Flag(
            "cnn: ConvNet, 40 clients of 179 images, batch 16; linear: 784 -> 62, 100 clients of "
            "179, batch 10; gru: GRU(128) on 53 symbols, 10 clients of 1288 texts, batch 16",
            choices=tuple(TASKS),
        ),
    ] = "cnn"
    backend: Annotated[str, Flag("backend of our simulator", choices=BACKENDS)] = "auto"
    peers: Annotated[
        str | None,
        Flag(
            f"peers to compare with, from {', '.join(NEEDS)}, or none (default: the installed "
            f"ones of {', '.join(USUAL)})",
            "NAME,…",
            str,
        ),
    ] = None
    clients: Annotated[
        int | None, Flag("clients (default: the task's; with --private: 100)", kind=CLIENTS)
    ] = None
    samples: Annotated[int | None, Flag("samples per client (default: the task's)", "N", int)] = (
        None
    )
    private: Annotated[bool, Flag("measure the overhead of privacy, without peers")] = False
    methods: Annotated[str, Flag("with --private: methods of the threshold search", "NAME,…")] = (
        "histogram,bracketed,mm"
    )
    theta: Annotated[str, Flag("with --private: the tail fraction that is kept", "θ")] = "0.5"
    repeats: Repeats = 5
    seed: Seed = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = (
        "Measure client updates per second in synchronous rounds of FedAvg. Our simulator and each "
        "peer take turns on the same samples. With --private, measure instead how much private "
        "rounds cost compared with rounds without secure aggregation."
    )
    parser.epilog = _EXAMPLES
    add_flags(parser, _Flags)


def measure(benchmark: SimulationBenchmark) -> Report:
    """Let all parties play in turns; the module says what is returned.

    Raises:
        RunError: a party fails, or its model is not ours after the first round.
    """
    names = [OURS, *benchmark.peers]
    differences: dict[str, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deltafl-bench-")))
        federation = make(benchmark.task)
        federation.save(folder)
        parties = {
            name: stack.enter_context(
                Party(name, folder, *([benchmark.backend] if name == OURS else []))
            )
            for name in names
        }

        def compare(_: Mapping[str, float]) -> None:
            models = {name: party.model() for name, party in parties.items()}
            differences.update(differences_from(models, federation.model))
            check_agreement(differences)

        works = {name: party.play for name, party in parties.items()}
        seconds = in_turns(works, benchmark.repeats, compare)
        described = {name: _described(party) for name, party in parties.items()}
    fastest = sorted(benchmark.peers, key=lambda peer: median(seconds[peer]))
    return {
        "task": asdict(benchmark.task),
        "repeats": benchmark.repeats,
        "best_peer": fastest[0] if fastest else None,
        "made_of": {name: party.made_of for name, party in parties.items()},
        "parties": {
            name: {
                "round_s": [round(one, 5) for one in spent],
                "updates_per_s": spread([benchmark.task.clients / one for one in spent]),
                "ours_over": ratios(spent, seconds[OURS]),
                **described[name],
                "differs_by": differences[name],
            }
            for name, spent in seconds.items()
        },
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


def _described(party: Party) -> dict[str, object]:
    usage = party.usage()
    return {
        "peak_rss_mb": None if usage is None else round(usage.peak_rss_mb, 1),
        "processes": None if usage is None else usage.processes,
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


def _measured(options: argparse.Namespace) -> Report:
    clients = options.clients
    if options.private and clients is None:
        clients = _PRIVATE_CLIENTS
    task = resized(TASKS[options.task], clients=clients, samples=options.samples, seed=options.seed)
    if options.private:
        methods = _names(options.methods, METHODS, "--methods")
        theta = parse_theta(options.theta)
        return privacy.measure(
            privacy.PrivacyBenchmark(task, methods, theta, options.repeats, options.backend)
        )
    peers, absent = _peers(options.peers)
    measured = measure(SimulationBenchmark(task, peers, options.repeats, options.backend))
    return {"missing": ", ".join(absent), **measured}


main = command(_measured)
