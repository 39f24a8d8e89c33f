"""The small rate of the headline's other studies: FedAvg at constant rates, on those who tune.

The rule is that of `deltafl.sim.reproduce.declared_others`. No other method is looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deltafl.fl.metrics import summarise_test_error
from deltafl.sim.reproduce.declared import PERCENTILE, Setting
from deltafl.sim.reproduce.declared_others import MARGIN, RATES
from deltafl.sim.reproduce.experiment import Cell, Finished, Report, Request, Table
from deltafl.sim.reproduce.headline_tuning import config_at, parts_of
from deltafl.sim.reproduce.methods import FEDAVG
from deltafl.sim.reproduce.studies import choose_studies
from deltafl.sim.reproduce.tables import OverSeeds, read_runs
from deltafl.sim.reproduce.tasks import Task


@dataclass(frozen=True, slots=True)
class HeadlineRates:
    """FedAvg's errors by rate, and the small rate.

    Attributes:
        tasks: a table of each.
        name: on the command line.
        title: what it shows.
        source: where it is in which paper.
    """

    tasks: tuple[Task, ...]
    name: str = "headline-rates"
    title: str = "FedAvg at constant rates, on devices that are never tested: the small rate"
    source: str = "ours; sim/reproduce/declared_others.py"

    def cells(self, request: Request) -> Sequence[Cell]:
        """FedAvg at each rate."""
        return [
            Cell(
                one.task.name,
                _label(rate),
                seed,
                config_at(
                    request, one, FEDAVG, parts_of(request, one), seed, Setting(rate, 1.0).layer
                ),
            )
            for one, study in choose_studies(request, self.tasks)
            for rate in RATES
            for seed in range(1, (request.seeds or study.tuning_seeds) + 1)
        ]

    def report(self, request: Request, finished: Sequence[Finished]) -> Report:
        """A table of each task, with the small rate."""
        runs = read_runs(finished)
        tables = []
        for one, study in choose_studies(request, self.tasks):
            tails: dict[float, OverSeeds] = {}
            for rate in RATES:
                evaluations = runs.get((one.task.name, _label(rate)), ())
                errors = [summarise_test_error(each.test) for _, each in evaluations]
                if errors:
                    tails[rate] = OverSeeds(
                        tuple(100 * error.percentiles[PERCENTILE] for error in errors)
                    )
            small = small_rate_of({rate: tail.mean for rate, tail in tails.items()})
            rows = tuple(
                (f"{rate:g}", str(tail), "small rate" if rate == small else "")
                for rate, tail in tails.items()
            )
            tables.append(
                Table(
                    f"{self.name}-{one.task.name}",
                    f"{one.label}: FedAvg's error of held-out tuning {study.users} after "
                    f"{study.rounds} rounds (%)",
                    ("rate", "90th percentile", "chosen"),
                    rows,
                    tuple(
                        {"task": one.task.name, "rate": rate, "p90": tail.mean}
                        for rate, tail in tails.items()
                    ),
                )
            )
        return Report(tuple(tables))


def small_rate_of(tails: Mapping[float, float]) -> float | None:
    """The smallest rate whose tail is at most `MARGIN` points above the smallest; None of none."""
    enough = [rate for rate, tail in tails.items() if tail <= min(tails.values()) + MARGIN]
    return min(enough, default=None)


def _label(rate: float) -> str:
    return f"{FEDAVG.label}, rate {rate:g}"
