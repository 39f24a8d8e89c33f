"""The headline: does Δ-FL lower the 90th percentile of the test error, and at what price?

What is asked, how it is tested, and what the tuning that precedes it tries and chose, is written
down in `deltafl.sim.reproduce.declared`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

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
from deltafl.sim.reproduce.figures.headline import draw_devices, draw_headline
from deltafl.sim.reproduce.grid import config_of
from deltafl.sim.reproduce.headline_tables import (
    Test,
    compare,
    devices_table,
    errors_table,
    label_of,
    read_arms,
    rounds_table,
    tests_table,
    together_table,
)
from deltafl.sim.reproduce.methods import FEDAVG, Layer, Method, choose_methods, merged
from deltafl.sim.reproduce.tasks import Chosen, Task
from deltafl.sim.reproduce.writers import Parts, divide
from deltafl.sim.settings.config import PRIVATE, RunConfig

Point: TypeAlias = tuple[Method, Setting]
Tried: TypeAlias = Mapping[Point, tuple[OverSeeds, OverSeeds]]
"""From a point of a grid to the 90th percentile and the mean of the error, in percent."""

_WHAT = (
    "Every seed divides the devices into halves anew; all methods meet the same halves and "
    "cohorts. p-values are one-sided (small where the method's 90th percentile is lower than "
    f"FedAvg's of the same family); a difference counts from p < {LEVEL:g} after Holm's correction "
    "for all tests of the table. They speak of new halves of these devices; the column for new "
    "ones is the corrected resampled t test, not corrected for the number of tests."
)


@dataclass(frozen=True, slots=True)
class Headline:
    """The declared tests, errors over rounds, and who gains and who loses.

    Attributes:
        tasks: a set of tables of each.
        name: on the command line.
        title: what it shows.
        source: where it is in which paper.
    """

    tasks: tuple[Task, ...]
    name: str = "headline"
    title: str = "Does Δ-FL lower the 90th percentile of the test error?"
    source: str = "ours; the tests were declared in sim/reproduce/declared.py before the runs"

    def cells(self, request: Request) -> Sequence[Cell]:
        """Both families, seeds varying slowest, so that an interrupted run has whole seeds."""
        cells = []
        for one, study in choose_studies(request, self.tasks):
            parts = parts_of(request, one)
            for seed in range(1, (request.seeds or study.seeds) + 1):
                for family, method in _wanted(request, study):
                    config = config_at(
                        request,
                        one,
                        method,
                        parts,
                        seed,
                        study.setting(family, method).layer,
                        rounds=study.rounds_of(family, clear=in_clear(method)),
                        tested=True,
                    )
                    label = label_of(family, method.label)
                    cells.append(Cell(one.task.name, label, seed, config))
        return cells

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """Tables and figures of each task, and a table of all tests if there are several."""
        tables: list[Table] = []
        figures, made, notes = {}, {}, [_WHAT]
        chosen = choose_studies(request, self.tasks)
        for one, study in chosen:
            at = request.rounds if isinstance(request.rounds, int) else study.rounds
            mine = [each for each in finished if each.cell.task == one.task.name]
            arms = read_arms(mine, study.families)
            tests = compare(arms, at)
            made[one.label] = tests
            file = study.file
            tables += [
                tests_table(file(f"{self.name}-tests"), one.label, tests, at, study.users),
                errors_table(file(f"{self.name}-errors"), one.label, arms, at),
                rounds_table(file(f"{self.name}-rounds"), one.label, arms),
                devices_table(file(f"{self.name}-devices"), one.label, arms, at, study.users),
            ]
            if tests:
                figures[file(self.name)] = draw_headline(arms, tests, at)
                figures[file(f"{self.name}-devices")] = draw_devices(arms, at, study.users)
            of = "" if len(chosen) == 1 else f"{one.task.name}: "
            notes += [of + note for note in _notes(request, study, tests, at)]
        if len(made) > 1:
            tables.append(together_table(f"{self.name}-together", made))
        return Report(tuple(tables), figures, tuple(notes))


def _notes(request: Request, study: Study, tests: Sequence[Test], at: int) -> list[str]:
    """Whether these are the declared runs, and the settings."""
    notes = []
    if at != study.rounds or request.seeds not in (None, study.seeds) or request.methods:
        notes.append("Seeds, rounds or methods are not the declared ones: this is a trial.")
    if request.overrides:
        notes.append(
            "Settings were given by --set: this is a trial, and they win over those below."
        )
    if not _is_whole(tests, study):
        notes.append(
            f"Not all of the {study.num_tests} declared tests were made on {study.seeds} seeds: "
            "this is a trial."
        )
    notes += [
        f"{family}, {method.label}: {study.setting(family, method)}."
        for family, method in _wanted(request, study)
        if family == TUNED
    ]
    return [*notes, f"{SMALL_STEPS}: {study.setting(SMALL_STEPS, FEDAVG)}, for all methods."]


def _is_whole(tests: Sequence[Test], study: Study) -> bool:
    """Whether all declared tests were made, each on all seeds; else Holm corrects for too few."""
    return len(tests) == study.num_tests and all(one.seeds >= study.seeds for one in tests)


def in_clear(method: Method) -> bool:
    """Whether a method shows the server more than sums."""
    return not str(method.layer["federation"]["algorithm"]).startswith(PRIVATE)


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


@dataclass(frozen=True, slots=True)
class HeadlineTuning:
    """Every method on its grid, on devices that are never tested, and what to choose.

    Attributes:
        tasks: a table of each.
        name: on the command line.
        title: what it shows.
        source: where it is in which paper.
    """

    tasks: tuple[Task, ...]
    name: str = "headline-tuning"
    title: str = "Tuning before the headline, on devices that are never tested"
    source: str = "ours; sim/reproduce/declared.py"

    def points(self, request: Request, study: Study) -> list[Point]:
        """Every method that is asked for at every point of its grid."""
        methods = choose_methods(request.methods, study.tuned)
        return [(one, setting) for one in methods for setting in study.grids.get(one.label, ())]

    def chosen(self, found: Tried) -> Point | None:
        """Which of a method's points is taken; None of none."""
        return chosen_of(found)

    def cells(self, request: Request) -> Sequence[Cell]:
        """Every point, with every seed."""
        cells = []
        for one, study in choose_studies(request, self.tasks):
            parts = parts_of(request, one)
            for method, setting in self.points(request, study):
                for seed in range(1, (request.seeds or study.tuning_seeds) + 1):
                    config = config_at(request, one, method, parts, seed, setting.layer)
                    cells.append(Cell(one.task.name, f"{method.label}, {setting}", seed, config))
        return cells

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """A table for each task, with a row for each point that has a result."""
        runs = read_runs(finished)
        tables, notes = [], []
        for one, study in choose_studies(request, self.tasks):
            found: dict[Point, tuple[OverSeeds, OverSeeds]] = {}
            for method, setting in self.points(request, study):
                ended = runs.get((one.task.name, f"{method.label}, {setting}"), ())
                if ended:
                    tails, means = (
                        OverSeeds(tuple(percent_error(each, statistic) for _, each in ended))
                        for statistic in (PERCENTILE, None)
                    )
                    found[method, setting] = tails, means
            methods = dict.fromkeys(method for method, _ in found)
            best = {
                label: self.chosen({p: found[p] for p in found if p[0] is label})
                for label in methods
            }
            notes += [f"{one.task.name}, {at[0].label}: {at[1]}." for at in best.values() if at]
            tables.append(
                Table.of(
                    study.file(self.name),
                    f"{one.label}: error of held-out tuning {study.users} after {study.rounds} "
                    f"rounds (%), {len(found) // max(1, len(methods))} settings each",
                    [
                        _tuning_record(one, point, *found[point], chosen=point == best[point[0]])
                        for point in found
                    ],
                    {
                        "method": "method",
                        "setting": "setting",
                        "90th percentile": _marked,
                        "mean": lambda record: f"{record['mean']:.2f}",
                    },
                )
            )
        return Report(tuple(tables), notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class HeadlineRates(HeadlineTuning):
    """FedAvg's errors at constant rates, and the small rate. No other method is looked at."""

    name: str = "headline-rates"
    title: str = "FedAvg at constant rates, on devices that are never tested: the small rate"

    def points(self, request: Request, study: Study) -> list[Point]:
        """FedAvg at each rate."""
        del request, study  # all have these
        return [(FEDAVG, Setting(rate, 1.0)) for rate in RATES]

    def chosen(self, found: Tried) -> Point | None:
        """The small rate."""
        small = small_rate_of({at.rate: tail.mean for (_, at), (tail, _) in found.items()})
        return None if small is None else (FEDAVG, Setting(small, 1.0))


def chosen_of(found: Tried) -> Point | None:
    """The point with the smallest 90th percentile; the first of equals; None of none."""
    return min(found, key=lambda point: found[point][0].mean, default=None)


def small_rate_of(tails: Mapping[float, float]) -> float | None:
    """The smallest rate whose tail is at most `MARGIN` points above the smallest; None of none."""
    enough = [rate for rate, tail in tails.items() if tail <= min(tails.values()) + MARGIN]
    return min(enough, default=None)


def _tuning_record(
    one: Chosen, point: Point, tail: OverSeeds, mean: OverSeeds, *, chosen: bool
) -> Record:
    method, setting = point
    return {
        "task": one.task.name,
        "method": method.label,
        "setting": str(setting),
        "rate": setting.rate,
        "decay": setting.decay,
        "constant": setting.constant[1] if setting.constant else None,
        "p90": tail.mean,
        "p90_std": tail.std,
        "mean": mean.mean,
        "seeds": len(tail.values),
        "chosen": chosen,
    }


def _marked(record: Record) -> str:
    return bold(plus_minus(record["p90"], record["p90_std"]), record["chosen"])


def parts_of(request: Request, one: Chosen) -> Parts:
    """The files of those who tune and of those who are tested."""
    return divide(config_of(request, one, FEDAVG, 1).data, TUNING_SHARE, request.out)


def config_at(
    request: Request,
    one: Chosen,
    method: Method,
    parts: Parts,
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
        parts: the files.
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
