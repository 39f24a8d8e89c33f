"""The arguments of `deltafl bench sim`; nothing heavy is loaded for its help."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deltafl.sim.bench.harness import command

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
    """What to measure; without clients or samples, as many as the task has."""

    task: str = "cnn"
    backend: str = "auto"
    peers: Sequence[str] | None = None
    clients: int | None = None
    samples: int | None = None
    private: bool = False
    methods: Sequence[str] = ("histogram", "bracketed", "mm")
    repeats: int = 5
    seed: int = 1


add_arguments, main = command(
    SimulationBenchmark,
    "deltafl.sim.bench.sim:measure",
    "Measure client updates per second in synchronous rounds of FedAvg. Our simulator and each "
    "peer take turns on the same samples. With --private, measure instead how much private rounds "
    "cost compared with rounds without secure aggregation. Clients and samples are by default "
    "those of the task; with --private, there are 100 clients.",
    _EXAMPLES,
)
