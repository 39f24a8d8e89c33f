"""The arguments of `deltafl bench net`, and what follows from them; help loads nothing heavy."""

import os
from dataclasses import dataclass
from hashlib import sha256

from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.identity import Identity, generate
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.bench.harness import command
from deltafl.sim.bench.round_flags import RoundBenchmark
from deltafl.sim.settings.config import REMOTE, RunConfig


@dataclass(frozen=True, slots=True)
class NetBenchmark(RoundBenchmark):
    """What to measure."""

    processes: int = os.cpu_count() or 1
    no_tls: bool = False
    wait: float | None = None

    @property
    def patience(self) -> float:
        """Seconds that the server waits for an answer."""
        usual = 30.0 if self.dropout else 600.0
        return usual if self.wait is None else self.wait

    def remote(self) -> RunConfig:
        """The settings of the round, whose devices are connected."""
        return self.config(devices=REMOTE)

    def identity(self, index: int) -> Identity:
        """A device's identity, which both sides of the benchmark work out."""
        seed = sha256(b"deltafl bench net %d %d" % (self.seed, index)).digest()
        return generate(SeededRandomness(seed))

    def directory(self) -> TrustedKeys:
        """The federation's list."""
        each = range(self.clients)
        return TrustedKeys({ClientId(i): self.identity(i).public for i in each})


add_arguments, main = command(
    NetBenchmark,
    "deltafl.sim.bench.net:measure",
    "Measure one round of private Δ-FL with N devices that are connected over loopback: wall clock "
    "and the server's CPU by stage, bytes, and peak memory of the server. The devices are "
    "coroutines in a few processes, which share this machine with the server. Half of the devices "
    "that vanish do so at the first query, the others when their update is due.",
)
