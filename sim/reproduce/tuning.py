"""Tuning with the test devices out of reach: as in the paper, and the parts that the headline has.

The rest of this is of arXiv 2002.11223, Appendix C.2.2; `divide` says how the headline's are made.

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
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.data.shakespeare import ALPHABETS
from deltafl.fl.data.shakespeare import FORMAT as SHAKESPEARE
from deltafl.fl.data.subset import Subset, draw_rows
from deltafl.fl.errors import DataError
from deltafl.fl.metrics import summarise_train_loss
from deltafl.sim.data.convert import as_archive
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.atomic import write_file
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.reproduce.experiment import (
    NONE,
    Cell,
    Finished,
    Record,
    Report,
    Request,
    Table,
    bold,
    over_seeds,
    percent_error,
    plus_minus,
    read_runs,
)
from deltafl.sim.reproduce.grid import Experiment, config_of, notes_of
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG, Method, choose_methods
from deltafl.sim.reproduce.tasks import Chosen, Task, choose_tasks
from deltafl.sim.settings.config import DataConfig, RunConfig

RATE: Final = "rate"
L2: Final = "l2"

_RATE_FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
_DECAYS: Final = (0.125, 0.25, 0.5, 1.0)
_L2_GRID: Final = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
_TAIL: Final = 90
_DIGITS: Final = 4
_TEXT: Final = SHAKESPEARE.name


@dataclass(frozen=True, slots=True)
class Tuning(Experiment):
    """The grids of one task.

    Attributes:
        what: is tuned, `RATE`, `L2` or both.
    """

    what: tuple[str, ...] = ()

    def cells(self, request: Request) -> Sequence[Cell]:
        """Every point of the grids, with one seed unless more are asked for."""
        return [cell for what in self.what for _, _, cell in self._points(request, what)]

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """The grids, and what to choose."""
        runs = read_runs(finished)
        tables, notes = [], []
        for what in self.what:
            label, measure = _CRITERIA[what]
            records: dict[tuple[str, str], dict[str, object]] = {}
            for method, setting, cell in self._points(request, what):
                number = over_seeds(runs.get((cell.task, cell.method), {}), measure)
                records[method, setting] = {
                    "what": what,
                    "method": method,
                    "setting": setting,
                    "criterion": label,
                    "mean": number.mean if number else None,
                    "std": number.std if number else None,
                }
            found = [*records.values()]
            best = mark_best(found, lambda own: smallest(own, "mean"))
            keys = ("setting", "method")
            tables.append(Table.wide(f"{self.name}-{what}", label, found, keys, _written))
            for one in best:
                chosen = " ".join(f"--set {part}" for part in one["setting"].split(", "))
                spread = plus_minus(one["mean"], one["std"])
                notes.append(f"{one['method']}: {chosen} ({label} {spread}).")
        if any(record["mean"] is None for table in tables for record in table.records):
            notes.append(
                "A point without a number has no result: its run failed, mostly by divergence."
            )
        return Report(
            tuple(tables), notes=(*notes, *notes_of(request, [self._one(request)], [FEDAVG]))
        )

    def _one(self, request: Request) -> Chosen:
        return choose_tasks(replace(request, models=(self.tasks[0].name,)), self.tasks)[0]

    def _points(self, request: Request, what: str) -> Iterator[tuple[str, str, Cell]]:
        """Label of the method, setting, and a cell for each seed."""
        one = self._one(request)
        if what == RATE:
            points, data = _rates(config_of(request, one, FEDAVG, 1)), None
        else:
            methods = choose_methods(request.methods, (FEDAVG, *DELTA_FL))
            points = [(method, {"l2": value}) for method in methods for value in _L2_GRID]
            data, train_devices = _held_out(request, one)
        for (method, values), seed in product(points, range(1, (request.seeds or 1) + 1)):
            config = config_of(request, one, method, seed)
            training = replace(config.training, **values)  # type: ignore[arg-type]
            config = replace(config, training=training)
            if data is not None:
                cohort = min(config.federation.cohort_size, train_devices)
                federation = replace(config.federation, cohort_size=cohort)
                config = replace(config, data=data, federation=federation)
            setting = ", ".join(f"training.{key}={value:g}" for key, value in values.items())
            label = f"{method.label}, {setting}"
            yield method.label, setting, Cell(one.task.name, label, seed, config)


def tuning_of(task: Task) -> Tuning:
    """The tuning of a task: its rate and, of a linear model, its λ."""
    has_l2 = "l2" in task.settings.get("training", {}) and task.model == "linear"
    return Tuning(
        f"tune-{task.name}",
        f"Tuning of {task.title}",
        "arXiv 2002.11223, Section 5 and Appendix C.2.2",
        (task,),
        what=(RATE, L2) if has_l2 else (RATE,),
    )


def _rates(config: RunConfig) -> list[tuple[Method, dict[str, float]]]:
    start = config.training.learning_rate
    # a constant rate, as the paper has for linear models
    decays = (1.0,) if config.training.decay == 1 else _DECAYS
    return [
        (FEDAVG, {"learning_rate": factor * start, "decay": decay})
        for factor in _RATE_FACTORS
        for decay in decays
    ]


def _held_out(request: Request, one: Chosen) -> tuple[DataConfig, int]:
    """Write the train devices to a file of their own, once, and split them anew.

    Returns:
        The settings of the data, and how many devices train.
    """
    data = config_of(request, one, FEDAVG, 1).data
    digest = hashlib.sha256(repr(data).encode()).hexdigest()[:16]
    path = request.out.resolve() / "train-devices" / f"{one.data.name}-{digest}.npz"
    dataset = build_dataset(replace(data, standardise="none"))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, as_archive(dataset.train))
    is_fifth = request.settings == "script" and one.task.family != "sent140"
    share = Fraction(1, 5) if is_fifth else Fraction(1, 2)
    config = DataConfig(
        source=str(path),
        test_fraction=share,
        split_seed=data.split_seed,
        num_classes=dataset.num_classes,
        standardise=data.standardise,
    )
    return config, max(1, int(len(dataset.train) * (1 - share)))


def mark_best(
    records: Sequence[dict[str, object]], choose: Callable[[Sequence[Record]], Record | None]
) -> list[Record]:
    """Of each method's points the chosen one, if there is one; every record says whether it is."""
    by_method: dict[object, list[Record]] = {}
    for record in records:
        by_method.setdefault(record["method"], []).append(record)
    best = [one for one in map(choose, by_method.values()) if one is not None]
    for record in records:
        record["chosen"] = any(record is one for one in best)
    return best


