"""The tests, grids and settings of next characters by role with a GRU, written before its runs.

Question, number, test and corrections are those of `deltafl.sim.reproduce.declared_others`, and so
is the rule for the small rate. Of Shakespeare's roles with more than 100 windows, 200 are drawn,
and of each, 100 windows from all of its text, the same for every seed; so errors are multiples of
1 %. A quarter of the roles only tune.

A GRU takes long, and this study is the smallest: 30 rounds, 8 seeds, tuning with one seed, six
settings for each method, the tests after the last round, no curves. Compared are FedAvg and Δ-FL at
θ = 0.8, 0.5 and 0.1; θ = 0.1 at the small rate only.

On the roles that tune, FedAvg alone was looked at, at constant rates, with one seed. Up to 0.2 it
learned nothing but the blank, which is the most frequent character: an error of 81 % at the 90th
percentile. Then it was 77 % at 0.5, 74 % at 1, 75.6 % at 2 and 99 % at 5. So 0.5 is the small rate,
next to the best. After 30 rounds this model knows little, at any rate. Every method is tuned at the
best rate and at the next on either side, with the decays 1 and 0.6 every ten rounds.
"""

from types import MappingProxyType
from typing import Final

from deltafl.sim.reproduce.declared import SMALL_STEPS, TUNED, Setting
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG
from deltafl.sim.reproduce.study import Study

_ROUNDS: Final = 30
_TUNED: Final = (FEDAVG, *DELTA_FL[:2])
_TRIED: Final = (0.5, 1.0, 2.0)
_GRID: Final = tuple(Setting(rate, decay) for rate in _TRIED for decay in (1.0, 0.6))

PLAYS_GRU: Final = Study(
    "plays-gru",
    users="roles",
    seeds=8,
    tuning_seeds=1,
    small_rate=0.5,
    families=MappingProxyType({SMALL_STEPS: (FEDAVG, *DELTA_FL), TUNED: _TUNED}),
    grids=MappingProxyType({method.label: _GRID for method in _TUNED}),
    rounds=_ROUNDS,
    curve=_ROUNDS,
    every=_ROUNDS,
)
