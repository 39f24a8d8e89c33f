"""The arguments of `deltafl bench round`, and what follows from them; help loads nothing heavy.

Other benchmarks of rounds have the same arguments, and more.
"""

from dataclasses import dataclass

from deltafl.secagg import GraphKind
from deltafl.secagg.states import Stage, Step, Vanish
from deltafl.sim.bench.harness import MOST_PIVOTS, command
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import build_config


@dataclass(frozen=True, slots=True)
class RoundBenchmark:
    """What to measure.

    Half of the devices that vanish do so at the first query, the others when their update is due.
    """

    clients: int = 100
    dim: int = 115_646
    method: str = "mm"
    queries: int = 24
    search: str = "trusted"
    graph: GraphKind = GraphKind.SPARSE
    dropout: float = 0.0
    seed: int = 1

    def config(self, **federation: object) -> RunConfig:
        """The settings of the round, whose devices accept as long a search as is asked for.

        Args:
            federation: more settings of that section.
        """
        pivots = max(self.queries, MOST_PIVOTS)
        settings: dict[str, dict[str, object]] = {
            "federation": {"rounds": 1, "cohort_size": self.clients, **federation},
            "quantile": {
                "max_queries": self.queries,
                "method": self.method,
                "search": "trusted" if self.search == "trusted" else "verified",
                "votes": "proved" if self.search == "proved" else "trusted",
            },
            "privacy": {"graph": str(self.graph), "min_cohort": 5},
            "policy": {"max_pivots": pivots, "max_mm_pivots_per_device": str(pivots)},
            "training": {"device": "cpu"},
            "experiment": {"seed": self.seed},
        }
        return build_config([settings])

    def losses(self) -> tuple[list[float], list[int]]:
        """The loss and the weight of each device."""
        generator = Seeds(self.seed).generator(Purpose.COHORT)
        losses = generator.gamma(2.0, 1.0, self.clients)
        return losses.tolist(), generator.integers(1, 200, self.clients).tolist()

    def vanishing(self, num_slots: int) -> dict[int, Vanish]:
        """Who vanishes, and before which vector: that of the first slot, or of the last."""
        number = round(self.dropout * self.clients)
        drawn = Seeds(self.seed).generator(Purpose.DROPOUT).permutation(self.clients)[:number]
        first, last = (Vanish(Step(Stage.MASK, slot)) for slot in (0, num_slots - 1))
        return {int(one): first if n < number // 2 else last for n, one in enumerate(drawn)}


add_arguments, main = command(
    RoundBenchmark,
    "deltafl.sim.bench.round:measure",
    "Measure one protocol round without training: CPU seconds of a device and of the server, and "
    "bytes, by stage, and the round trips of a round. Devices have random losses and updates of D "
    "numbers. With --search verified, each device commits to its answers and checks every sum of "
    "the search; with proved, it also proves that they are valid. Half of the devices that vanish "
    "do so at the first query, the others when their update is due.",
)
