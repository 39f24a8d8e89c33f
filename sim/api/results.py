"""What training came to: numbers by device, the trained module, the audit, figures."""

import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deltafl.fl.bundle import numbers_of, read_stored
from deltafl.fl.criterion import tensor_of
from deltafl.fl.data.checks import checked_device
from deltafl.fl.data.federated import as_numbers
from deltafl.fl.data.load import Standardise
from deltafl.fl.errors import DataError
from deltafl.fl.models import seeded
from deltafl.fl.parameters import load_vector, num_parameters
from deltafl.fl.registry import ABSOLUTE, CROSS_ENTROPY, ERROR, OWN
from deltafl.fl.strategies.levels import split_models
from deltafl.fl.vectors import Vector
from deltafl.sim.charts.chart import Chart
from deltafl.sim.charts.runs import curve
from deltafl.sim.errors import RunError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.html.verdict import Verdict, verdict
from deltafl.sim.record.checkpoint import Checkpoint, load_checkpoint
from deltafl.sim.record.evaluations import Best, Evaluation, read_best, read_evaluations
from deltafl.sim.record.labels import name_of, named_runs, read_comparison, usual_baseline
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.comparison import compare_methods
from deltafl.sim.reproduce.statistics import Estimate, statistic_of
from deltafl.sim.run.accounting import account_of, rounded_up, spent_by
from deltafl.sim.run.own_code import factory
from deltafl.sim.run.summary import Summary
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.writing import percent, quantity

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_TAIL: Final = 90
_NO_ESTIMATE: Final = (None, None, None, None, "")

