"""The headline's tests, grids and settings, written down before the runs of each study.

The question: does Δ-FL lower the 90th percentile of the test error over devices? Two families are
tested, and they are different questions:

- `SMALL_STEPS`: all methods at one small learning rate.
- `TUNED`: each method at its own best of as many settings as the others have, chosen on devices
  that only tune by the smallest 90th percentile, the mean over seeds, the first of equals. Private
  Δ-FL takes the settings of Δ-FL, whose models it trains.

A quarter of the devices only tune; no other was looked at while a study was declared. Every seed
divides the others into halves anew, one half to train and one to test, and draws the cohorts; all
methods meet the same halves and cohorts. The number is the 90th percentile of the test error over
the test half after the study's rounds. The test is the paired t test over seeds, one-sided: the
method's is lower than FedAvg's of the same family. Holm's correction is over all tests of a study,
and beside it over all tests of all studies. A difference counts from p < `LEVEL` on.

The halves of different seeds overlap, so this speaks of new halves of these devices. For new
devices, the corrected resampled t test of Nadeau and Bengio (2003) stands beside it, which adds the
share of the test half to the variance; it is not corrected for the number of tests.

`mnist-linear`, the first: writers of MNIST's digits with more than 50 images. What was seen on
those who tune, at ten devices a round: at learning rates from 0.05 to 0.1, Δ-FL at θ = 0.5 had a
90th percentile after 50 rounds that was lower by about a point. At FedAvg's own best rates, which
are ten times larger, no difference was clear, and with a constant rate Δ-FL was worse. So the small
rate is one of these.

`unipen-*` and `schools-logistic`: UNIPEN's characters by writer (digits, lower case, all 62
classes) and pupils by school. Before their declaration only FedAvg was looked at (`deltafl
reproduce headline-rates`). The small rate follows from a rule, and from FedAvg alone: the smallest
of `RATES` at which FedAvg's 90th percentile over held-out tuning devices is at most `MARGIN` points
above its smallest. Every method is tuned at the same rates, three settings at each of them. The
rates hold FedAvg's best constant rate with at least one more on either side. Of UNIPEN it was 1
(digits), 0.1 (lower case) and 0.2 (all), of the schools 0.05. Methods without a constant have the
decays 1, 0.8 and 0.6. Methods with one have the decays 1 and 0.6 with the constant that MNIST's
tuning chose, on other data, and 0.6 with the other value that was tried there. Private Δ-FL is not
run: it trains the same models, which the first study shows. There are fewer devices than in the
first study: 135 to 192 that are large enough, of whom 33 to 48 tune, half of these to train and
half to be measured. So the tuning is noisy.

`mnist-convnet`: the writers of the first study, and those who tune are the same. A ConvNet takes
much longer than a linear model, so this study is smaller: 25 rounds, at most 50 images of a writer
(drawn anew by each seed, so errors are multiples of 2 %), tuning with one seed, eight settings for
each method, the tests after the last round, no curves. Compared are FedAvg and Δ-FL at θ = 0.8, 0.5
and 0.1; θ = 0.1 at the small rate only. On the writers who tune, FedAvg alone was looked at, at
constant rates: 0.1 is the small rate, by the same rule, 0.2 the best, 0.5 nearly as good, and from
1 on nothing is learned. Every method is tuned at the same four rates, with the decays 1 and 0.6.

`plays-gru`: next characters by role with a GRU. Of Shakespeare's roles with more than 100 windows,
200 are drawn, and of each, 100 windows from all of its text, the same for every seed; so errors are
multiples of 1 %. A GRU takes long, and this study is the smallest: 30 rounds, 8 seeds, tuning with
one seed, six settings for each method, the tests after the last round, no curves. The methods are
those of the ConvNet. On the roles that tune, FedAvg alone was looked at, at constant rates, with
one seed. Up to 0.2 it learned nothing but the blank, which is the most frequent character: an error
of 81 % at the 90th percentile. Then it was 77 % at 0.5, 74 % at 1, 75.6 % at 2 and 99 % at 5. So
0.5 is the small rate, next to the best. After 30 rounds this model knows little, at any rate. Every
method is tuned at the best rate and at the next on either side, with the decays 1 and 0.6.

What the tuning chose, by `deltafl reproduce headline-tuning`, stands with each study, and
docs/results.md has the whole grids.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Final, TypeAlias

from deltafl.sim.reproduce.experiment import Request
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
from deltafl.sim.reproduce.tasks import Chosen, Task, choose_tasks

LEVEL: Final = 0.01
PERCENTILE: Final = 90
TUNING_SHARE: Final = Fraction(1, 4)
"""Of the devices, who tune and are never tested."""

RATES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Constant rates of FedAvg, of which one is the small rate."""

MARGIN: Final = 5.0
"""Points of the 90th percentile."""

SMALL_STEPS: Final = "small steps"
TUNED: Final = "tuned"

