"""All studies of the headline, the first as it was declared, and which of them are asked for."""

from types import MappingProxyType
from typing import Final

from deltafl.sim.reproduce import declared
from deltafl.sim.reproduce.declared_convnet import MNIST_CONVNET
from deltafl.sim.reproduce.declared_others import OTHERS
from deltafl.sim.reproduce.declared_plays import PLAYS_GRU
from deltafl.sim.reproduce.experiment import Request
from deltafl.sim.reproduce.study import FIRST, Study
from deltafl.sim.reproduce.tasks import Chosen, Task, choose_tasks

MNIST_LINEAR: Final = Study(
    FIRST,
    users="writers",
    seeds=declared.SEEDS,
    tuning_seeds=declared.TUNING_SEEDS,
    small_rate=declared.SMALL_RATE,
    families=declared.FAMILIES,
    grids=MappingProxyType(
        {method.label: declared.grid_of(method) for method in declared.TUNED_METHODS}
    ),
    curve=declared.CURVE,
    tunes_batched=False,
)

STUDIES: Final = (MNIST_LINEAR, *OTHERS, MNIST_CONVNET, PLAYS_GRU)
"""In the order in which their tables are printed."""


def study_of(task: str) -> Study:
    """The study of a task, by the task's name.

    Raises:
        KeyError: the headline has no such task.
    """
    return {study.task: study for study in STUDIES}[task]


def choose_studies(request: Request, tasks: tuple[Task, ...]) -> list[tuple[Chosen, Study]]:
    """Tasks with their data, and their studies; one that takes long only where it is named.

    Raises:
        ConfigError: nothing can be chosen, see `choose_tasks`.
    """
    wanted = [one for one in tasks if request.models or not study_of(one.name).only_if_named]
    return [(one, study_of(one.task.name)) for one in choose_tasks(request, tuple(wanted))]
