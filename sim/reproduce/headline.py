"""The headline: does Δ-FL lower the 90th percentile of the test error, and at what price?

What is asked, how it is tested, and what the tuning that precedes it tries and chose, is written
down in `deltafl.sim.reproduce.declared`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from matplotlib.figure import Figure

from deltafl.sim.errors import ConfigError
from deltafl.sim.reproduce.declared import (
    LEVEL,
    MARGIN,
    PERCENTILE,
    RATES,
    SMALL_STEPS,
    TUNED,
    TUNING_SHARE,
    Setting,
    Study,
    choose_studies,
    study_of,
)
from deltafl.sim.reproduce.experiment import (
    Cell,
    Columns,
    Finished,
    Record,
    Report,
    Request,
    Runs,
    Table,
    percent_error,
    read_runs,
    spread,
    spread_of,
)
from deltafl.sim.reproduce.grid import Experiment, config_of
from deltafl.sim.reproduce.headline_report import Test, label_of, study_report, together_table
from deltafl.sim.reproduce.methods import FEDAVG, Layer, Method, choose_methods, merged
from deltafl.sim.reproduce.tasks import Chosen
from deltafl.sim.reproduce.tuning import divide
from deltafl.sim.settings.config import RunConfig

_MEASURES: Final = {
    "p90": partial(percent_error, percentile=PERCENTILE),
    "mean": partial(percent_error, percentile=None),
}
_COLUMNS: Final[Columns] = {
    "method": "method",
    "setting": "setting",
    **{name: spread_of(name) for name in _MEASURES},
}
_WHAT: Final = (
    "Every seed divides the devices into halves anew; all methods meet the same halves and "
    "cohorts. p-values are one-sided (small where the method's 90th percentile is lower than "
    f"FedAvg's of the same family); a difference counts from p < {LEVEL:g} after Holm's correction "
    "for all tests of the table. They speak of new halves of these devices; the column for new "
    "ones is the corrected resampled t test, not corrected for the number of tests."
)


class Headline(Experiment):
    """The declared tests, errors over rounds, and who gains and who loses."""

    def cells(self, request: Request) -> Sequence[Cell]:
        """Both families, seeds varying slowest, so that an interrupted run has whole seeds."""
        cells = []
        for one, study in choose_studies(request, self.tasks):
            for seed in range(1, (request.seeds or study.seeds) + 1):
                for family, method in _wanted(request, study):
                    layer = study.setting(family, method).layer
                    rounds = study.rounds_of(family, method)
                    config = config_at(
                        request, one, method, seed, layer, rounds=rounds, tested=True
                    )
                    label = label_of(family, method.label)
                    cells.append(Cell(one.task.name, label, seed, config))
        return cells

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """Tables and figures of each task, and a table of all tests if there are several."""
        tables: list[Table] = []
        figures: dict[str, Figure] = {}
        made, notes = {}, [_WHAT]
        chosen = choose_studies(request, self.tasks)
        for one, study in chosen:
            at = request.rounds if isinstance(request.rounds, int) else study.rounds
            mine = [each for each in finished if each.cell.task == one.task.name]
            tests, own, drawn = study_report(self.name, one.label, study, mine, at)
            made[one.label] = tests
            tables += own
            figures |= drawn
            of = "" if len(chosen) == 1 else f"{one.task.name}: "
            notes += [of + note for note in _notes(request, study, tests, at)]
        if len(made) > 1:
            tables.append(together_table(f"{self.name}-together", made))
        return Report(tuple(tables), figures, tuple(notes))


def _notes(request: Request, study: Study, tests: Sequence[Test], at: int) -> Iterator[str]:
    """Whether these are the declared runs, and the settings."""
    if at != study.rounds or request.seeds not in (None, study.seeds) or request.methods:
        yield "Seeds, rounds or methods are not the declared ones: this is a trial."
    if request.overrides:
        yield "Settings were given by --set: this is a trial, and they win over those below."
    # with fewer tests, Holm corrects for too few
    if len(tests) != study.num_tests or any(one.tail.pairs < study.seeds for one in tests):
        yield (
            f"Not all of the {study.num_tests} declared tests were made on {study.seeds} seeds: "
            "this is a trial."
        )
    for family, method in _wanted(request, study):
        if family == TUNED:
            yield f"{family}, {method.label}: {study.setting(family, method)}."
    yield f"{SMALL_STEPS}: {study.setting(SMALL_STEPS, FEDAVG)}, for all methods."


def _wanted(request: Request, study: Study) -> list[tuple[str, Method]]:
    """Families and methods; FedAvg is always among them."""
    known = tuple(method for methods in study.families.values() for method in methods)
    chosen = {one.label for one in choose_methods(request.methods, known)} | {FEDAVG.label}
    return [
        (family, method)
        for family, methods in study.families.items()
        for method in methods
        if method.label in chosen
    ]


class HeadlineTuning(Experiment):
    """Every method on its grid, on devices that are never tested, and what to choose."""

    def settings(self, request: Request, study: Study) -> list[tuple[Method, Setting]]:
        """Every method that is asked for at every point of its grid, method by method."""
        methods = choose_methods(request.methods, study.tuned)
        return [(one, setting) for one in methods for setting in study.grids.get(one.label, ())]

    def best(self, found: Sequence[Record]) -> Record | None:
        """Which of a method's points is taken: the first of those with the smallest tail."""
        known = (record for record in found if record["p90_mean"] is not None)
        return min(known, key=itemgetter("p90_mean"), default=None)

    def cells(self, request: Request) -> Sequence[Cell]:
        """Every point of every study, with every seed."""
        return [
            Cell(
                one.task.name,
                f"{method.label}, {setting}",
                seed,
                config_at(request, one, method, seed, setting.layer),
            )
            for one, study in choose_studies(request, self.tasks)
            for method, setting in self.settings(request, study)
            for seed in range(1, (request.seeds or study.tuning_seeds) + 1)
        ]

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """A table for each study, with a row for each point."""
        runs = read_runs(finished)
        tables, notes = [], []
        for one, study in choose_studies(request, self.tasks):
            found = [_tried(runs, one, *point) for point in self.settings(request, study)]
            for _, own in groupby(found, itemgetter("method")):
                points = [*own]
                best = self.best(points)
                notes += ["{task}, {method}: {setting}.".format_map(best)] if best else []
                for point in points:
                    point["chosen"] = point is best
            title = f"error of held-out tuning {study.users} after {study.rounds} rounds (%)"
            name = study.file(self.name)
            tables.append(Table.of(name, f"{one.label}: {title}", found, _COLUMNS))
        if any(not record["seeds"] for table in tables for record in table.records):
            notes.append(
                "A point without a number has no result: its run failed, mostly by divergence."
            )
        return Report(tuple(tables), notes=tuple(notes))