_COLUMNS: Final = {ERROR: ERROR, ABSOLUTE: ABSOLUTE, OWN: "metric"}
_TITLES: Final = {ERROR: "test error", ABSOLUTE: "mean absolute error of tests", "metric": "metric"}


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """One method, over all seeds; of a run that was stopped, what there is.

    Attributes:
        label: what to call it.
        path: the run directory.
    """

    label: str
    path: Path
    _config: RunConfig
    _build: Callable[[int], nn.Module] | None = field(repr=False)
    _number: int = field(default=0, repr=False)  # of the algorithm: 0, or a baseline, from 1

    @classmethod
    def open(
        cls, path: str | Path, model: nn.Module | Callable[[], nn.Module] | None = None
    ) -> Self:
        """Read a run directory, such as that of a run that was interrupted.

        Args:
            path: the run directory.
            model: what was trained, for `module`; of a finished run of the papers' models, the
                directory knows it.

        Raises:
            UserError: there is no run, or its settings are damaged.
        """
        directory = RunDirectory(Path(path))
        config = directory.config()
        make = None if model is None else factory(model)
        build = None if make is None else partial(seeded, make)
        (named,) = named_runs([str(path)])
        return cls(named.given or name_of(config), directory.path, config, build)

    @property
    def algorithm(self) -> str:
        """By what it was trained, such as "private-delta-fl"."""
        return (self._config.federation.algorithm, *self._config.experiment.baselines)[self._number]

    def baselines(self) -> "list[Result]":
        """Those of the same run directory."""
        names = self._config.experiment.baselines
        return [replace(self, label=one, _number=at) for at, one in enumerate(names, 1)]

    @property
    def summary(self) -> Summary:
        """As in the record of the directory; empty if the run is not finished."""
        return RunDirectory(self.path).summary() or {}

    @property
    def is_finished(self) -> bool:
        """Whether all rounds of all seeds were played."""
        return bool(self.summary)

    @property
    def rounds(self) -> dict[int, int]:
        """The rounds that were played, by seed; of those that have begun."""
        return {seed: one.state.round for seed, one in self._checkpoints().items()}

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds whose runs have begun."""
        return tuple(self.rounds)

    @property
    def metric(self) -> str:
        """What was measured beside the loss: "error", "mae", or "metric" for one of your own."""
        return _COLUMNS[self._config.training.metric]

    @property
    def privacy(self) -> dict[str, float]:
        """What a device has lost so far to the server: "epsilon" at "delta", over all seeds.

        All seeds train on the same devices, so they add up. Empty if sums have no noise.
        """
        measured = self.final()
        if not self._config.dp.noise or not measured:
            return {}
        devices, spent = len(measured[0].train), []
        for one in self._checkpoints().values():
            account = account_of(self._config, devices, one.state.model.size)
            if account is not None:
                spent.append(account.after(one.state.round))
        return {"epsilon": spent_by(spent), "delta": self._config.dp.delta}

    def devices(self) -> "pd.DataFrame":
        """The last model that was measured, on every device: a row for each device and seed.

        Columns: seed, split ("train" or "test"), device, num_samples, loss (the mean over its
        samples), and `metric`: error is the share of samples misclassified, mae the mean absolute
        error.
        """
        table = self.history()
        last = table.groupby("seed")["round"].transform("max")
        return table[table["round"] == last].drop(columns="round")

    def history(self) -> "pd.DataFrame":
        """The same at every evaluation; with a column round."""
        import pandas as pd

        rows = [
            (seed, one.round, split, m.id, m.num_samples, m.loss, m.error)
            for seed, one in self._evaluations()
            for split, measured in (("train", one.train), ("test", one.test))
            for m in measured
        ]
        names = ["seed", "round", "split", "device", "num_samples", "loss", self.metric]
        return pd.DataFrame(rows, columns=names)

    def module(self, seed: int | None = None, *, best: bool = False) -> nn.Module:
        """The trained module.

        Args:
            seed: of which run; by default the first.
            best: that which did best on the validation devices, in place of the last.

        Raises:
            ValueError: there is no run with this seed.
            RunError: no run has begun, it is not known what was trained, or it is another module;
                or there is no best one, for there are no validation devices.
        """
        chosen = self._chosen(seed)
        module = self._own_module() if self._build is None else self._build(0)
        vector = self._best(chosen).model if best else self._last(chosen)
        if len(vector) != num_parameters(module):
            raise RunError(
                f"the module has {num_parameters(module)} parameters, and the one that was trained "
                f"in {self.path} {len(vector)}: pass that one"
            )
        load_vector(module, vector)
        return module.eval()

    def _own_module(self) -> nn.Module:
        """Of the architecture that the finished run has noted."""
        try:
            return read_stored(RunDirectory(self.path).bundle).architecture.build()
        except (DataError, ValueError) as error:
            raise RunError(f"pass Result.open the `model` that was trained: {error}") from error

    def best_rounds(self) -> dict[int, int]:
        """The round of the best model, by seed.

        Raises:
            RunError: there are no validation devices.
        """
        return {seed: self._best(seed).round for seed in self.rounds}

    def predict(
        self, x: npt.ArrayLike, seed: int | None = None, *, best: bool = False
    ) -> npt.NDArray[np.generic]:
        """What a trained module says of new inputs, scaled as those that it was trained on are.

        Args:
            x: inputs, [n, ...], as they were given to the federation.
            seed: as of `module`.
            best: likewise.

        Returns:
            The number of the likeliest class for each, int64 [n]; or the numbers that it predicts.

        Raises:
            DataError: the inputs have another shape, are not finite, or none that the module
                takes; or as `module`.
        """
        module, given = self.module(seed, best=best), np.asarray(x)
        bundle = RunDirectory(self.path).bundle
        if not bundle.exists():
            raise RunError(
                f"{self.path}: the run was interrupted, and how inputs are scaled is written at "
                "its end: go on with resume=True, or take the module and scale by yourself"
            )
        stored = read_stored(bundle)
        if stored.provenance.get("scaled") in (Standardise.DEVICE, Standardise.LEGACY):
            raise RunError(
                f"inputs of {self.path} were scaled by each device's own numbers: scale new ones "
                "so, and take the module"
            )
        expected = stored.architecture.input_shape
        if given.shape[1:] != expected:
            raise DataError(
                f"x of shape {given.shape}: must be [{', '.join(map(str, ('n', *expected)))}]"
            )
        given, labels = numbers_of(given, stored.provenance), np.zeros(len(given), np.int64)
        device = checked_device("x", "new", given, labels, keeps_whole=True)
        scale = stored.scale
        numbers = as_numbers(device).inputs()
        # as in training, whole numbers are first given as such
        tries = [scale.of(numbers) if scale else device.inputs(), numbers]
        outputs = _first_outputs(module, tries if numbers.dtype != device.x.dtype else tries[:1])
        is_of_classes = self._config.training.loss == CROSS_ENTROPY and outputs.ndim == 2
        return outputs.argmax(axis=1) if is_of_classes else outputs

    def export(self, path: str | Path, seed: int | None = None, *, best: bool = False) -> None:
        """Write a trained module's parameters and buffers to an .npz archive, by their names.

        `torch.from_numpy` of each is what `load_state_dict` takes; nothing is pickled.

        Args:
            path: the file; it must not be there.
            seed: as of `module`.
            best: likewise.

        Raises:
            FileExistsError: there is such a file.
            RunError: as `module`.
        """
        state = self.module(seed, best=best).state_dict()
        with Path(path).open("xb") as file:
            np.savez(file, **{name: tensor.numpy() for name, tensor in state.items()})

    def audit(self) -> Verdict:
        """What an auditor says of what the server saw, in the run of the first seed."""
        return verdict(audit(next(iter(self._directories().values())).path))

    def first(self) -> list[Evaluation]:
        """The model before the first round, as of `final`."""
        return list(dict(reversed([*self._evaluations()])).values())

    def final(self) -> list[Evaluation]:
        """The last model that was measured, on every device, for each seed."""
        return list(dict(self._evaluations()).values())

    def test_errors(self) -> "np.typing.NDArray[np.float64]":
        """The error, or the metric, of that model on each test device: [seeds, devices]."""
        return np.array([[m.error for m in one.test] for one in self.final()])

    def plot(self) -> "Figure":
        """The test error by round: its 90th percentile and mean over devices, and their spread."""
        return draw([self])

    def _directories(self) -> dict[int, RunDirectory]:
        seeds = self._config.experiment.num_seeds
        runs = RunDirectory(self.path).runs(self._config.arms())
        own = islice(runs, self._number * seeds, (self._number + 1) * seeds)
        return {arm.experiment.seed: directory for arm, directory in own}

    def _begun(self) -> list[tuple[int, RunDirectory]]:
        return [one for one in self._directories().items() if one[1].record.exists()]

    def by_round(self, percentile: int | None) -> list[list[tuple[int, float]]]:
        """Rounds, and a percentile over the test devices there, or the mean, of each seed."""
        found: dict[int, list[tuple[int, float]]] = {}
        for seed, one in self._evaluations():
            errors = np.array([m.error for m in one.test])
            found.setdefault(seed, []).append((one.round, float(statistic_of(errors, percentile))))
        return list(found.values())

    def _checkpoints(self) -> dict[int, Checkpoint]:
        found: dict[int, Checkpoint] = {}
        for seed, directory in self._begun():
            with directory.read() as record:
                if (one := load_checkpoint(record)) is not None:
                    found[seed] = one
        return found

    def _chosen(self, seed: int | None) -> int:
        rounds = self.rounds
        if not rounds:
            raise RunError(f"{self.path} has no checkpoint of any seed")
        if seed not in (None, *rounds):
            raise ValueError(f"seed={seed}: must be one of {', '.join(map(str, rounds))}")
        return next(iter(rounds)) if seed is None else seed

    def _last(self, seed: int) -> Vector:
        return split_models(self._checkpoints()[seed].state.model, 1)[0]

    def _best(self, seed: int) -> Best:
        with self._directories()[seed].read() as record:
            best = read_best(record, self._config.federation.theta)
        if best is None:
            raise RunError(
                f"{self.path} has no best model, for it has no validation devices: hold some out, "
                "as in from_devices(…, validation=0.2)"
            )
        return best

    def _evaluations(self) -> Iterator[tuple[int, Evaluation]]:
        for seed, directory in self._begun():
            with directory.read() as record:
                for one in read_evaluations(record):
                    yield seed, one

    def __repr__(self) -> str:
        return f"<Result {self.label}: {_said(self)}; {self.path}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in (
                ("result", _said(self)),
                ("rounds", ", ".join(f"{n} (seed {seed})" for seed, n in self.rounds.items())),
                ("directory", str(self.path)),
            )
        )
        return f"<p><b>{html.escape(self.label)}</b></p><table>{rows}</table>"


def _first_outputs(
    module: nn.Module, tries: Sequence[npt.NDArray[np.generic]]
) -> npt.NDArray[np.generic]:
    """The outputs for the first inputs that a module takes.

    Raises:
        DataError: it takes none.
    """
    failed: Exception | None = None
    for inputs in tries:
        try:
            with torch.inference_mode():
                outputs: npt.NDArray[np.generic] = tensor_of(module(torch.tensor(inputs))).numpy()
            return outputs
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            failed = failed or error
    raise DataError(
        f"x of {tries[0].dtype}: the module does not take it ({failed!s:.200}): give inputs of the "
        "type and in the range of the federation's"
    ) from failed


def _said(result: Result) -> str:
    errors = result.test_errors()
    if not errors.size:
        return "nothing was measured yet"
    tail = np.percentile(errors, _TAIL, axis=1).mean()
    number = "{:.1%}" if result.metric == ERROR else "{:.4g}"
    stopped = "" if result.is_finished else "; stopped before its last round"
    spent = result.privacy
    cost = f", ε = {rounded_up(spent['epsilon'])}" if spent else ""
    return (
        f"{_TITLES[result.metric]} {number.format(errors.mean())} on average over devices, "
        f"{number.format(tail)} at the {_TAIL}th percentile, over {errors.shape[1]} devices and "
        f"{len(errors)} seeds{cost}{stopped}"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Several methods, with the same cohorts and initial models.

    Attributes:
        results: one for each.
    """

    results: Sequence[Result]

    @classmethod
    def open(
        cls, path: str | Path, model: nn.Module | Callable[[], nn.Module] | None = None
    ) -> Self:
        """Read what `deltafl.compare` has made; of what was interrupted, as far as it began.

        Args:
            path: the folder; or a run directory, whose baselines are the others.
            model: as of `Result.open`.

        Raises:
            UserError: there is no run, or one is damaged.
        """
        places = [Path(path) / run for run in read_comparison(Path(path))]
        if begun := [one for one in places if one.exists()]:
            return cls([Result.open(one, model) for one in begun])
        first = Result.open(path, model)
        return cls([first, *first.baselines()])

    def __getitem__(self, label: str) -> Result:
        """A result by its label.

        Raises:
            KeyError: no method has this label.
        """
        found = {one.label: one for one in self.results}
        if label not in found:
            raise KeyError(f"{label!r} is no method: they are {', '.join(map(repr, found))}")
        return found[label]

    @property
    def baseline(self) -> Result:
        """What the others are compared with: the only FedAvg, else the last."""
        return self.results[usual_baseline([one.algorithm for one in self.results])]

    def table(self) -> "pd.DataFrame":
        """A row for each method, with paired differences from the baseline.

        Columns: mean and p90 (of the test error, or the metric, over devices, averaged over seeds),
        and of p90 less that of the baseline: difference, low and high (95 % interval), p
        (two-sided) after Holm's correction for all methods, and what these are over: "runs" (a
        paired t test) with two seeds or more, otherwise "devices" (a paired bootstrap, which tells
        two models apart and not two methods: two runs of one method often differ by as much). They
        are those of `deltafl compare`, which has both.
        """
        import pandas as pd

        compared = compare_methods(
            {one.label: one.final() for one in self.results},
            baseline=self.baseline.label,
            percentile=_TAIL,
        )
        rows = [
            (result.test_errors().mean(), one.mean, *(one.estimate or _NO_ESTIMATE))
            for result, one in zip(self.results, compared, strict=True)
        ]
        names = ["mean", "p90", *Estimate._fields]
        return pd.DataFrame(rows, [one.method for one in compared], names)

    def plot(self) -> "Figure":
        """The test error by round of each method; see `Result.plot`."""
        return draw(self.results)

    def __repr__(self) -> str:
        return str(self.table().to_string())

    def _repr_html_(self) -> str:
        return str(self.table().to_html(float_format="{:.4f}".format))


def draw(results: Sequence[Result]) -> "Figure":
    """Draw the test error of some methods by round: 90th percentile, and mean, over devices.

    Lines are means over seeds, and bands reach from the lowest seed to the highest.

    Raises:
        RunError: nothing was measured yet.
    """
    from deltafl.sim.charts.files import error_figure  # loads the plotting library

    unit, write = _TITLES[results[0].metric], percent if results[0].metric == ERROR else quantity
    charts = []
    for title, of in ((f"{_TAIL}th percentile over devices", _TAIL), ("Mean over devices", None)):
        found = (curve(one.label, at, one.by_round(of)) for at, one in enumerate(results))
        charts.append(Chart(title, unit, [one for one in found if one is not None], write))
    if not all(one.curves for one in charts):
        raise RunError(f"nothing was measured yet in {results[0].path}")
    return error_figure(charts)
