"""All experiments, by their names on the command line."""

from fractions import Fraction
from typing import Final

from deltafl.fl.nearest import nearest
from deltafl.sim.errors import ConfigError
from deltafl.sim.reproduce.algorithm1 import AlgorithmOne
from deltafl.sim.reproduce.declared import STUDIES
from deltafl.sim.reproduce.experiment import Experiment
from deltafl.sim.reproduce.figures import FIGURES
from deltafl.sim.reproduce.headline import Headline, HeadlineRates, HeadlineTuning
from deltafl.sim.reproduce.methods import CROSS_DEVICE, CROSS_SILO, ERROR_TABLES, WORKSHOP
from deltafl.sim.reproduce.published import AVERAGE_ACCURACY, MEAN_ERROR, TAIL_ERROR, WORST_ACCURACY
from deltafl.sim.reproduce.robust import (
    ATTACKS,
    COMPARED,
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
from deltafl.sim.reproduce.tasks import task_named

_P: Final = "arXiv 2002.11223"
_W: Final = "Δ-FL at the NeurIPS 2022 workshop DistShift"
_A: Final = "AAggFF, arXiv 2405.20821"

_EMNIST: Final = (task_named("emnist-linear"), task_named("emnist-convnet"))
_SENT140: Final = (task_named("sent140-linear"), task_named("sent140-lstm"))
_SHAKESPEARE: Final = (task_named("shakespeare-gru"),)

_STUDIES: Final = tuple(task_named(study.task) for study in STUDIES)

_TAIL: Final = "90th percentile of the test error over devices"
_MEAN: Final = "Mean of the test error over devices"


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
    DataTable(
        "table1",
        "How large the data sets are",
        f"{_P}, Table 1",
        (_EMNIST[0], _SENT140[0], *_SHAKESPEARE),
    ),
    ErrorTable(
        "table2",
        _TAIL,
        f"{_P}, Table 2, with the baselines of {_W}, Table 1",
        (*_EMNIST, *_SENT140, *_SHAKESPEARE),
        ERROR_TABLES,
        TAIL_ERROR,
        90,
    ),
    ErrorTable(
        "table3",
        _MEAN,
        f"{_P}, Table 3, with the baselines of {_W}, Table 2",
        (*_EMNIST, *_SENT140, *_SHAKESPEARE),
        ERROR_TABLES,
        MEAN_ERROR,
        None,
    ),
    ErrorTable(
        "workshop-table1", _TAIL, f"{_W}, Table 1", (*_EMNIST, *_SENT140), WORKSHOP, TAIL_ERROR, 90
    ),
    ErrorTable(
        "workshop-table2",
        _MEAN,
        f"{_W}, Table 2",
        (*_EMNIST, *_SENT140),
        WORKSHOP,
        MEAN_ERROR,
        None,
    ),
    FairnessTable(
        "fairness",
        "Fairness among sampled devices",
        f"{_A}, the metrics of Tables 3 and 6 on the tasks of {_P}",
        (*_EMNIST, *_SENT140, *_SHAKESPEARE),
        CROSS_DEVICE,
        CROSS_DEVICE_METRICS,
        {},
    ),
    _silo("heart", f"{_A}, Table 7, with the methods of Table 2"),
    _silo("berka", f"{_A}, Tables 2 and 5 (there by the area under the ROC curve)"),
    _silo("mqp", f"{_A}, Tables 2 and 5 (there with a fine-tuned DistilBERT)"),
    _silo("adult", "Agnostic Federated Learning (ICML 2019), with the methods of AAggFF, Table 2"),
    RobustTable(
        "robust",
        "Under attack by a tenth of the devices",
        _EMNIST,
        COMPARED,
        ATTACKS,
        (Fraction(1, 10),),
    ),
    RobustTable(
        "robust-shares",
        "Under attack by more and more devices",
        _EMNIST,
        COMPARED,
        (FLIPPED, SIGN, SIGN_TOP),
        tuple(Fraction(percent, 100) for percent in (5, 10, 20, 30, 40)),
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
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    known = [experiment.name for experiment in EXPERIMENTS]
    raise ConfigError(f"there is no experiment {name!r}: {nearest(name, known)}")
