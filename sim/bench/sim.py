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

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from deltafl.fl.vectors import Vector
from deltafl.sim.bench import privacy
from deltafl.sim.bench.harness import Report, in_turns, ratios, spread
from deltafl.sim.bench.peers import flower, ours, pfl_research, plain
from deltafl.sim.bench.peers.party import Party
from deltafl.sim.bench.peers.tasks import TASKS, BenchmarkTask
from deltafl.sim.bench.sim_flags import SimulationBenchmark
from deltafl.sim.errors import RunError, UserError

TOLERANCE: Final = 0.01
"""How far models may differ after one round, as a share of how far ours has moved. Rounding of
float32 alone makes 1e-6; where two numbers of a pooling are equal up to it, the gradient may take
the other way, which has made 2e-3 of forty clients' ConvNet. Another shuffle makes 0.04 or more."""

_PRIVATE_CLIENTS: Final = 100
_EXTRA: Final = "pip install '.[bench]'"


class Peer(NamedTuple):
    """Who plays.

    Attributes:
        program: what a `Party` calls.
        needs: packages beside torch.
        options: of the program.
        usual: whether it is taken where none are named.
    """

    program: Callable[..., None]
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    usual: bool = True

    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


OURS: Final = "ours"
PEERS: Final = {
    "plain": Peer(plain.main),
    "plain-warm": Peer(plain.main, options=("warm",), usual=False),
    "flower": Peer(flower.main, ("flwr", "ray")),
    "pfl": Peer(pfl_research.main, ("pfl",)),
}


def played(benchmark: SimulationBenchmark) -> BenchmarkTask:
    """The task in its size."""
    task = TASKS[benchmark.task]
    usual = _PRIVATE_CLIENTS if benchmark.private else task.clients
    samples, clients = benchmark.samples or task.samples, benchmark.clients or usual
    return replace(task, clients=clients, samples=samples, seed=benchmark.seed)


def measure(benchmark: SimulationBenchmark) -> Report:
    """Let all parties play in turns, or private rounds; the module says what is returned.

    Raises:
        ValueError: the cohort is too small for a session.
        UserError: a peer that was asked for by name is unknown or not installed.
        RunError: a party fails, or its model is not ours after the first round.
    """
    task = played(benchmark)
    if benchmark.private:
        return privacy.measure(task, benchmark.methods, benchmark.repeats, benchmark.backend)
    peers, absent = peers_of(benchmark.peers)
    return {"missing": ", ".join(absent), **_compared(benchmark, task, peers)}


def _compared(benchmark: SimulationBenchmark, task: BenchmarkTask, peers: Sequence[str]) -> Report:
    start, differences = task.first_model(), dict[str, float]()
    players = {OURS: Peer(ours.main, options=(benchmark.backend,))}
    players |= {name: PEERS[name] for name in peers}
    with ExitStack() as stack:
        parties = {
            name: stack.enter_context(closing(Party(name, one.program, task, start, *one.options)))
            for name, one in players.items()
        }

        def compare(_: Mapping[str, float]) -> None:
            models = {name: party.model() for name, party in parties.items()}
            differences.update(differences_from(models, start))
            check_agreement(differences)

        works = {name: party.play for name, party in parties.items()}
        seconds = in_turns(works, benchmark.repeats, compare)
        described = {name: _described(party) for name, party in parties.items()}
    return {
        "task": asdict(task),
        "repeats": benchmark.repeats,
        "best_peer": min(peers, key=lambda peer: median(seconds[peer]), default=None),
        "made_of": {name: party.made_of for name, party in parties.items()},
        "parties": {
            name: {
                "round_s": [round(one, 5) for one in spent],
                "updates_per_s": spread([task.clients / one for one in spent]),
                "ours_over": ratios(spent, seconds[OURS]),
                **described[name],
                "differs_by": differences[name],
            }
            for name, spent in seconds.items()
        },
    }


def differences_from(models: Mapping[str, Vector], start: Vector) -> dict[str, float]:
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


def peers_of(asked: Sequence[str] | None) -> tuple[list[str], dict[str, list[str]]]:
    """The peers to play with, and those that are not installed.

    Raises:
        UserError: a peer that was asked for by name is unknown or not installed.
    """
    if asked == ["none"]:
        return [], {}
    names = [name for name, peer in PEERS.items() if peer.usual] if asked is None else asked
    for name in names:
        if name not in PEERS:
            raise UserError(f"--peers: {name!r} is none of {', '.join(PEERS)}")
    absent = {name: packages for name in names if (packages := PEERS[name].missing())}
    for name, packages in absent.items():
        sentence = f"{name} needs {' and '.join(packages)}, not installed here: {_EXTRA}"
        if asked is not None:
            raise UserError(f"--peers: {sentence}")
        print(f"deltafl: note: {sentence}; the others go on", file=sys.stderr)
    return [name for name in dict.fromkeys(names) if name not in absent], absent