def _tried(runs: Runs, one: Chosen, method: Method, setting: Setting) -> dict[str, Any]:
    """What a point came to."""
    task = one.task.name
    ended = runs.get((task, f"{method.label}, {setting}"), {})
    numbers = {name: map(measure, ended.values()) for name, measure in _MEASURES.items()}
    of = {"task": task, "method": method.label, "setting": str(setting), "seeds": len(ended)}
    return {**of, **spread(numbers)}


class HeadlineRates(HeadlineTuning):
    """FedAvg's errors at constant rates, and the small rate. No other method is looked at."""

    def settings(self, request: Request, study: Study) -> list[tuple[Method, Setting]]:
        """FedAvg at each rate."""
        del request, study  # all have these
        return [(FEDAVG, Setting(rate, 1.0)) for rate in RATES]

    def best(self, found: Sequence[Record]) -> Record | None:
        """The small rate."""
        by_rate = dict(zip(RATES, found, strict=True))
        tails = {rate: one["p90_mean"] for rate, one in by_rate.items() if one["seeds"]}
        small = small_rate_of(tails)
        return None if small is None else by_rate[small]


def small_rate_of(tails: Mapping[float, float]) -> float | None:
    """The smallest rate whose tail is at most `MARGIN` points above the smallest; None of none."""
    enough = [rate for rate, tail in tails.items() if tail <= min(tails.values()) + MARGIN]
    return min(enough, default=None)


def config_at(
    request: Request,
    one: Chosen,
    method: Method,
    seed: int,
    layer: Layer,
    *,
    rounds: int | None = None,
    tested: bool = False,
) -> RunConfig:
    """All settings of a run on one part, whose halves are the seed's.

    Args:
        request: what a person asked for; its rounds take the place of all others.
        one: the task and its data.
        method: the method.
        seed: of the halves and of the run.
        layer: of the grid.
        rounds: how many; those of the tests by default.
        tested: whether the part is that of the tested devices.

    Raises:
        ConfigError: the rounds are a share of those of a paper.
    """
    if request.rounds is not None and not isinstance(request.rounds, int):
        raise ConfigError(
            f"--rounds {float(100 * request.rounds):g}%: must be a number of rounds; no paper says "
            "how many the headline has"
        )
    study = study_of(one.task.name)
    number = request.rounds or rounds or study.rounds
    parts = divide(config_of(request, one, FEDAVG, 1).data, TUNING_SHARE, request.out)
    data: dict[str, object] = {
        "source": str(parts.testing if tested else parts.tuning),
        "format": parts.format,
        "min_samples": 0,
        "num_users": 0,
        "split_seed": seed,
    }
    if study.max_samples:
        data["max_samples"] = study.max_samples
    every = min(study.every, number)
    fixed: Layer = {
        "data": data,
        "federation": {"rounds": number, "evaluate_every": every if tested else number},
        # the same models as the other backends give, but for the last bits, in half the time
        "training": {"backend": "batched"} if tested or study.tunes_batched else {},
    }
    overrides = merged(merged(layer, fixed), request.overrides)
    return config_of(replace(request, overrides=overrides, rounds=None), one, method, seed)
