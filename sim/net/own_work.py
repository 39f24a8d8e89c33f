"""What a device computes on its own data: its losses, its weight, its update.

A device computes exactly what a simulated one does (`deltafl.sim.cohort.work`), so both come to the
same bits. How to train is what the server says, within limits of the device's own.

A device that does not pass the filter trains as well, and forgets the update, so that nobody can
tell by its time or its use of energy whether it passed.

What a model does on the devices' test data is learnt as sums, in a round in which nobody trains.
The server announces a model as in a round of federated averaging, and devices answer by the same
machine, under the same masks and limits. In place of training loss, number of training samples and
update, a device gives the mean loss of its test samples, their number, and the share of them that
the model gets wrong. What is announced is the model with a number behind it: a device answers for
each model once, and measuring a model is another answer than training from it, so its ledger tells
them apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, Self, TypeAlias

import numpy as np
import torch

from deltafl.fl.data.federated import DeviceData, as_numbers
from deltafl.fl.local import LocalTraining
from deltafl.fl.models import READ_TOKENS
from deltafl.fl.registry import ABSOLUTE, ERROR, OWN
from deltafl.fl.strategies.base import Strategy
from deltafl.fl.vectors import Vector
from deltafl.protocol.answering import OwnWork
from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile.registry import default_max_queries
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.round import RoundOutcome
from deltafl.secagg import ClientId
from deltafl.sim.cohort.backends.base import Backend, ModelSpec, SampleReference
from deltafl.sim.cohort.backends.in_process import open_in_process
from deltafl.sim.cohort.seeds import Seeds
from deltafl.sim.cohort.work import BackendDevices, CohortWork, Devices
from deltafl.sim.errors import ConfigError
from deltafl.sim.net.device_flags import MAX_STEPS
from deltafl.sim.net.frames import Task
from deltafl.sim.run.algorithms import weighing_of
from deltafl.sim.run.simulated import training_in
from deltafl.sim.settings.config import REFERENCE, RunConfig
from deltafl.sim.settings.config_io import build_config, read_table

_MARK: Final = np.float32(1)
_METHOD: Final = "bracketed"  # of a search that is never begun


@dataclass(frozen=True, slots=True)
class SummedMetrics:
    """What a model does on the test data of all devices that were asked and answered.

    Attributes:
        round: the rounds that the model was trained for.
        level: which of the run's conformity levels it is of, from 0.
        devices: how many devices answered, with test data or without.
        samples: their test samples. Of a device, no more than `privacy.max_weight` count.
        error: the share of the samples that the model gets wrong, or the mean of another metric;
            None without samples.
        loss: the mean loss of the samples, of the cross-entropy in nats; None without samples.
        lost: why nothing was learnt; None if something was.
        metric: the setting `training.metric`.
        unit: of what is predicted, `data.unit`; "" for classes.
    """

    round: int
    level: int
    devices: int
    samples: int
    error: float | None
    loss: float | None
    lost: str | None
    metric: str = ERROR
    unit: str = ""

    @classmethod
    def of(cls, outcome: RoundOutcome, round_number: int, level: int, config: RunConfig) -> Self:
        """What a round over marked models has revealed."""
        largest = _largest(config)
        error = None if outcome.update is None else float(outcome.update[0]) * largest
        devices, samples = outcome.kept_devices, outcome.kept_weight
        learnt = devices, samples, error, outcome.train_loss, outcome.aborted
        return cls(round_number, level, *learnt, config.training.metric, config.data.unit)

    def __str__(self) -> str:
        """A sentence."""
        if self.lost is not None:
            return f"after round {self.round}, nothing was measured: {self.lost}"
        if self.error is None or self.loss is None:
            return f"after round {self.round}, no device that answered has test data"
        unit = f" {self.unit}" if self.unit not in ("", "1") and self.metric == ABSOLUTE else ""
        shown = f"{_CALLED.get(self.metric, 'own metric')} {self.error:.4g}{unit}"
        if self.metric == ERROR:
            shown = f"test error {self.error:.1%}"
        return (
            f"after round {self.round}, {shown} and loss {self.loss:.3f}, of "
            f"{self.samples:,} samples of {self.devices} devices"
        )


_CALLED: Final = {ABSOLUTE: "mean absolute error"}


def _largest(config: RunConfig) -> float:
    """The largest metric of a device that counts in full; larger ones are clipped to it.

    A share is at most 1. Others are held to the bound of losses.
    """
    return 1.0 if config.training.metric == ERROR else float(config.quantile.loss_bound)


def marked(model: Vector) -> Vector:
    """What is announced to have a model measured, float32 of shape (d + 1,).

    Args:
        model: w, of shape (d,).
    """
    return np.append(model, _MARK)


def measuring_levels(config: RunConfig, num_devices: int) -> Levels:
    """What is announced, beside the model.

    It is the first and only round of its own record; the model makes it unique.

    Args:
        config: the run's settings.
        num_devices: how many are asked.

    Raises:
        ConfigurationError: a sum would not fit the ring.
    """
    quantile, privacy = config.quantile, config.privacy
    grid = LossGrid(quantile.resolution_bits, quantile.loss_bound)
    is_share = config.training.metric == ERROR
    bits = privacy.update_resolution_bits if is_share else quantile.resolution_bits
    search = SearchParams(default_max_queries(_METHOD), grid=grid)
    update = UpdateParams(1.0, bits, privacy.max_weight)
    return Levels((RoundConfig(0, num_devices, Fraction(1), _METHOD, search, update, 1),))


@dataclass(slots=True, eq=False, repr=False)
class MeasuringWork:
    """A device's answers about its test data; an `OwnWork`.

    Args:
        samples: its test samples; None if it has none.
        config: the run's settings.
        machine: the device's side of the round, which knows what was announced.
        backend: makes what measures models.
    """

    _samples: DeviceData | None
    _config: RunConfig
    _machine: RoundClient
    _backend: Callable[[], Backend]
    _measured: dict[bytes, tuple[float, float]] = field(default_factory=dict)

    def weight(self) -> int:
        """The number of test samples."""
        self._check()
        return 0 if self._samples is None else self._samples.num_samples

    def loss(self, model: bytes) -> float:
        """Their mean loss under an announced model, in nats; 0 without samples."""
        return self._of(model)[0]

    def update(self, model: bytes) -> Vector:
        """The share that the model gets wrong, of shape (1,); or another metric, in its bound."""
        error = self._of(model)[1]
        return np.array([error / _largest(self._config)], dtype=np.float32)

    def wait(self, model: bytes) -> None:
        """Nobody has to: there is no filter."""

    def _check(self) -> None:
        """Answer only what measuring asks: no search among test losses, no tail.

        Raises:
            ValueError: the server has announced something else. The device then counts for nothing.
        """
        announced = self._machine.levels
        if announced is None or announced != measuring_levels(
            self._config, announced.common.cohort_size
        ):
            raise ValueError("what the server announced is not how a model is measured")

    def _of(self, model: bytes) -> tuple[float, float]:
        """Mean loss and error under an announced model; 0 without samples."""
        self._check()
        if self._samples is None:
            return 0.0, 0.0
        if model not in self._measured:
            vector = np.frombuffer(model, dtype="<f4")
            if vector[-1] != _MARK:
                raise ValueError("the announced model is not marked as one to be measured")
            (found,) = self._backend().evaluate(vector[:-1], [self._samples])
            self._measured[model] = found.loss, found.error
        return self._measured[model]


WorkOf: TypeAlias = Callable[[Task, RoundClient], OwnWork]
"""Says what a device computes in a round, of which its machine will know what is announced.

Raises `ConfigError` if it cannot, or will not.
"""


@dataclass(frozen=True, slots=True, eq=False)
class OwnData:
    """What a device trains on.

    Attributes:
        samples: its own.
        shapes: of the samples, and how many classes there are; the model's name is the server's.
        max_steps: most steps of SGD in a round, of all its levels together; one for each at least.
        test: the samples on which it measures models; None if it has none.
    """

    samples: DeviceData
    shapes: ModelSpec
    max_steps: int = MAX_STEPS
    test: DeviceData | None = None


def settings_of(task: Task, strategy: Strategy | None = None) -> RunConfig:
    """The run's settings, as the server says them.

    Args:
        task: what it says.
        strategy: one of the device's owner, if the settings may ask for it.

    Raises:
        ConfigError: they are not in order, or name an algorithm that is not private.
    """
    try:
        text = task.settings.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError("the settings of the round are not UTF-8") from None
    config = build_config([read_table(text, "the server's settings")])
    weighing_of(config, task.round_index, task.unit, 1, strategy)
    return config


def work_on(
    own: OwnData | Callable[[RunConfig], OwnData],
    client: ClientId,
    strategy: Strategy | None = None,
) -> WorkOf:
    """The work of a device on these data, round by round.

    Args:
        own: the data; or what reads them as the server's settings say.
        client: the device's id.
        strategy: one of the device's owner, if the settings may ask for it.

    Of the run's settings, those of the model, of training and of the algorithm count; all others
    are the server's business, or the device's own. What they come to may not depend on the device's
    data: a server that sees who declines would learn them.
    """

    def work_of(task: Task, machine: RoundClient) -> OwnWork:
        config = settings_of(task, strategy)
        training = training_in(config.training, task.round_index)
        data = own if isinstance(own, OwnData) else own(config)
        samples, test = data.samples, data.test
        if config.model.name not in (*READ_TOKENS, OWN):
            samples, test = as_numbers(samples), None if test is None else as_numbers(test)

        def backend() -> Backend:
            spec = replace(data.shapes, name=config.model.name)
            return open_in_process(REFERENCE, spec, torch.device("cpu"))

        def devices(levels: int) -> Devices:
            num_samples, most = samples.num_samples, max(1, data.max_steps // levels)
            return BackendDevices(
                {client: SampleReference([samples], 0, num_samples)},
                backend(),
                within(training, num_samples, most),
                Seeds(config.experiment.seed),
                task.round_index,
            )

        if task.measures:
            return MeasuringWork(test, config, machine, backend)
        return RoundWork(client, config, task, machine, devices, strategy)

    return work_of


def within(training: LocalTraining, num_samples: int, max_steps: int) -> LocalTraining:
    """Train no longer than so many steps: fewer epochs, and if one is too long, larger batches.

    A device that gave nothing in place of so much work would leave the sum to those with fewer
    samples; one that declined would tell how many it has.
    """
    batch_size = max(training.batch_size, math.ceil(num_samples / max_steps))
    epochs = min(training.epochs, max_steps // math.ceil(num_samples / batch_size))
    steps = min(training.steps, max_steps)
    return replace(training, batch_size=batch_size, epochs=epochs, steps=steps)


@dataclass(slots=True, eq=False, repr=False)
class RoundWork:
    """A device's work in one round; an `OwnWork`.

    Args:
        client: its id.
        config: the run's settings, which name the algorithm.
        task: the round.
        machine: the device's side of the round, which knows what was announced.
        devices: makes the device itself, as a cohort of one, once so many levels were announced.
        strategy: one of the device's owner, if the settings ask for it.
    """

    _client: ClientId
    _config: RunConfig
    _task: Task
    _machine: RoundClient
    _devices: Callable[[int], Devices]
    _strategy: Strategy | None = None
    _begun: CohortWork | None = None

    def weight(self) -> int:
        """n_k, or what the algorithm puts in its place."""
        return self._work().weight(self._client)

    def loss(self, model: bytes) -> float:
        """F_k of an announced model, in nats."""
        return self._work().loss(self._client, self._machine.models.index(model))

    def update(self, model: bytes) -> Vector:
        """Δ_k of an announced model, or what the algorithm puts in its place."""
        return self._work().update(self._client, self._machine.models.index(model))

    def wait(self, model: bytes) -> None:
        """Train in vain: it takes as long as `update`."""
        self.update(model)

    def _work(self) -> CohortWork:
        if self._begun is None:
            levels, task = self._machine.levels, self._task
            if levels is None:
                raise ConfigError("a device works only on what was announced")
            models = [np.frombuffer(model, dtype="<f4") for model in self._machine.models]
            common, thetas = levels.common, [one.theta for one in levels.rounds]
            most = common.update.max_weight
            weighing = weighing_of(self._config, task.round_index, task.unit, most, self._strategy)
            bound = common.search.grid.bound
            self._begun = CohortWork(self._devices(len(models)), models, thetas, bound, weighing)
        return self._begun
