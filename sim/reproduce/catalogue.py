"""All experiments, by their names on the command line."""

from fractions import Fraction
from typing import Final

from deltafl.sim.reproduce.declared import STUDIES
from deltafl.sim.reproduce.device_figures import Histograms, Scatter
from deltafl.sim.reproduce.experiment import find
from deltafl.sim.reproduce.figure import TEST
from deltafl.sim.reproduce.grid import Experiment
from deltafl.sim.reproduce.headline import Headline, HeadlineRates, HeadlineTuning
from deltafl.sim.reproduce.methods import (
    COMPARED,
    CROSS_DEVICE,
    CROSS_SILO,
    DELTA_FL,
    ERROR_TABLES,
    FAIRNESS,
    FEDAVG,
    MEAN_ERROR,
    PRIVATE_DELTA_FL,
    TAIL_ERROR,
    WORKSHOP,
    Method,
)
from deltafl.sim.reproduce.mixture import MixtureFigure
from deltafl.sim.reproduce.robust import ATTACKS, RobustTable
from deltafl.sim.reproduce.round_figures import EVERY_PERIOD, Curves, Kept
from deltafl.sim.reproduce.tables import DataTable, ErrorTable, FairnessTable
from deltafl.sim.reproduce.tasks import TASKS, Task, task_named

_P: Final = "arXiv 2002.11223"
_W: Final = "Δ-FL at the NeurIPS 2022 workshop DistShift"
_A: Final = "AAggFF, arXiv 2405.20821"

_TENTH: Final = Fraction(1, 10)
_ALL: Final = TASKS[:5]  # of P, in the order of its tables; the first four are W's
_EMNIST: Final = _ALL[:2]
_FAMILIES: Final = (_ALL[0], _ALL[2], _ALL[4])
_STUDIES: Final = tuple(task_named(study.task) for study in STUDIES)

_TAIL: Final = "90th percentile of the test error over devices"
_MEAN: Final = "Mean of the test error over devices"
_OVER_DEVICES: Final = "Training loss and test error over devices"
_AGAINST_SIZE: Final = "Training loss and test error against data size"
_LYING: Final = "ours; docs/how-to/test-against-lying-devices.md"
_DECLARED: Final = "ours; sim/reproduce/declared.py"

_LEVELS: Final = (FEDAVG, *DELTA_FL)
_PAIR: Final = (FEDAVG, DELTA_FL[1])
_OUR_PERIODS: Final = (
    "The paper's text names neither the periods T_η of this figure nor θ: our choice.",
)


def _with_baselines(table: int, baselines: int) -> str:
    return f"{_P}, Table {table}, with the baselines of {_W}, Table {baselines}"


def _silo(name: str, source: str) -> FairnessTable:
    return FairnessTable(
        name,
        f"Fairness among the clients of {task_named(name).title}",
        source,
        (task_named(name),),
        CROSS_SILO,
        ("average", "worst", "Gini", "parity gap"),
        FAIRNESS,
    )


