"""Try settings, choose by validation devices, and report on test devices."""

import itertools
import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltafl.fl.errors import DivergenceError
from deltafl.fl.metrics import summarise_test_error
from deltafl.fl.registry import BEST_BY
from deltafl.fl.strategies.base import Strategy
from deltafl.sim.api.federation import Federation
from deltafl.sim.api.methods import Method, Settings, method_of
from deltafl.sim.api.results import Result
from deltafl.sim.api.training import settings_said, train
from deltafl.sim.errors import ConfigError, RunError
from deltafl.sim.record.evaluations import Evaluation, score_of
from deltafl.sim.run.own_code import Model

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """What was tried, and what it came to.

    Attributes:
        points: the settings that were tried, by their names.
        results: what training came to, one for each point; test devices have chosen nothing.
        scores: what points were chosen by: the error over validation devices, averaged over seeds;
            infinite where training diverged, or was stopped before it was measured.
        shared: the settings of all points.
    """

    points: Sequence[Mapping[str, object]]
    results: Sequence[Result]
    scores: Sequence[float]
    shared: Settings

    @property
    def chosen(self) -> int:
        """The place of the point with the lowest score; of equals, the first."""
        return int(np.argmin(self.scores))

    @property
    def settings(self) -> Mapping[str, Any]:
        """What was chosen, as arguments of `train`."""
        return _arguments(self.points[self.chosen], self.shared)

    @property
    def best(self) -> Result:
        """What they came to; its test errors have chosen nothing."""
        return self.results[self.chosen]

    def table(self) -> "pd.DataFrame":
        """A row for each point: its settings and its score; without test errors."""
        import pandas as pd

        pairs = zip(self.points, self.scores, strict=True)
        return pd.DataFrame([{**point, "validation": score} for point, score in pairs])

    def __repr__(self) -> str:
        chosen = _said(self.points[self.chosen])
        return f"<Tuned: {chosen} of {len(self.points)} points; {self.best!r}>"


def _said(point: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.items())


def tune(
    model: Model,
    federation: Federation,
    strategy: Method | str | Strategy = "private-delta-fl",
    *,
    grid: Mapping[str, Sequence[object]],
    by: str = BEST_BY[0],
    out: str | Path | None = None,
    settings: Settings | None = None,
    **options: Any,  # noqa: ANN401 those of `train`
) -> Tuned:
    """Train at every point of a grid, and choose by the validation devices.

    Args:
        model: as of `train`.
        federation: likewise; it must have validation devices.
        strategy: likewise.
        grid: what to try, by name: arguments of `train`, such as "learning_rate", or settings, such
            as "strategy.proximal".
        by: what must be lowest over validation devices after the last round: the "mean" of their
            errors, or "p90", their 90th percentile.
        out: a folder with a run directory for each point.
        settings: as of `train`, for all points.
        options: all others of `train`.

    Raises:
        ConfigError: there are no validation devices, nothing to try, or one value twice; or as
            `train`.
        DivergenceError: training diverges at every point; at some, a warning says so. So does one
            where no point is better than the untrained model.
        RunError: every point was stopped before its error was measured.
    """
    if not len(federation.dataset.validation):
        raise ConfigError(
            "tune: the federation has no validation devices: hold some out, as in "
            "from_devices(…, validation=0.2); the test must not choose"
        )
    is_grid = isinstance(grid, Mapping) and all(
        isinstance(one, Iterable) and not isinstance(one, str) for one in grid.values()
    )
    tried = {name: list(one) for name, one in grid.items()} if is_grid else {}
    if by not in BEST_BY or not tried or not all(tried.values()):
        raise ConfigError(
            f"tune: by={by!r} must be one of {', '.join(BEST_BY)}, and grid must give values of at "
            "least one setting, such as {'learning_rate': [0.03, 0.1]}"
        )
    for name, values in tried.items():
        times = Counter(one if isinstance(one, Real) else str(one) for one in values)
        if (most := times.most_common(1)[0])[1] > 1:
            raise ConfigError(f"tune: grid has {name}={most[0]} more than once: give it once")
    points = [dict(zip(tried, one, strict=True)) for one in itertools.product(*tried.values())]
    first, beside = _arguments(points[0], {}), settings_said(method_of(strategy), settings, options)
    in_grid = settings_said(Method("grid"), first.get("settings"), first)
    unknown = {name for name in tried if "." not in name} - signature(train).parameters.keys()
    if unknown:
        raise ConfigError(
            f"tune: grid has {min(unknown)!r}, which is no argument of `train`: give settings by "
            "section and name, such as 'federation.theta'"
        )
    taken = {"model", "federation", "strategy", "settings", "out", *options} & tried.keys()
    if taken := taken | set(map(".".join, in_grid.keys() & beside.keys())):
        raise ConfigError(
            f"tune: grid has {min(taken)!r}, which is given beside it: give settings by their "
            "names, such as 'federation.theta', each once, and call tune for each strategy"
        )
    folder = Path(tempfile.mkdtemp(prefix="deltafl-")) if out is None else Path(out)
    results, scores, failed = [], [], None
    for number, point in enumerate(points):
        told, place = options | _arguments(point, settings or {}), folder / str(number)
        try:
            found = train(model, federation, strategy, out=place, **told)
        except ConfigError as error:
            error.add_note(f"tune: at {_said(point)}")
            raise
        except (DivergenceError, RunError) as error:
            warnings.warn(f"tune: {_said(point)}: {error}", stacklevel=2)
            found = Result.open(place, None if isinstance(model, str) else model)
            failed = error
            scores.append(math.inf)
        else:
            scores.append(_score(found.final(), by))
        results.append(replace(found, label=_said(point)))
    if min(scores) == math.inf:
        raise failed or RunError("tune: every point was stopped before its error was measured")
    tuned = Tuned(points, results, scores, settings or {})
    if (score := min(scores)) >= (before := _score(tuned.best.first(), by)):
        warnings.warn(
            f"tune: no point is better than no training: the lowest error is {score:.4g}, with "
            f"{_said(points[tuned.chosen])}, and before the first round it is {before:.4g}: try "
            "other values, or more rounds",
            stacklevel=2,
        )
    return tuned


def _arguments(point: Mapping[str, object], settings: Settings) -> dict[str, Any]:
    """What a point gives to `train`: arguments, and other settings with its own."""
    tables = {section: dict(values) for section, values in settings.items()}
    for name, value in point.items():
        section, _, key = name.rpartition(".")
        if section:
            tables.setdefault(section, {})[key] = value
    arguments = {name: value for name, value in point.items() if "." not in name}
    return arguments | ({"settings": tables} if tables else {})


def _score(measured: Sequence[Evaluation], by: str) -> float:
    """The error over validation devices of some models, averaged; infinite if there are none."""
    if not measured:
        return math.inf
    score = np.mean([score_of(summarise_test_error(one.validation), by) for one in measured])
    return math.inf if np.isnan(score) else float(score)
