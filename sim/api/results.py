"""What training came to: numbers by device, the trained module, the audit, figures."""

import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from torch import nn

from deltafl.fl.parameters import load_vector
from deltafl.fl.strategies.levels import split_models
from deltafl.sim.errors import RunError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.html.verdict import Verdict, verdict
from deltafl.sim.record.checkpoint import load_checkpoint
from deltafl.sim.record.evaluations import Evaluation, read_evaluations
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.reproduce.statistics import Comparison as MethodComparison
from deltafl.sim.reproduce.statistics import compare_methods
from deltafl.sim.run.summary import Summary
from deltafl.sim.settings.config import RunConfig

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_TAIL: Final = 90
_BOOTSTRAP_SEED: Final = 0


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """One method, over all seeds.

    Attributes:
        label: what to call it.
        path: the run directory.
        summary: as in its summary.json.
    """

    label: str
    path: Path
    summary: Summary
    _config: RunConfig
    _build: Callable[[int], nn.Module] = field(repr=False)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(one.experiment.seed for one in self._config.arms())

    def devices(self) -> "pd.DataFrame":
        """The final model on every device, a row for each device and seed.

        Columns: seed, split ("train" or "test"), device, num_samples, loss (mean, in nats), error
        (share of samples misclassified).
        """
        table = self.history()
        return table[table["round"] == table["round"].max()].drop(columns="round")

    def history(self) -> "pd.DataFrame":
        """The same at every evaluation; with a column round."""
        import pandas as pd

        rows = [
            (seed, one.round, split, m.id, m.num_samples, m.loss, m.error)
            for seed, one in self._evaluations()
            for split, measured in (("train", one.train), ("test", one.test))
            for m in measured
        ]
        names = ["seed", "round", "split", "device", "num_samples", "loss", "error"]
        return pd.DataFrame(rows, columns=names)

    def module(self, seed: int | None = None) -> nn.Module:
        """The trained module.

        Args:
            seed: of which run; by default the first.

        Raises:
            ValueError: there is no run with this seed.
        """
        if seed not in (None, *self.seeds):
            raise ValueError(f"seed={seed}: must be one of {', '.join(map(str, self.seeds))}")
        number = 0 if seed is None else self.seeds.index(seed)
        directory = self._directories()[number]
        checkpoint = load_checkpoint(directory.checkpoints)
        if checkpoint is None:
            raise RunError(f"{directory.checkpoints} is empty: restore a checkpoint")
        module = self._build(0)
        load_vector(module, split_models(checkpoint.state.model, 1)[0])
        return module.eval()

    def audit(self) -> Verdict:
        """What an auditor says of what the server saw, in the run of the first seed."""
        return verdict(audit(self.path))

    def final(self) -> list[Evaluation]:
        """The final model on every device, for each seed."""
        return list(dict(self._evaluations()).values())

    def test_errors(self) -> "np.typing.NDArray[np.float64]":
        """The error of the final model on each test device, float64 [seeds, devices]."""
        return np.array([[m.error for m in one.test] for one in self.final()])

    def plot(self) -> "Figure":
        """The test error by round: its mean and 90th percentile over devices, and their spread."""
        return draw([self])

    def _directories(self) -> list[RunDirectory]:
        top = RunDirectory(self.path)
        others = [top.arm(a.federation.algorithm, a.experiment.seed) for a in self._config.arms()]
        return [top, *others[1:]]

    def _evaluations(self) -> Iterator[tuple[int, Evaluation]]:
        for seed, directory in zip(self.seeds, self._directories(), strict=True):
            (folder,) = directory.metrics_of(self._config.federation).values()
            for one in read_evaluations(folder):
                yield seed, one

    def __repr__(self) -> str:
        return f"<Result {self.label}: {_said(self)}; {self.path}>"

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(self.label)}</b>: {html.escape(_said(self))}</p>"


def _said(result: Result) -> str:
    errors = result.test_errors()
    tail = np.percentile(errors, _TAIL, axis=1).mean()
    return (
        f"test error {errors.mean():.1%} on average over devices, {tail:.1%} at the "
        f"{_TAIL}th percentile, over {errors.shape[1]} devices and {len(errors)} seeds"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Several methods, with the same cohorts and initial models.

    Attributes:
        results: one for each; the last is what the others are compared with.
    """

    results: Sequence[Result]

    def __getitem__(self, label: str) -> Result:
        """A result by its label."""
        return {one.label: one for one in self.results}[label]

    def table(self) -> "pd.DataFrame":
        """A row for each method, with paired differences from the last.

        Columns: mean and p90 (of the test error over devices, averaged over seeds), and of p90 less
        that of the last method: difference, low and high (95 % interval, bootstrap over devices), p
        (one-sided: small if the method is better) after Holm's correction for all methods.
        """
        import pandas as pd

        compared = compare_methods(
            {one.label: one.final() for one in self.results},
            baseline=self.results[-1].label,
            rng=np.random.default_rng(_BOOTSTRAP_SEED),
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
        test = table[table["split"] == "test"].groupby(["round", "seed"])["error"]
        tail, mean = test.quantile(_TAIL / 100).unstack(), test.mean().unstack()
        colour = f"C{number}"
        axes.plot(tail.index, tail.mean(axis=1), color=colour, label=result.label)
        axes.plot(mean.index, mean.mean(axis=1), color=colour, linestyle="--")
        axes.fill_between(tail.index, tail.min(axis=1), tail.max(axis=1), color=colour, alpha=0.15)
    axes.set_xlabel("round")
    axes.set_ylabel(f"test error over devices ({_TAIL}th percentile; dashed: mean)")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure
