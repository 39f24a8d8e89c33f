"""All experiments, by their names on the command line."""

from fractions import Fraction
from typing import Final

from deltafl.sim.reproduce.algorithm1 import AlgorithmOne
from deltafl.sim.reproduce.declared import STUDIES
from deltafl.sim.reproduce.experiment import Experiment, find
from deltafl.sim.reproduce.figures import FIGURES
from deltafl.sim.reproduce.headline import Headline, HeadlineRates, HeadlineTuning
from deltafl.sim.reproduce.methods import CROSS_DEVICE, CROSS_SILO, ERROR_TABLES, WORKSHOP
from deltafl.sim.reproduce.published import AVERAGE_ACCURACY, MEAN_ERROR, TAIL_ERROR, WORST_ACCURACY
from deltafl.sim.reproduce.robust import (
    ATTACKS,
    FLIPPED,
    SIGN,
    SIGN_TOP,
    RobustTable,
)
from deltafl.sim.reproduce.tables import (
    CROSS_DEVICE_METRICS,
    CROSS_SILO_METRICS,
    DataTable,
    ErrorTable,
    FairnessTable,
)
from deltafl.sim.reproduce.tasks import TASKS, task_named

_P: Final = "arXiv 2002.11223"
_W: Final = "Δ-FL at the NeurIPS 2022 workshop DistShift"
_A: Final = "AAggFF, arXiv 2405.20821"

_TENTH: Final = Fraction(1, 10)
_ALL: Final = TASKS[:5]  # of P, in the order of its tables; the first four are W's
_FAMILIES: Final = (_ALL[0], _ALL[2], _ALL[4])
_STUDIES: Final = tuple(task_named(study.task) for study in STUDIES)

_TAIL: Final = "90th percentile of the test error over devices"
_MEAN: Final = "Mean of the test error over devices"


def _with_baselines(table: int, baselines: int) -> str:
    return f"{_P}, Table {table}, with the baselines of {_W}, Table {baselines}"


def _silo(name: str, source: str) -> FairnessTable:
    return FairnessTable(
        name,
        f"Fairness among the clients of {task_named(name).title}",
        source,
        (task_named(name),),
        CROSS_SILO,
        CROSS_SILO_METRICS,
        {"average": AVERAGE_ACCURACY, "worst": WORST_ACCURACY},
    )


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
        CROSS_DEVICE_METRICS,
        {},
    ),
    _silo("heart", f"{_A}, Table 7, with the methods of Table 2"),
    _silo("berka", f"{_A}, Tables 2 and 5 (there by the area under the ROC curve)"),
    _silo("mqp", f"{_A}, Tables 2 and 5 (there with a fine-tuned DistilBERT)"),
    _silo("adult", "Agnostic Federated Learning (ICML 2019), with the methods of AAggFF, Table 2"),
    RobustTable("robust", "Under attack by a tenth of the devices", _ALL[:2], ATTACKS, (_TENTH,)),
    RobustTable(
        "robust-shares",
        "Under attack by more and more devices",
        _ALL[:2],
        (FLIPPED, SIGN, SIGN_TOP),
        (_TENTH / 2, _TENTH, 2 * _TENTH, 3 * _TENTH, 4 * _TENTH),
    ),
    Headline(_STUDIES),
    HeadlineTuning(_STUDIES),
    HeadlineRates(_STUDIES[1:]),
    AlgorithmOne(),
    *FIGURES,
)
"""In the order in which they are listed."""


def experiment_named(name: str) -> Experiment:
    """Find an experiment by name.

    Raises:
        ConfigError: there is none.
    """
    return find(name, {one.name: one for one in EXPERIMENTS}, "there is no experiment")
