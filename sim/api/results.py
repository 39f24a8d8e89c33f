"""What training came to: numbers by device, the trained module, the audit, figures."""

import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deltafl.fl.bundle import read_stored
from deltafl.fl.data.checks import checked_device
from deltafl.fl.models import seeded
from deltafl.fl.parameters import load_vector
from deltafl.fl.registry import ABSOLUTE, CROSS_ENTROPY, ERROR, OWN
from deltafl.fl.strategies.levels import split_models
from deltafl.fl.vectors import Vector
from deltafl.sim.api.modules import factory
from deltafl.sim.errors import RunDirectoryError, RunError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.html.verdict import Verdict, verdict
from deltafl.sim.record.best import Best, read_best
from deltafl.sim.record.checkpoint import Checkpoint, load_checkpoint
from deltafl.sim.record.evaluations import Evaluation, read_evaluations
from deltafl.sim.record.rundir import RunDirectory, read_json
from deltafl.sim.reproduce.comparison import compare_methods
from deltafl.sim.reproduce.statistics import Comparison as MethodComparison
from deltafl.sim.run.accounting import account_of, rounded_up, spent_by
from deltafl.sim.run.summary import Summary
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import build_config, read_config_file

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_TAIL: Final = 90

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

    @classmethod
    def open(
        cls, path: str | Path, model: nn.Module | Callable[[], nn.Module] | None = None
    ) -> Self:
        """Read a run directory, such as that of a run that was interrupted.

        Args:
            path: the run directory.
            model: what was trained, for `module`.

        Raises:
            UserError: there is no run, or its settings are damaged.
        """
        directory = RunDirectory(Path(path))
        if not directory.config.is_file():
            raise RunDirectoryError(f"{path} is not a run directory: it has no config.toml")
        config = build_config([read_config_file(directory.config)])
        make = None if model is None else factory(model)
        build = None if make is None else partial(seeded, make)
        return cls(config.federation.algorithm, directory.path, config, build)

    @property
    def summary(self) -> Summary:
        """As in summary.json; empty if the run is not finished."""
        return read_json(RunDirectory(self.path).summary) or {}

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
            RunError: no run has begun, or there is no best one, for there are no validation
                devices.
        """
        if self._build is None:
            raise RunError("pass Result.open the `model` that was trained")
        module = self._build(0)
        chosen = self._chosen(seed)
        load_vector(module, self._best(chosen).model if best else self._last(chosen))
        return module.eval()

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
        """
        module = self.module(seed, best=best)
        given = np.asarray(x)
        inputs = checked_device("x", "new", given, np.zeros(len(given), np.int64)).inputs()
        scale = read_stored(RunDirectory(self.path).bundle).scale
        with torch.inference_mode():
            outputs: npt.NDArray[np.generic] = module(
                torch.from_numpy(scale.of(inputs) if scale else inputs)
            ).numpy()
        is_of_classes = self._config.training.loss == CROSS_ENTROPY and outputs.ndim == 2
        return outputs.argmax(axis=1) if is_of_classes else outputs

    def audit(self) -> Verdict:
        """What an auditor says of what the server saw, in the run of the first seed."""
        return verdict(audit(self.path))

    def final(self) -> list[Evaluation]:
        """The last model that was measured, on every device, for each seed."""
        return list(dict(self._evaluations()).values())

    def test_errors(self) -> "np.typing.NDArray[np.float64]":
        """The error, or the metric, of that model on each test device: [seeds, devices]."""
        return np.array([[m.error for m in one.test] for one in self.final()])

    def plot(self) -> "Figure":
        """The test error by round: its mean and 90th percentile over devices, and their spread."""
        return draw([self])

    def _directories(self) -> dict[int, RunDirectory]:
        top = RunDirectory(self.path)
        return {
            arm.experiment.seed: top.arm(arm.federation.algorithm, arm.experiment.seed)
            if number
            else top
            for number, arm in enumerate(self._config.arms()[: self._config.experiment.num_seeds])
        }

    def _checkpoints(self) -> dict[int, Checkpoint]:
        found = {
            seed: load_checkpoint(directory.checkpoints)
            for seed, directory in self._directories().items()
        }
        return {seed: one for seed, one in found.items() if one is not None}

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
        (folder,) = self._directories()[seed].metrics_of(self._config.federation).values()
        best = read_best(folder)
        if best is None:
            raise RunError(
                f"{self.path} has no best model, for it has no validation devices: hold some out, "
                "as in from_devices(…, validation=0.2)"
            )
        return best

    def _evaluations(self) -> Iterator[tuple[int, Evaluation]]:
        for seed, directory in self._directories().items():
            (folder,) = directory.metrics_of(self._config.federation).values()
            for one in read_evaluations(folder):
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
        results: one for each; the last is what the others are compared with.
    """

    results: Sequence[Result]

    def __getitem__(self, label: str) -> Result:
        """A result by its label.

        Raises:
            KeyError: no method has this label.
        """
        found = {one.label: one for one in self.results}
        if label not in found:
            raise KeyError(f"{label!r} is no method: they are {', '.join(map(repr, found))}")
        return found[label]

    def table(self) -> "pd.DataFrame":
        """A row for each method, with paired differences from the last.

        Columns: mean and p90 (of the test error, or the metric, over devices, averaged over seeds),
        and of p90 less that of the last method: difference, low and high (95 % interval, bootstrap
        over devices), p (one-sided: small if the method is better) after Holm's correction for all
        methods.
        """
        import pandas as pd

        compared = compare_methods(
            {one.label: one.final() for one in self.results},
            baseline=self.results[-1].label,
            percentile=_TAIL,
        )
        rows = [
            (result.test_errors().mean(), one.mean, *_difference(one))
            for result, one in zip(self.results, compared, strict=True)
        ]
        names = ["mean", "p90", "difference", "low", "high", "p"]
        return pd.DataFrame(rows, [one.method for one in compared], names, dtype=float)

    def plot(self) -> "Figure":
        """The test error by round of each method; see `Result.plot`."""
        return draw(self.results)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return str(self.table().to_html(float_format="{:.4f}".format))


def _difference(one: MethodComparison) -> tuple[float | None, ...]:
    if one.devices is None:
        return None, None, None, None
    return one.devices.difference, one.devices.low, one.devices.high, one.adjusted_p_devices


def draw(results: Sequence[Result]) -> "Figure":
    """Draw the test error of some methods by round.

    Solid lines are the 90th percentile over devices, dashed ones the mean; both averaged over
    seeds. Bands reach from the lowest seed to the highest.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for number, result in enumerate(results):
        table = result.history()
        test = table[table["split"] == "test"].groupby(["round", "seed"])[result.metric]
        tail, mean = test.quantile(_TAIL / 100).unstack(), test.mean().unstack()
        colour = f"C{number}"
        axes.plot(tail.index, tail.mean(axis=1), color=colour, label=result.label)
        axes.plot(mean.index, mean.mean(axis=1), color=colour, linestyle="--")
        axes.fill_between(tail.index, tail.min(axis=1), tail.max(axis=1), color=colour, alpha=0.15)
    axes.set_xlabel("round")
    title = _TITLES[results[0].metric]
    axes.set_ylabel(f"{title} over devices ({_TAIL}th percentile; dashed: mean)")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure
