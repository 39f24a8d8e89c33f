"""The tuning that precedes the headline: every method on its grid, on writers who are not tested.

The grids, the rule and the budget are declared, see `deltafl.sim.reproduce.study`. What was chosen
there stands in `deltafl.sim.reproduce.headline_settings`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deltafl.fl.metrics import summarise_test_error
from deltafl.sim.errors import ConfigError
from deltafl.sim.reproduce.declared import PERCENTILE, TUNING_SHARE, Setting
from deltafl.sim.reproduce.experiment import Cell, Finished, Report, Request, Table
from deltafl.sim.reproduce.grid import config_of
from deltafl.sim.reproduce.methods import FEDAVG, Layer, Method, choose_methods
from deltafl.sim.reproduce.studies import choose_studies, study_of
from deltafl.sim.reproduce.study import Study
from deltafl.sim.reproduce.tables import OverSeeds, read_runs
from deltafl.sim.reproduce.tasks import Chosen, Task
from deltafl.sim.reproduce.writers import Parts, divide
from deltafl.sim.settings.config import RunConfig


@dataclass(frozen=True, slots=True)
class HeadlineTuning:
    """The grids, and what to choose.

    Attributes:
        tasks: a table of each.
        name: on the command line.
        title: what it shows.
        source: where it is in which paper.
    """

    tasks: tuple[Task, ...]
    name: str = "headline-tuning"
    title: str = "Tuning before the headline, on devices that are never tested"
    source: str = "ours; sim/reproduce/declared*.py"

    def cells(self, request: Request) -> Sequence[Cell]:
        """Every method at every point of its grid."""
        return [
            Cell(
                one.task.name,
                f"{method.label}, {setting}",
                seed,
                config_at(request, one, method, parts_of(request, one), seed, setting.layer),
            )
            for one, study in choose_studies(request, self.tasks)
            for method in _wanted(request, study)
            for setting in study.grids[method.label]
            for seed in range(1, (request.seeds or study.tuning_seeds) + 1)
        ]

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """A table for each task, with a row for each point."""
        runs = read_runs(finished)
        tables, notes = [], []
        for one, study in choose_studies(request, self.tasks):
            rows, records = [], []
            for method in _wanted(request, study):
                found: dict[Setting, tuple[OverSeeds, OverSeeds]] = {}
                for setting in study.grids[method.label]:
                    evaluations = runs.get((one.task.name, f"{method.label}, {setting}"), ())
                    errors = [summarise_test_error(each.test) for _, each in evaluations]
                    if errors:
                        tails = tuple(100 * error.percentiles[PERCENTILE] for error in errors)
                        means = tuple(100 * error.mean for error in errors)
                        found[setting] = OverSeeds(tails), OverSeeds(means)
                best = chosen_of(found)
                for setting, (tail, mean) in found.items():
                    mark = "**" if setting == best else ""
                    rows.append(
                        (method.label, str(setting), f"{mark}{tail}{mark}", f"{mean.mean:.2f}")
                    )
                    records.append(
                        {
                            "task": one.task.name,
                            "method": method.label,
                            "rate": setting.rate,
                            "decay": setting.decay,
                            "constant": setting.constant[1] if setting.constant else None,
                            "p90": tail.mean,
                            "mean": mean.mean,
                            "seeds": len(tail.values),
                            "chosen": setting == best,
                        }
                    )
                if best is not None:
                    notes.append(f"{one.task.name}, {method.label}: {best}.")
            tables.append(
                Table(
                    study.file(self.name),
                    f"{one.label}: error of held-out tuning {study.users} after {study.rounds} "
                    f"rounds (%), {study.budget} settings each",
                    ("method", "setting", "90th percentile", "mean"),
                    tuple(rows),
                    tuple(records),
                )
            )
        return Report(tuple(tables), notes=tuple(notes))


def _wanted(request: Request, study: Study) -> list[Method]:
    """The methods that are tuned, of those that are asked for."""
    return [one for one in choose_methods(request.methods, study.tuned) if one.label in study.grids]


def chosen_of(found: Mapping[Setting, tuple[OverSeeds, OverSeeds]]) -> Setting | None:
    """The setting with the smallest 90th percentile; the first of equals; None of none."""
    return min(found, key=lambda setting: found[setting][0].mean) if found else None


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


def merged(first: Layer, then: Layer) -> Layer:
    """Both layers, the second one winning."""
    return {
        section: {**first.get(section, {}), **then.get(section, {})}
        for section in {**first, **then}
    }