def smallest(records: Sequence[Record], key: str) -> Record | None:
    """The record with the smallest number, the first of equals; None of none."""
    known = (record for record in records if record[key] is not None)
    return min(known, key=lambda record: record[key], default=None)


def _written(record: Record) -> str:
    """With more digits than the papers' tables have: points of a grid lie close together."""
    if record["mean"] is None:
        return NONE
    return bold(plus_minus(record["mean"], record["std"], _DIGITS), record["chosen"])


def _train_loss(evaluation: Evaluation) -> float:
    return summarise_train_loss(evaluation.train).mean


def _tail_error(evaluation: Evaluation) -> float:
    return percent_error(evaluation, _TAIL)


_CRITERIA: Final[Mapping[str, tuple[str, Callable[[Evaluation], float]]]] = {
    RATE: ("mean train loss at the end, in nats", _train_loss),
    L2: ("90th percentile of the error of held-out train devices, in %", _tail_error),
}


@dataclass(frozen=True, slots=True)
class Parts:
    """The files of the two parts.

    Attributes:
        tuning: of the devices that tune; an .npz archive, or LEAF's JSON of windows of text.
        testing: of all others.
    """

    tuning: Path
    testing: Path

    @property
    def format(self) -> str:
        """What the files are."""
        return _TEXT if self.tuning.suffix == ".json" else "npz"


def divide(data: DataConfig, share: Fraction, out: Path) -> Parts:
    """Write two disjoint parts of the devices, to tune and to test on, unless they are there.

    Devices are ranked by SHA-256 of their ids, and the first ones tune. Runs read only the file of
    their part, so that no test device has a say in the settings. Of a text, a part has windows
    drawn from all of it (`draw_rows`). A data set by itself takes the first ones, which overlap: 50
    windows of 20 characters would be 70 characters of a role.

    Args:
        data: which data; its rule for small devices holds, and its split does not matter.
        share: of the devices, who tune.
        out: folder of the results; the files go into its folder `parts`.

    Raises:
        ConfigError: the data cannot be used, or their settings contradict each other.
    """
    source = Path(data.source)
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    seen = [(str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in files if one.exists()]
    digest = hashlib.sha256(repr((data, share, seen)).encode()).hexdigest()[:16]
    folder = out.resolve() / "parts"
    is_text = data.format == _TEXT
    end = "json" if is_text else "npz"
    parts = Parts(folder / f"{digest}-tuning.{end}", folder / f"{digest}-testing.{end}")
    if not (parts.tuning.exists() and parts.testing.exists()):
        try:
            limit = 0 if is_text else data.max_samples
            dataset = build_dataset(replace(data, standardise="none", max_samples=limit))
        except DataError as error:
            raise ConfigError(str(error)) from error
        devices = sorted((*dataset.train, *dataset.test), key=_rank)
        count = int(len(devices) * share)
        folder.mkdir(parents=True, exist_ok=True)
        for path, some in ((parts.tuning, devices[:count]), (parts.testing, devices[count:])):
            write_file(path, _windows(some, data) if is_text else as_archive(some))
    return parts


def _rank(device: DeviceData) -> bytes:
    return hashlib.sha256(f"tuning\0{device.id}".encode()).digest()


def _windows(devices: Sequence[DeviceData], data: DataConfig) -> bytes:
    characters = np.array(list(ALPHABETS[data.alphabet].characters))
    subset = Subset(max_samples=data.max_samples or None)
    content: dict[str, dict[str, list[str]]] = {}
    for device in devices:
        rows = draw_rows(device.id, device.num_samples, subset, data.split_seed)
        content[device.id] = {
            "x": ["".join(window) for window in characters[device.x[rows]]],
            "y": characters[device.y[rows]].tolist(),
        }
    counts = [len(samples["y"]) for samples in content.values()]
    whole = {"users": list(content), "num_samples": counts, "user_data": content}
    return json.dumps(whole).encode()