def _figure(
    number: int, title: str, tasks: tuple[Task, ...], methods: tuple[Method, ...]
) -> tuple[str, str, str, tuple[Task, ...], tuple[Method, ...]]:
    """What an experiment is made of first, of a figure of P."""
    return f"fig{number}", title, f"{_P}, Figure {number}", tasks, methods


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    DataTable("table1", "How large the data sets are", f"{_P}, Table 1", _FAMILIES),
    ErrorTable("table2", _TAIL, _with_baselines(2, 1), _ALL, ERROR_TABLES, TAIL_ERROR, 90),
    ErrorTable("table3", _MEAN, _with_baselines(3, 2), _ALL, ERROR_TABLES, MEAN_ERROR, None),
    ErrorTable("workshop-table1", _TAIL, f"{_W}, Table 1", _ALL[:4], WORKSHOP, TAIL_ERROR, 90),
    ErrorTable("workshop-table2", _MEAN, f"{_W}, Table 2", _ALL[:4], WORKSHOP, MEAN_ERROR, None),
    FairnessTable(
        "fairness",
        "Fairness among sampled devices",
        f"{_A}, the metrics of Tables 3 and 6 on the tasks of {_P}",
        _ALL,
        CROSS_DEVICE,
        ("average", "worst 10 %", "best 10 %", "Gini", "parity gap"),
    ),
    _silo(
        "heart",
        f"{_A}, Table 7 (there by the area under the ROC curve), with the methods of Table 2",
    ),
    _silo("berka", f"{_A}, Tables 2 and 5 (there by the area under the ROC curve)"),
    _silo("mqp", f"{_A}, Tables 2 and 5 (there with a fine-tuned DistilBERT)"),
    _silo("adult", "Agnostic Federated Learning (ICML 2019), with the methods of AAggFF, Table 2"),
    RobustTable(
        "robust",
        "Under attack by a tenth of the devices",
        _LYING,
        _EMNIST,
        COMPARED,
        tuple(ATTACKS),
        (_TENTH,),
    ),
    RobustTable(
        "robust-shares",
        "Under attack by more and more devices",
        _LYING,
        _EMNIST,
        COMPARED,
        ("labels", "sign", "sign-top"),
        (_TENTH / 2, _TENTH, 2 * _TENTH, 3 * _TENTH, 4 * _TENTH),
    ),
    Headline(
        "headline",
        "Does Δ-FL lower the 90th percentile of the test error?",
        "ours; the tests were declared in sim/reproduce/declared.py before the runs",
        _STUDIES,
    ),
    HeadlineTuning(
        "headline-tuning",
        "Tuning before the headline, on devices that are never tested",
        _DECLARED,
        _STUDIES,
    ),
    HeadlineRates(
        "headline-rates",
        "FedAvg at constant rates, on devices that are never tested: the small rate",
        _DECLARED,
        _STUDIES[1:],
    ),
    MixtureFigure(
        "fig3", "Three Gaussians: the model for θ = 2/3 and the mean model", f"{_P}, Figure 3"
    ),
    Histograms(
        *_figure(4, "Test error over devices", _EMNIST[1:], _LEVELS),
        (
            "The text does not say which tasks Figure 4 shows; this is emnist-convnet, as in "
            "Figure 5.",
        ),
        splits=(TEST,),
    ),
    Scatter(*_figure(5, f"{_AGAINST_SIZE}, EMNIST ConvNet", _EMNIST[1:], _PAIR)),
    Curves(
        *_figure(6, "Over secure aggregation calls", _EMNIST[1:], (*_LEVELS, PRIVATE_DELTA_FL)),
        (
            "The text does not say which task Figure 6 shows; this is emnist-convnet, as in "
            "Figure 5.",
            "The paper counts one call per round. Private Δ-FL also spends sums on the search for "
            "η, which the figure with -sums in its name counts.",
        ),
        statistics=("mean", "p90"),
        counts_calls=True,
    ),
    *(
        Curves(*_figure(number, f"Over the rounds, {task.title}", (task,), _LEVELS))
        for number, task in enumerate(_ALL, 7)
    ),
    Histograms(*_figure(12, f"{_OVER_DEVICES}, EMNIST", _EMNIST, _LEVELS)),
    Histograms(*_figure(13, f"{_OVER_DEVICES}, Sent140 and Shakespeare", _ALL[2:], _LEVELS)),
    Scatter(*_figure(14, f"{_AGAINST_SIZE}, EMNIST", _EMNIST, _PAIR)),
    Scatter(*_figure(15, f"{_AGAINST_SIZE}, Sent140 and Shakespeare", _ALL[2:], _PAIR)),
    Kept(*_figure(16, "Devices kept per round, EMNIST", _EMNIST, _LEVELS)),
    *(
        Curves(
            *_figure(number, f"Period of the update of η, {task.title}", (task,), EVERY_PERIOD),
            _OUR_PERIODS,
            statistics=("mean", "p90"),
        )
        for number, task in ((17, _ALL[0]), (18, _ALL[2]))
    ),
)
"""In the order in which they are listed."""

NAMED: Final = {one.name: one for one in EXPERIMENTS}
"""By their names."""


def experiment_named(name: str) -> Experiment:
    """Find an experiment by name.

    Raises:
        ConfigError: there is none.
    """
    return find(name, NAMED, "there is no experiment")
