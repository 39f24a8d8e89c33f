"""The tests, grids and settings of the headline's other linear studies, written before their runs.

The question, the number and the test are those of `deltafl.sim.reproduce.declared`: the 90th
percentile of the test error over devices after `ROUNDS` rounds, ours less FedAvg's of the same
family; one-sided paired t tests over seeds, each of which divides the tested devices into halves
anew; Holm's correction over all tests of a study. Beside it stands Holm's correction over all tests
of all studies. A difference counts from p < `LEVEL` on.

The data: UNIPEN's characters by writer (digits, lower case, all 62 classes) and pupils by school.
A quarter of the devices only tune. Only they were looked at before this file was written, and only
with FedAvg (`deltafl reproduce headline-rates`).

The small rate follows from a rule, and from FedAvg alone: the smallest of `RATES` at which FedAvg's
90th percentile over held-out tuning devices is at most `MARGIN` points above its smallest.

Every method is tuned at the same `_TRIED` rates, three settings at each of them. The rates hold
FedAvg's best constant rate with at least one more on either side. Of UNIPEN it was 1 (digits), 0.1
(lower case) and 0.2 (all), of the schools 0.05. Methods without a constant have the decays 1, 0.8
and 0.6. Methods with one have the decays 1 and 0.6 with the constant that MNIST's tuning chose, on
other data, and 0.6 with the other value that was tried there. The smallest 90th percentile over
held-out tuning devices decides, the mean of two seeds, for every method.

Private Δ-FL is not run: it trains the same models, which the first study shows. There are fewer
devices than in the first study: 135 to 192 that are large enough, of whom 33 to 48 tune, half of
these to train and half to be measured. So the tuning is noisy.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from deltafl.sim.reproduce.declared import SMALL_STEPS, TUNED, Setting
from deltafl.sim.reproduce.methods import (
    AFL,
    DELTA_FL,
    FEDAVG,
    FEDPROX,
    Q_FFL,
    TILTED_ERM,
    Method,
)
from deltafl.sim.reproduce.study import Study

RATES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Constant rates of FedAvg, of which one is the small rate."""

MARGIN: Final = 5.0
"""Points of the 90th percentile."""

_TRIED: Final = (0.03, 0.1, 0.3, 1.0, 3.0)
_TRIED_ON_SCHOOLS: Final = (0.01, 0.03, 0.1, 0.3, 1.0)

_FAMILIES: Final[Mapping[str, tuple[Method, ...]]] = MappingProxyType(
    {
        SMALL_STEPS: (FEDAVG, *DELTA_FL),
        TUNED: (FEDAVG, FEDPROX, Q_FFL, TILTED_ERM, AFL, *DELTA_FL),
    }
)

_CONSTANTS: Final[Mapping[str, tuple[str, float, float]]] = {
    FEDPROX.label: ("proximal", 0.01, 0.1),
    Q_FFL.label: ("q", 0.1, 1.0),
    TILTED_ERM.label: ("tilt", 0.5, 2.0),
    AFL.label: ("mixture_rate", 0.1, 0.01),
}


def grids_at(rates: tuple[float, ...]) -> Mapping[str, tuple[Setting, ...]]:
    """Three settings at each rate for every method, by its label."""
    return MappingProxyType(
        {
            method.label: tuple(setting for rate in rates for setting in _at(method, rate))
            for method in _FAMILIES[TUNED]
        }
    )


def _at(method: Method, rate: float) -> tuple[Setting, ...]:
    if method.label not in _CONSTANTS:
        return Setting(rate, 1.0), Setting(rate, 0.8), Setting(rate, 0.6)
    name, first, other = _CONSTANTS[method.label]
    return (
        Setting(rate, 1.0, (name, first)),
        Setting(rate, 0.6, (name, first)),
        Setting(rate, 0.6, (name, other)),
    )


def _study(task: str, users: str, small_rate: float, rates: tuple[float, ...]) -> Study:
    return Study(
        task,
        users=users,
        seeds=10,
        tuning_seeds=2,
        small_rate=small_rate,
        families=_FAMILIES,
        grids=grids_at(rates),
    )


OTHERS: Final = (
    _study("unipen-digits-linear", "writers", 0.02, _TRIED),
    _study("unipen-lower-linear", "writers", 0.05, _TRIED),
    _study("unipen-all-linear", "writers", 0.05, _TRIED),
    _study("schools-logistic", "schools", 0.01, _TRIED_ON_SCHOOLS),
)
"""In the order in which their tables are printed."""
