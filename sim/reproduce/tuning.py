"""Tuning as in arXiv 2002.11223, Appendix C.2.2, with the test devices out of reach.

Learning rate: γ0 and the decay c are tuned for FedAvg alone, by the mean train loss at the end,
devices weighted by their samples; every method then takes them. The paper prints c's grid
({1/8, 1/4, 1/2, 1}, neural networks only) and not γ0's: ours is the task's γ0 times 1/4 … 4.

λ of the linear models: tuned for FedAvg and each θ on their own over {1e-3, …, 1e-8}. A share of
the train devices is held out (half in the paper; a fifth in the published code, but for Sent140),
and the smallest 90th percentile of their test error wins. (Appendix C.2.2 says the 10th percentile
of the error, Section 5 the 90th; only the latter measures a tail.) The train devices are first
written to a file of their own, and the runs read nothing else. Of equals the first is chosen.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Final

from deltafl.fl.metrics import summarise_train_loss
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.atomic import write_file
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.experiment import (
    NONE,
    Cell,
    Finished,
    OverSeeds,
    Record,
    Report,
    Request,
    Table,
    bold,
    percent_error,
    plus_minus,
    read_runs,
)
from deltafl.sim.reproduce.grid import config_of, notes_of
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG, Method, choose_methods
from deltafl.sim.reproduce.tasks import TASKS, Chosen, Task, choose_tasks
from deltafl.sim.reproduce.writers import as_archive
from deltafl.sim.settings.config import DataConfig, RunConfig

RATE: Final = "rate"
L2: Final = "l2"

_RATE_FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
_DECAYS: Final = (0.125, 0.25, 0.5, 1.0)
_L2_GRID: Final = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
_TAIL: Final = 90
_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Tuning:
    """The grids of one task.

    Attributes:
        task: what is tuned.
        what: `RATE`, `L2` or both.
    """

    task: Task
    what: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the folder of its results."""
        return f"tune-{self.task.name}"

    @property
    def title(self) -> str:
        """What it shows."""
        return f"Tuning of {self.task.title}"

    @property
    def source(self) -> str:
        """Where it is described."""
        return "arXiv 2002.11223, Section 5 and Appendix C.2.2"

    def cells(self, request: Request) -> Sequence[Cell]:
        """Every point of the grids, with one seed unless more are asked for."""
        return [cell for _, cell in self._points(request)]

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """The grids, and what to choose."""
        one, runs, points = self._chosen(request), read_runs(finished), self._points(request)
        tables, notes = [], []
        for what in self.what:
            label, measure = _CRITERIA[what]
            found: dict[tuple[str, str], OverSeeds | None] = {}
            for point, cell in points:
                if point.what == what:
                    ended = runs.get((cell.task, cell.method), ())
                    values = tuple(measure(evaluation) for _, evaluation in ended)
                    found[point.method.label, point.setting] = OverSeeds(values) if values else None
            best = _best(found)
            records = [
                {
                    "what": what,
                    "method": method,
                    "setting": setting,
                    "criterion": label,
                    "mean": number.mean if number else None,
                    "std": number.std if number else None,
                }
                for (method, setting), number in found.items()
            ]
            written = partial(_written, best)
            keys = ("setting", "method")
            tables.append(Table.wide(f"{self.name}-{what}", label, records, keys, written))
            for method, setting in best.items():
                chosen = " ".join(f"--set {part}" for part in setting.split(", "))
                notes.append(f"{method}: {chosen} ({label} {found[method, setting]}).")
        if any((cell.task, cell.method) not in runs for _, cell in points):
            notes.append(
                "A point without a number has no result: its run failed, mostly by divergence."
            )
        return Report(tuple(tables), notes=(*notes, *notes_of(request, [one], [FEDAVG])))

    def _chosen(self, request: Request) -> Chosen:
        return choose_tasks(replace(request, models=(self.task.name,)), TASKS)[0]

    def _points(self, request: Request) -> list[tuple["_Point", Cell]]:
        one = self._chosen(request)
        points = []
        if RATE in self.what:
            points += _rates(config_of(request, one, FEDAVG, 1))
        if L2 in self.what:
            points += _penalties(choose_methods(request.methods, (FEDAVG, *DELTA_FL)))
        data = _held_out(request, one) if L2 in self.what else None
        found = []
        for point, seed in product(points, range(1, (request.seeds or 1) + 1)):
            config = config_of(request, one, point.method, seed)
            training = replace(config.training, **point.values)  # type: ignore[arg-type]
            config = replace(config, training=training)
            if point.what == L2 and data is not None:
                cohort = min(config.federation.cohort_size, data.train_devices)
                federation = replace(config.federation, cohort_size=cohort)
                config = replace(config, data=data.config, federation=federation)
            label = f"{point.method.label}, {point.setting}"
            found.append((point, Cell(one.task.name, label, seed, config)))
        return found


