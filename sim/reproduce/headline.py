"""The headline: does Δ-FL lower the 90th percentile of the test error, and at what price?

What is asked, and how it is tested, is written down in `deltafl.sim.reproduce.declared`, which was
there before the runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deltafl.sim.reproduce.declared import (
    CURVE,
    FAMILIES,
    LEVEL,
    ROUNDS,
    SEEDS,
    SMALL_RATE,
    SMALL_STEPS,
    TUNED,
    Setting,
)
from deltafl.sim.reproduce.experiment import Cell, Finished, Report, Request, Table
from deltafl.sim.reproduce.figures.headline import draw_devices, draw_headline
from deltafl.sim.reproduce.headline_results import Test, compare, label_of, read_arms
from deltafl.sim.reproduce.headline_settings import CHOSEN
from deltafl.sim.reproduce.headline_tables import (
    devices_table,
    errors_table,
    rounds_table,
    tests_table,
)
from deltafl.sim.reproduce.headline_tuning import config_at, parts_of
from deltafl.sim.reproduce.methods import FEDAVG, Method, choose_methods
from deltafl.sim.reproduce.tasks import Task, choose_tasks
from deltafl.sim.settings.config import PRIVATE

_NUM_TESTS: Final = sum(len(methods) - 1 for methods in FAMILIES.values())
_WHAT = (
    "Every seed divides the writers into halves anew; all methods meet the same halves and "
    "cohorts. p-values are one-sided (small where the method's 90th percentile is lower than "
    f"FedAvg's of the same family); a difference counts from p < {LEVEL:g} after Holm's correction "
    "for all tests of the table. They speak of new halves of these writers; the column for new "
    "writers is the corrected resampled t test, not corrected for the number of tests."
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
        for one in choose_tasks(request, self.tasks):
            parts = parts_of(request, one)
            for seed in range(1, (request.seeds or SEEDS) + 1):
                for family, method in _wanted(request):
                    config = config_at(
                        request,
                        one,
                        method,
                        parts,
                        seed,
                        setting_of(family, method).layer,
                        rounds=CURVE if family == SMALL_STEPS and in_clear(method) else ROUNDS,
                        tested=True,
                    )
                    label = label_of(family, method.label)
                    cells.append(Cell(one.task.name, label, seed, config))
        return cells

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """Tables and figures of each task."""
        at = request.rounds if isinstance(request.rounds, int) else ROUNDS
        tables: list[Table] = []
        figures, made = {}, []
        for one in choose_tasks(request, self.tasks):
            arms = read_arms([each for each in finished if each.cell.task == one.task.name])
            tests = compare(arms, at)
            made.append(tests)
            tables += [
                tests_table(f"{self.name}-tests", one.label, tests, at),
                errors_table(f"{self.name}-errors", one.label, arms, at),
                rounds_table(f"{self.name}-rounds", one.label, arms),
                devices_table(f"{self.name}-devices", one.label, arms, at),
            ]
            if tests:
                figures[self.name] = draw_headline(arms, tests, at)
                figures[f"{self.name}-devices"] = draw_devices(arms, at)
        notes = [_WHAT]
        if at != ROUNDS or request.seeds not in (None, SEEDS) or request.methods:
            notes.append("Seeds, rounds or methods are not the declared ones: this is a trial.")
        if request.overrides:
            notes.append(
                "Settings were given by --set: this is a trial, and they win over those below."
            )
        if not all(map(_is_whole, made)):
            notes.append(
                f"Not all of the {_NUM_TESTS} declared tests were made on {SEEDS} seeds: this is a "
                "trial."
            )
        notes += [
            f"{family}, {method.label}: {setting_of(family, method)}."
            for family, method in _wanted(request)
            if family == TUNED
        ]
        notes.append(f"{SMALL_STEPS}: {setting_of(SMALL_STEPS, FEDAVG)}, for all methods.")
        return Report(tuple(tables), figures, tuple(notes))


def _is_whole(tests: Sequence[Test]) -> bool:
    """Whether all declared tests were made, each on all seeds; else Holm corrects for too few."""
    return len(tests) == _NUM_TESTS and all(one.seeds >= SEEDS for one in tests)


def setting_of(family: str, method: Method) -> Setting:
    """The setting of a method in a family; private Δ-FL has that of Δ-FL."""
    if family == SMALL_STEPS:
        return Setting(SMALL_RATE, 1.0)
    return CHOSEN[method.label.removeprefix("private ")]


def in_clear(method: Method) -> bool:
    """Whether a method shows the server more than sums."""
    return not str(method.layer["federation"]["algorithm"]).startswith(PRIVATE)


def _wanted(request: Request) -> list[tuple[str, Method]]:
    """Families and methods; FedAvg is always among them."""
    known = tuple(method for methods in FAMILIES.values() for method in methods)
    chosen = {one.label for one in choose_methods(request.methods, known)} | {FEDAVG.label}
    return [
        (family, method)
        for family, methods in FAMILIES.items()
        for method in methods
        if method.label in chosen
    ]
