"""An experiment, and the runs that a request for it needs: tasks × methods × seeds.

And what readers of their results must know: stand-ins, and settings that differ from the papers'.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from deltafl.protocol.anonymity import expected_tail
from deltafl.sim.reproduce.experiment import Cell, Finished, Report, Request
from deltafl.sim.reproduce.methods import (
    DELTA_FL,
    FEDAVG,
    PRIVATE_DELTA_FL,
    Layer,
    Method,
    choose_methods,
)
from deltafl.sim.reproduce.tasks import DATA_SETS, VECTORS, Chosen, Task, choose_tasks
from deltafl.sim.run.algorithms import keeps_enough
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import build_config, flatten, show

_COMPARED: Final = ("data.", "training.", "federation.", "model.", "faults.")
_NOT_COMPARED: Final = (
    "federation.algorithm",  # of the method
    "federation.theta",
    "data.source",  # of the data set, which is named
    "data.format",
    "data.num_classes",
    "data.num_devices",
    "data.vectors",
)
_OF_THE_CODE: Final = ("training.l2", "data.standardise")  # the paper does not print them
_ZERO_IS_ALL: Final = ("data.num_users", "data.max_samples")


@dataclass(frozen=True, slots=True)
class Experiment(ABC):
    """A table or a figure of the papers, or a study of ours.

    Attributes:
        name: on the command line, such as "table2" or "fig3".
        title: what it shows, in a line.
        source: where it is in which paper.
        tasks: on which tasks; none where nothing is trained.
        methods: its methods, in their order.
    """

    name: str
    title: str
    source: str
    tasks: tuple[Task, ...] = ()
    methods: tuple[Method, ...] = ()

    @property
    def data(self) -> list[str]:
        """The kinds of data that it uses when all data sets are given."""
        return list(dict.fromkeys(task.family for task in self.tasks))

    def chosen(self, request: Request) -> tuple[tuple[Chosen, ...], tuple[Method, ...]]:
        """The tasks and methods that are asked for."""
        return choose_tasks(request, self.tasks), choose_methods(request.methods, self.methods)

    def cells(self, request: Request) -> Sequence[Cell]:
        """The runs that it needs: every method on every task, with every seed.

        Raises:
            ConfigError: the request cannot be met.
        """
        return make_cells(request, *self.chosen(request)) if self.tasks else ()

    @abstractmethod
    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """Make tables and figures of the runs of `cells`."""


def make_cells(
    request: Request, chosen: Sequence[Chosen], methods: Sequence[Method]
) -> tuple[Cell, ...]:
    """Make the cells of some tasks and methods; seeds vary fastest, then methods.

    Cells of one task and seed meet the same cohorts, whatever the method. There is none of a method
    that is not private at the task's cohort (`keeps_enough`).

    Raises:
        ConfigError: a setting is out of range, or two do not fit.
    """
    cells = (
        Cell(one.task.name, method.label, seed, config_of(request, one, method, seed))
        for one in chosen
        for method in methods
        for seed in range(1, num_seeds(request, one) + 1)
    )
    return tuple(cell for cell in cells if keeps_enough(cell.config))


def most_telling_first(cells: Sequence[Cell]) -> list[Cell]:
    """What the papers are about, then Δ-FL at other θ, then the rest; of these, first seeds first.

    So what an interruption leaves is what is least missed.
    """
    about = (FEDAVG.label, DELTA_FL[1].label, PRIVATE_DELTA_FL.label)
    other_theta = [method.label for method in DELTA_FL]

    def rank(cell: Cell) -> tuple[int, int]:
        telling = 0 if cell.method in about else 1 if cell.method in other_theta else 2
        return telling, cell.seed

    return sorted(cells, key=rank)


def num_seeds(request: Request, one: Chosen) -> int:
    """How many seeds a task runs with: as many as asked for, or as its paper ran."""
    return request.seeds or one.task.seeds


def config_of(request: Request, one: Chosen, method: Method, seed: int) -> RunConfig:
    """All settings of one run.

    Later layers win: the task (paper, then script), the method, the data set, fewer rounds, the
    request's overrides.

    Raises:
        ConfigError: a setting is out of range, or two do not fit.
    """
    task, data = one.task, one.data
    layers: list[Layer] = [task.settings]
    if request.settings == "script":
        layers.append(task.script)
    layers += [method.layer, method.by_task.get(task.name, {})]
    layers += [data.settings, data.changes.get(task.name, {})]
    source = data.source if one.path is None else str(one.path.resolve())
    layers.append({"data": {"source": source}, "experiment": {"seed": seed}})
    if data.reads_vectors and VECTORS in request.data:
        layers.append({"data": {"vectors": str(request.data[VECTORS].resolve())}})
    full = build_config(layers)
    if request.rounds is not None:
        layers.append(_shortened(full, request.rounds))
    return build_config([*layers, request.overrides])


def _shortened(full: RunConfig, wanted: int | Fraction) -> Layer:
    """The same schedule in other rounds: the rate falls after the same shares of the run.

    With fewer rounds evaluations become sparse, for one over all devices takes longer than a round.
    """
    rounds = wanted if isinstance(wanted, int) else max(1, round(wanted * full.federation.rounds))
    share = Fraction(rounds, full.federation.rounds)
    every = full.federation.evaluate_every if share >= 1 else max(1, rounds // 4)
    shortened: dict[str, dict[str, object]] = {
        "federation": {"rounds": rounds, "evaluate_every": every}
    }
    if full.training.decay < 1:
        decay_every = max(1, round(full.training.decay_every * share))
        shortened["training"] = {"decay_every": decay_every}
    return shortened


def notes_of(
    request: Request, chosen: Sequence[Chosen], methods: Sequence[Method]
) -> tuple[str, ...]:
    """Say what differs from the papers in the runs of some tasks and methods."""
    notes = [note for one in chosen for note in _of_task(request, one)]
    overrides = [
        f"{section}.{key} = {value}"
        for section, values in request.overrides.items()
        for key, value in values.items()
    ]
    if overrides:
        notes.append(f"Set by hand for every run: {', '.join(overrides)}.")
    notes += [f"{method.label}: {method.constants}." for method in methods if method.constants]
    notes += [note for one in chosen for note in _exposed(request, one, methods)]
    sums = request.overrides.get("privacy", {}).get("sums")
    private = any("private" in str(method.layer["federation"]["algorithm"]) for method in methods)
    if private and sums == "ideal":
        notes.append(
            "Private runs use ideal sums, the integers that the masks of secure aggregation cancel "
            "to, and not the protocol itself."
        )
    if request.settings == "script":
        notes.append("Hyper-parameters are those of the published scripts where these differ.")
    return tuple(notes)


def _exposed(request: Request, one: Chosen, methods: Sequence[Method]) -> Iterator[str]:
    for method in methods:
        config = config_of(request, one, method, 1)
        if not keeps_enough(config):
            theta, size = config.federation.theta, config.federation.cohort_size
            kept, fewest = expected_tail(theta, size), config.privacy.min_honest_tail
            yield (
                f"{method.label} is not private on {one.task.name}: θ = {show(theta)} keeps {kept} "
                f"of {size} devices, and privacy.min_honest_tail is {fewest}. Take more devices, a "
                f"larger θ, or privacy.sums = 'ideal' to see what it would learn."
            )


def _of_task(request: Request, one: Chosen) -> list[str]:
    notes = []
    name = one.task.name
    if one.data.is_stand_in:
        notes.append(
            f"{name} ran on {one.data.name} ({one.data.title}), a stand-in: the published numbers "
            f"are of other data, so compare the order of the methods and not the numbers."
        )
    if one.data.remark:
        notes.append(one.data.remark)
    ours, theirs = flatten(config_of(request, one, FEDAVG, 1)), flatten(_published(request, one))
    whose = "published code" if request.settings == "script" else "paper"
    if changed := list(_changes(ours, theirs, whose)):
        notes.append(f"{name} differs from the {whose}'s settings in {', '.join(changed)}.")
    if one.task.model == "linear" and ours["training.l2"] == theirs["training.l2"]:
        notes.append(f"λ of {name} is the published code's, for the paper prints none.")
    if num_seeds(request, one) != one.task.seeds:
        seeds = num_seeds(request, one)
        notes.append(
            f"{name} ran with {seeds} seed{'s'[: seeds > 1]}, the paper's {one.task.seeds}."
        )
    return notes


def _changes(ours: Mapping[str, object], theirs: Mapping[str, object], whose: str) -> Iterator[str]:
    for key, value in ours.items():
        if key.startswith(_COMPARED) and key not in _NOT_COMPARED and value != theirs[key]:
            source = "published code" if key in _OF_THE_CODE else whose
            yield f"{key} = {_shown(key, value)} ({source}: {_shown(key, theirs[key])})"


def _shown(key: str, value: object) -> str:
    return "all" if key in _ZERO_IS_ALL and value == 0 else show(value)


def _published(request: Request, one: Chosen) -> RunConfig:
    """The same task with the published settings, on the data that the paper used."""
    script = one.task.script if request.settings == "script" else {}
    data = next(data for data in DATA_SETS if data.family == one.task.family)
    changes = data.changes.get(one.task.name, {})
    return build_config([one.task.settings, script, FEDAVG.layer, data.settings, changes])