_DECAY_EVERY: Final = 10
_PRIVATE: Final = "private "  # before the label of the method whose models are trained


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


Grid: TypeAlias = tuple[Setting, ...]


_CONSTANTS: Final[Mapping[str, tuple[str, tuple[float, float]]]] = {
    FEDPROX.label: ("proximal", (0.01, 0.1)),
    Q_FFL.label: ("q", (0.1, 1.0)),
    TILTED_ERM.label: ("tilt", (0.5, 2.0)),
    AFL.label: ("mixture_rate", (0.1, 0.01)),
}
"""The methods' own constants, and two values, of which MNIST's tuning chose the first."""


def _own(label: str, value: float) -> tuple[str, float]:
    return _CONSTANTS[label][0], value


def _at(rates: Sequence[float]) -> Callable[[str], Grid]:
    """Two decays at each rate, and both values of the constant."""

    def grid(label: str) -> Grid:
        values = sorted(_CONSTANTS[label][1]) if label in _CONSTANTS else ()
        own: list[tuple[str, float] | None] = [_own(label, value) for value in values]
        return tuple(Setting(*point) for point in product(rates, (1.0, 0.6), own or [None]))

    return grid


def _of_mnist(label: str) -> Grid:
    """Eight settings: methods with a constant are tried at fewer rates."""
    return _at((0.3, 1.0) if label in _CONSTANTS else (0.1, 0.3, 1.0, 2.0))(label)


def _three_at(rates: Sequence[float]) -> Callable[[str], Grid]:
    """Three settings at each rate."""

    def grid(label: str) -> Grid:
        points: list[tuple[float, tuple[str, float] | None]] = [
            (1.0, None),
            (0.8, None),
            (0.6, None),
        ]
        if label in _CONSTANTS:
            first, other = (_own(label, value) for value in _CONSTANTS[label][1])
            points = [(1.0, first), (0.6, first), (0.6, other)]
        return tuple(Setting(rate, *point) for rate in rates for point in points)

    return grid


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """The declaration of one study.

    Attributes:
        task: the name of its task, `deltafl.sim.reproduce.tasks`.
        users: what its devices are, such as "writers".
        seeds: how many the tests are made on.
        tuning_seeds: how many each point of a grid is tried with.
        small_rate: the learning rate of the family "small steps".
        families: the methods of each family; every one but FedAvg is tested against FedAvg.
        grid: the settings that a method is tried with, by its label.
        choices: what the tuning chose: rate, decay and constant of each method that is tuned.
        rounds: after which the tests are made.
        curve: rounds of the runs in clear at small steps, to see what becomes of a difference.
        every: rounds between two evaluations of the tested devices.
        max_samples: most samples of a device, drawn anew by each seed; 0 takes all that the data
            set leaves.
        only_if_named: whether it runs only where --models names it, because it takes long.
        tunes_batched: whether tuning has the batched backend too; tests always have it.
    """

    task: str
    users: str
    seeds: int
    tuning_seeds: int
    small_rate: float
    families: Mapping[str, tuple[Method, ...]]
    grid: Callable[[str], Grid]
    choices: tuple[tuple[float, ...], ...]
    rounds: int = 50
    curve: int = 50
    every: int = 10
    max_samples: int = 0
    only_if_named: bool = False
    tunes_batched: bool = True

    @property
    def num_tests(self) -> int:
        """How many tests are made, which Holm's correction is over."""
        return sum(len(methods) - 1 for methods in self.families.values())

    @property
    def tuned(self) -> tuple[Method, ...]:
        """What is tuned, in the order of its family; private Δ-FL is not."""
        return tuple(one for one in self.families[TUNED] if not one.label.startswith(_PRIVATE))

    @property
    def grids(self) -> Mapping[str, Grid]:
        """From the label of a method that is tuned to the settings that it is tried with."""
        return {method.label: self.grid(method.label) for method in self.tuned}

    @property
    def chosen(self) -> Mapping[str, Setting]:
        """What the tuning chose, by the same labels."""
        return {
            method.label: Setting(rate, decay, _own(method.label, own[0]) if own else None)
            for method, (rate, decay, *own) in zip(self.tuned, self.choices, strict=True)
        }

    def setting(self, family: str, method: Method) -> Setting:
        """The setting of a method in a family; private Δ-FL has that of Δ-FL."""
        if family == SMALL_STEPS:
            return Setting(self.small_rate, 1.0)
        return self.chosen[method.label.removeprefix(_PRIVATE)]

    def rounds_of(self, family: str, method: Method) -> int:
        """How long a run takes."""
        is_clear = not method.label.startswith(_PRIVATE)
        return self.curve if family == SMALL_STEPS and is_clear else self.rounds

    def file(self, name: str) -> str:
        """What a table or a figure of this study is called; those of the first have no suffix."""
        return name if self.task == STUDIES[0].task else f"{name}-{self.task}"


