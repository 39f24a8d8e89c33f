"""What is declared of one study of the headline: data and a model, methods, grids and seeds.

The first study, MNIST by writer with a linear model, is declared in
`deltafl.sim.reproduce.declared`; the others are in `deltafl.sim.reproduce.declared_others`, each
before its runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from deltafl.sim.reproduce.declared import EVERY, ROUNDS, SMALL_STEPS, TUNED, Setting
from deltafl.sim.reproduce.methods import FEDAVG, Method

FIRST: Final = "mnist-linear"
"""The task of the first study."""


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """The declaration of one study.

    Attributes:
        task: the name of its task, `deltafl.sim.reproduce.tasks`.
        users: what its devices are, such as "writers".
        seeds: how many the tests are made on.
        tuning_seeds: how many each point of a grid is tried with.
        small_rate: the learning rate of the family "small steps".
        families: the methods of each family; every one but FedAvg is tested against FedAvg.
        grids: from the label of a method that is tuned to the settings that it is tried with.
        rounds: after which the tests are made.
        curve: rounds of the runs in clear at small steps, to see what becomes of a difference.
        every: rounds between two evaluations of the tested devices.
        max_samples: most samples of a device, drawn anew by each seed; 0 takes all that the data
            set leaves.
        only_if_named: whether it runs only where --models names it, because it takes long.
        tunes_batched: whether tuning has the batched backend too; tests always have it.
    """

    task: str
    users: str
    seeds: int
    tuning_seeds: int
    small_rate: float
    families: Mapping[str, tuple[Method, ...]]
    grids: Mapping[str, tuple[Setting, ...]]
    rounds: int = ROUNDS
    curve: int = ROUNDS
    every: int = EVERY
    max_samples: int = 0
    only_if_named: bool = False
    tunes_batched: bool = True

    @property
    def num_tests(self) -> int:
        """How many tests are made, which Holm's correction is over."""
        return sum(len(methods) - 1 for methods in self.families.values())

    @property
    def tuned(self) -> tuple[Method, ...]:
        """What is tuned, in the order of its family; private Δ-FL takes the settings of Δ-FL."""
        return tuple(one for one in self.families[TUNED] if one.label in self.grids)

    @property
    def budget(self) -> int:
        """How many settings each method is tried with."""
        return len(self.grids[FEDAVG.label])

    def rounds_of(self, family: str, *, clear: bool) -> int:
        """How long a run takes, in clear or private."""
        return self.curve if family == SMALL_STEPS and clear else self.rounds

    def file(self, name: str) -> str:
        """What a table or a figure of this study is called; those of the first have no suffix."""
        return name if self.task == FIRST else f"{name}-{self.task}"
