"""The headline's tests, grids and settings, written down before its runs.

The question: does Δ-FL lower the 90th percentile of the test error over devices, on the writers of
MNIST's digits? A quarter of the writers with more than 50 images only tune. They were looked at
while this file was written; the other writers were not, with these methods and settings.

What was seen there, at ten devices a round, with a linear model: at learning rates from 0.05 to
0.1, Δ-FL at θ = 0.5 had a 90th percentile after 50 rounds that was lower by about a point. At
FedAvg's own best rates, which are ten times larger, no difference was clear, and with a constant
rate Δ-FL was worse. So two families are tested, and they are different questions:

- `SMALL_STEPS`: all methods at one small learning rate.
- `TUNED`: each method at its own best of `BUDGET` settings, chosen on the tuning writers by the
  smallest 90th percentile, the same rule and the same number of settings for each.

Every seed divides the writers into halves anew, one half to train and one to test, and draws the
cohorts; all methods meet the same halves and cohorts. The number is the 90th percentile of the test
error over the test half after `ROUNDS` rounds. The test is the paired t test over seeds, one-sided:
the method's is lower than FedAvg's. Holm's correction is over all tests of both families. A
difference counts from p < `LEVEL` on.

The halves of different seeds overlap, so this speaks of new halves of these writers. For new
writers, the corrected resampled t test of Nadeau and Bengio (2003) stands beside it, which adds the
share of the test half to the variance; it is not corrected for the number of tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from deltafl.sim.reproduce.methods import (
    AFL,
    DELTA_FL,
    FEDAVG,
    FEDPROX,
    PRIVATE_DELTA_FL,
    Q_FFL,
    TILTED_ERM,
    Layer,
    Method,
    private_delta_fl,
)

SEEDS: Final = 12
ROUNDS: Final = 50
"""After which the declared tests are made."""

CURVE: Final = 100
"""Rounds of the runs in clear at small steps, to see what becomes of a difference."""

EVERY: Final = 10
"""Rounds between two evaluations of the tested devices."""

LEVEL: Final = 0.01
PERCENTILE: Final = 90
TUNING_SHARE: Final = Fraction(1, 4)
"""Of the writers, who tune and are never tested."""

BUDGET: Final = 8
"""Settings that each method is tried with."""

TUNING_SEEDS: Final = 2
_DECAY_EVERY: Final = 10

SMALL_STEPS: Final = "small steps"
TUNED: Final = "tuned"

PRIVATE: Final = tuple(private_delta_fl(theta) for theta in ("0.8", "0.5", "0.1"))

FAMILIES: Final[Mapping[str, tuple[Method, ...]]] = MappingProxyType(
    {
        SMALL_STEPS: (FEDAVG, *DELTA_FL, *PRIVATE),
        TUNED: (FEDAVG, FEDPROX, Q_FFL, TILTED_ERM, AFL, *DELTA_FL, PRIVATE_DELTA_FL),
    }
)
"""The methods of each family; every one but FedAvg is tested against FedAvg of the same family."""

SMALL_RATE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Setting:
    """A point of a grid.

    Attributes:
        rate: learning rate of the first rounds.
        decay: what it is multiplied with every ten rounds.
        constant: the method's own constant, such as ("q", 1.0); None where it has none.
    """

    rate: float
    decay: float
    constant: tuple[str, float] | None = None

    def __str__(self) -> str:
        """As in tables."""
        own = "" if self.constant is None else f", {self.constant[0]} = {self.constant[1]:g}"
        return f"rate {self.rate:g}, decay {self.decay:g}{own}"

    @property
    def layer(self) -> Layer:
        """The settings of a run."""
        training: dict[str, object] = {"learning_rate": self.rate, "decay": self.decay}
        training["decay_every"] = _DECAY_EVERY
        own = {} if self.constant is None else {"strategy": dict((self.constant,))}
        return {"training": training, **own}


_DECAYS: Final = (1.0, 0.6)
_CONSTANTS: Final[Mapping[str, tuple[str, tuple[float, float]]]] = {
    FEDPROX.label: ("proximal", (0.01, 0.1)),
    Q_FFL.label: ("q", (0.1, 1.0)),
    TILTED_ERM.label: ("tilt", (0.5, 2.0)),
    AFL.label: ("mixture_rate", (0.01, 0.1)),
}


def grid_of(method: Method) -> tuple[Setting, ...]:
    """The settings that a method is tried with, `BUDGET` of them."""
    if method.label not in _CONSTANTS:
        return tuple(Setting(rate, decay) for rate in (0.1, 0.3, 1.0, 2.0) for decay in _DECAYS)
    name, values = _CONSTANTS[method.label]
    return tuple(
        Setting(rate, decay, (name, value))
        for rate in (0.3, 1.0)
        for decay in _DECAYS
        for value in values
    )


TUNED_METHODS: Final = (FEDAVG, FEDPROX, Q_FFL, TILTED_ERM, AFL, *DELTA_FL)
"""What is tuned; private Δ-FL takes the settings of Δ-FL, whose models it trains."""
