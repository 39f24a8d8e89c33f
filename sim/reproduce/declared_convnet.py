"""The tests, grids and settings of MNIST by writer with a ConvNet, written down before its runs.

Question, number, test and corrections are those of `deltafl.sim.reproduce.declared_others`, and so
is the rule for the small rate. The writers who tune are those of the first study.

A ConvNet takes much longer than a linear model, so this study is smaller than the others:
25 rounds, at most 50 images of a writer (drawn anew by each seed, so errors are multiples of 2 %),
tuning with one seed, eight settings for each method, the tests after the last round, no curves.
Compared are FedAvg and Δ-FL at θ = 0.8, 0.5 and 0.1; θ = 0.1 at the small rate only.

On the writers who tune, FedAvg alone was looked at, at constant rates: 0.1 is the small rate, 0.2
the best, 0.5 nearly as good, and from 1 on nothing is learned. Every method is tuned at the same
four rates, with the decays 1 and 0.6.
"""

from types import MappingProxyType
from typing import Final

from deltafl.sim.reproduce.declared import SMALL_STEPS, TUNED, Setting
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG
from deltafl.sim.reproduce.study import Study

_ROUNDS: Final = 25
_TUNED: Final = (FEDAVG, *DELTA_FL[:2])
_TRIED: Final = (0.07, 0.15, 0.3, 0.6)
_GRID: Final = tuple(Setting(rate, decay) for rate in _TRIED for decay in (1.0, 0.6))

MNIST_CONVNET: Final = Study(
    "mnist-convnet",
    users="writers",
    seeds=10,
    tuning_seeds=1,
    small_rate=0.1,
    families=MappingProxyType({SMALL_STEPS: (FEDAVG, *DELTA_FL), TUNED: _TUNED}),
    grids=MappingProxyType({method.label: _GRID for method in _TUNED}),
    rounds=_ROUNDS,
    curve=_ROUNDS,
    every=_ROUNDS,
    max_samples=50,
    only_if_named=True,
)