_FAIR: Final = (FEDAVG, FEDPROX, Q_FFL, TILTED_ERM, AFL, *DELTA_FL)
_CLEAR: Final = {SMALL_STEPS: (FEDAVG, *DELTA_FL), TUNED: _FAIR}
_WITH_PRIVATE: Final = {
    SMALL_STEPS: (FEDAVG, *DELTA_FL, *map(private_delta_fl, ("0.8", "0.5", "0.1"))),
    TUNED: (*_FAIR, PRIVATE_DELTA_FL),
}
_SLOW: Final = {SMALL_STEPS: (FEDAVG, *DELTA_FL), TUNED: (FEDAVG, *DELTA_FL[:2])}
_UNIPEN: Final = _three_at((0.03, 0.1, 0.3, 1.0, 3.0))
_SCHOOLS: Final = _three_at((0.01, 0.03, 0.1, 0.3, 1.0))

# each study's choices: FedAvg, FedProx, q-FFL, Tilted-ERM, AFL, then Δ-FL at θ = 0.8, 0.5, 0.1
_MNIST_CHOSE: Final = (
    *((2.0, 0.6), (1.0, 0.6, 0.01), (1.0, 0.6, 0.1), (1.0, 0.6, 0.5), (1.0, 0.6, 0.1)),
    *((1.0, 0.6), (0.3, 0.6), (0.1, 1.0)),
)
_DIGITS_CHOSE: Final = (
    *((1.0, 1.0), (1.0, 0.6, 0.1), (0.3, 1.0, 0.1), (1.0, 0.6, 0.5), (1.0, 1.0, 0.1)),
    *((1.0, 1.0), (1.0, 0.8), (0.3, 0.6)),
)
_LOWER_CHOSE: Final = (
    *((0.3, 0.6), (0.3, 0.6, 0.01), (1.0, 0.6, 0.1), (0.3, 0.6, 0.5), (0.3, 0.6, 0.01)),
    *((0.3, 0.6), (1.0, 0.8), (3.0, 0.8)),
)
_ALL_CHOSE: Final = (
    *((1.0, 0.6), (1.0, 0.6, 0.01), (1.0, 0.6, 0.1), (1.0, 0.6, 0.5), (1.0, 0.6, 0.1)),
    *((1.0, 0.6), (1.0, 0.6), (1.0, 0.6)),
)
_SCHOOLS_CHOSE: Final = (
    *((0.3, 0.6), (0.3, 0.6, 0.01), (1.0, 0.6, 0.1), (1.0, 0.6, 0.5), (0.1, 1.0, 0.1)),
    *((0.3, 0.6), (0.3, 1.0), (1.0, 1.0)),
)

_CONVNET: Final = _at((0.07, 0.15, 0.3, 0.6))
_CONVNET_CHOSE: Final = ((0.15, 1.0), (0.15, 1.0), (0.15, 1.0))
_PLAYS_CHOSE: Final = ((2.0, 0.6), (1.0, 1.0), (1.0, 1.0))

STUDIES: Final = (
    replace(
        Study("mnist-linear", "writers", 12, 2, 0.05, _WITH_PRIVATE, _of_mnist, _MNIST_CHOSE),
        curve=100,
        tunes_batched=False,
    ),
    Study("unipen-digits-linear", "writers", 10, 2, 0.02, _CLEAR, _UNIPEN, _DIGITS_CHOSE),
    Study("unipen-lower-linear", "writers", 10, 2, 0.05, _CLEAR, _UNIPEN, _LOWER_CHOSE),
    Study("unipen-all-linear", "writers", 10, 2, 0.05, _CLEAR, _UNIPEN, _ALL_CHOSE),
    Study("schools-logistic", "schools", 10, 2, 0.01, _CLEAR, _SCHOOLS, _SCHOOLS_CHOSE),
    replace(
        Study("mnist-convnet", "writers", 10, 1, 0.1, _SLOW, _CONVNET, _CONVNET_CHOSE, 25, 25, 25),
        max_samples=50,
        only_if_named=True,
    ),
    Study("plays-gru", "roles", 8, 1, 0.5, _SLOW, _at((0.5, 1.0, 2.0)), _PLAYS_CHOSE, 30, 30, 30),
)
"""In the order in which their tables are printed."""


def study_of(task: str) -> Study:
    """The study of a task, by the task's name.

    Raises:
        KeyError: the headline has no such task.
    """
    return {study.task: study for study in STUDIES}[task]


def choose_studies(request: Request, tasks: tuple[Task, ...]) -> list[tuple[Chosen, Study]]:
    """Tasks with their data, and their studies; one that takes long only where it is named.

    Raises:
        ConfigError: nothing can be chosen, see `choose_tasks`.
    """
    wanted = [one for one in tasks if request.models or not study_of(one.name).only_if_named]
    return [(one, study_of(one.task.name)) for one in choose_tasks(request, tuple(wanted))]