def tunings(task: Task, what: str | None) -> Tuning:
    """The tuning of a task: its rate and, of a linear model, its λ, or the one that is named.

    Raises:
        ConfigError: λ is asked for and the model has none.
    """
    has_l2 = "l2" in task.settings.get("training", {}) and task.model == "linear"
    if what == L2 and not has_l2:
        raise ConfigError(f"--what l2: {task.name} has no λ; the paper tunes it for linear models")
    return Tuning(task, (what,) if what else (RATE, L2) if has_l2 else (RATE,))


@dataclass(frozen=True, slots=True)
class _Point:
    """A point of a grid: which method, and which training settings."""

    what: str
    method: Method
    values: Mapping[str, float]

    @property
    def setting(self) -> str:
        return ", ".join(f"training.{key}={value:g}" for key, value in self.values.items())


@dataclass(frozen=True, slots=True)
class _HeldOut:
    config: DataConfig
    train_devices: int


def _rates(config: RunConfig) -> list[_Point]:
    start = config.training.learning_rate
    decays: tuple[float, ...] = _DECAYS
    if config.training.decay == 1:
        decays = (1.0,)  # a constant rate, as the paper has for linear models
    return [
        _Point(RATE, FEDAVG, {"learning_rate": factor * start, "decay": decay})
        for factor in _RATE_FACTORS
        for decay in decays
    ]


def _penalties(methods: Sequence[Method]) -> list[_Point]:
    return [_Point(L2, method, {"l2": value}) for method in methods for value in _L2_GRID]


def _held_out(request: Request, one: Chosen) -> _HeldOut:
    """Write the train devices to a file of their own, once, and split them anew."""
    data = config_of(request, one, FEDAVG, 1).data
    digest = hashlib.sha256(repr(data).encode()).hexdigest()[:16]
    path = request.out.resolve() / "train-devices" / f"{one.data.name}-{digest}.npz"
    dataset = build_dataset(replace(data, standardise="none"))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, as_archive(dataset.train))
    share = Fraction(1, 2)
    if request.settings == "script" and one.task.family != "sent140":
        share = Fraction(1, 5)
    config = DataConfig(
        source=str(path),
        test_fraction=share,
        split_seed=data.split_seed,
        num_classes=dataset.num_classes,
        standardise=data.standardise,
    )
    return _HeldOut(config, max(1, int(len(dataset.train) * (1 - share))))


def _best(found: Mapping[tuple[str, str], OverSeeds | None]) -> dict[str, str]:
    """Of each method the setting with the lowest number, the first of equals."""
    best: dict[str, tuple[float, str]] = {}
    for (method, setting), number in found.items():
        if number and (method not in best or number.mean < best[method][0]):
            best[method] = number.mean, setting
    return {method: setting for method, (_, setting) in best.items()}


def _written(best: Mapping[str, str], record: Record) -> str:
    """With more digits than the papers' tables have: points of a grid lie close together."""
    if record["mean"] is None:
        return NONE
    text = plus_minus(record["mean"], record["std"], _DIGITS)
    return bold(text, record["setting"] == best[record["method"]])


def _train_loss(evaluation: Evaluation) -> float:
    return summarise_train_loss(evaluation.train).mean


def _tail_error(evaluation: Evaluation) -> float:
    return percent_error(evaluation, _TAIL)


_CRITERIA: Final[Mapping[str, tuple[str, Callable[[Evaluation], float]]]] = {
    RATE: ("mean train loss at the end, in nats", _train_loss),
    L2: ("90th percentile of the error of held-out train devices, in %", _tail_error),
}
