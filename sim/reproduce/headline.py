"""The headline: does Δ-FL lower the 90th percentile of the test error, and at what price?

What is asked, and how it is tested, is written down before the runs: of the first study in
`deltafl.sim.reproduce.declared`, of the others in `declared_others`, `declared_convnet` and
`declared_plays`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from deltafl.sim.reproduce.declared import LEVEL, SMALL_STEPS, TUNED, Setting
from deltafl.sim.reproduce.experiment import Cell, Finished, Report, Request, Table
from deltafl.sim.reproduce.figures.headline import draw_devices, draw_headline
from deltafl.sim.reproduce.headline_results import Test, compare, label_of, read_arms
from deltafl.sim.reproduce.headline_settings import CHOSEN, CHOSEN_BY_TASK
from deltafl.sim.reproduce.headline_tables import (
    devices_table,
    errors_table,
    rounds_table,
    tests_table,
    together_table,
)
from deltafl.sim.reproduce.headline_tuning import config_at, parts_of
from deltafl.sim.reproduce.methods import FEDAVG, Method, choose_methods
from deltafl.sim.reproduce.studies import MNIST_LINEAR, choose_studies
from deltafl.sim.reproduce.study import Study
from deltafl.sim.reproduce.tasks import Task
from deltafl.sim.settings.config import PRIVATE

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
    source: str = "ours; the tests were declared in sim/reproduce/declared*.py before the runs"

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
                        setting_of(family, method, study).layer,
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
        f"{family}, {method.label}: {setting_of(family, method, study)}."
        for family, method in _wanted(request, study)
        if family == TUNED
    ]
    return [*notes, f"{SMALL_STEPS}: {setting_of(SMALL_STEPS, FEDAVG, study)}, for all methods."]


def _is_whole(tests: Sequence[Test], study: Study) -> bool:
    """Whether all declared tests were made, each on all seeds; else Holm corrects for too few."""
    return len(tests) == study.num_tests and all(one.seeds >= study.seeds for one in tests)


def setting_of(family: str, method: Method, study: Study = MNIST_LINEAR) -> Setting:
    """The setting of a method in a family; private Δ-FL has that of Δ-FL."""
    if family == SMALL_STEPS:
        return Setting(study.small_rate, 1.0)
    chosen = CHOSEN if study is MNIST_LINEAR else CHOSEN_BY_TASK[study.task]
    return chosen[method.label.removeprefix("private ")]


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
