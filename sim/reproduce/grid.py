"""Turns a request into the runs that it needs: tasks × methods × seeds."""

from collections.abc import Sequence
from fractions import Fraction

from deltafl.sim.reproduce.experiment import Cell, Request
from deltafl.sim.reproduce.methods import Layer, Method
from deltafl.sim.reproduce.tasks import VECTORS, Chosen
from deltafl.sim.run.algorithms import keeps_enough
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import build_config


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
