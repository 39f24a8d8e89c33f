"""What a model does on the devices' test data, as sums: a round in which nobody trains.

The server announces a model as in a round of federated averaging, and devices answer by the same
machine, under the same masks and limits. In place of training loss, number of training samples and
update, a device gives the mean loss of its test samples, their number, and the share of them that
the model gets wrong. So the server learns sums over all devices, and nothing of one.

What is announced is the model with a number behind it. A device answers for each model
once, and measuring a model is another answer than training from it: its ledger tells them apart.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.vectors import Vector
from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile.registry import default_max_queries
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.round import RoundOutcome
from deltafl.sim.cohort.backends.base import Backend
from deltafl.sim.settings.config import RunConfig

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
        error: the share of the samples that the model gets wrong; None without samples.
        loss: the mean cross-entropy of the samples in nats; None without samples.
        lost: why nothing was learnt; None if something was.
    """

    round: int
    level: int
    devices: int
    samples: int
    error: float | None
    loss: float | None
    lost: str | None

    def as_table(self) -> dict[str, object]:
        """Its numbers by name, as in the run directory."""
        return asdict(self)

    def __str__(self) -> str:
        """A sentence."""
        if self.lost is not None:
            return f"after round {self.round}, nothing was measured: {self.lost}"
        if self.error is None or self.loss is None:
            return f"after round {self.round}, no device that answered has test data"
        return (
            f"after round {self.round}, test error {self.error:.1%} and loss {self.loss:.3f}, of "
            f"{self.samples:,} samples of {self.devices} devices"
        )


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
    return Levels(
        (
            RoundConfig(
                round_index=0,
                cohort_size=num_devices,
                theta=Fraction(1),
                method=_METHOD,
                search=SearchParams(default_max_queries(_METHOD), grid=grid),
                update=UpdateParams(1.0, privacy.update_resolution_bits, privacy.max_weight),
                update_length=1,
            ),
        )
    )


def summed(outcome: RoundOutcome, round_number: int, level: int) -> SummedMetrics:
    """What a round over marked models has revealed."""
    return SummedMetrics(
        round_number,
        level,
        outcome.kept_devices,
        outcome.kept_weight,
        None if outcome.update is None else float(outcome.update[0]),
        outcome.train_loss,
        outcome.aborted,
    )


class MeasuringWork:
    """A device's answers about its test data; an `OwnWork`.

    Args:
        samples: its test samples; None if it has none.
        config: the run's settings.
        machine: the device's side of the round, which knows what was announced.
        backend: makes what measures models.
    """

    def __init__(
        self,
        samples: DeviceData | None,
        config: RunConfig,
        machine: RoundClient,
        backend: Callable[[], Backend],
    ) -> None:
        self._samples = samples
        self._config = config
        self._machine = machine
        self._backend = backend
        self._measured: dict[bytes, DeviceMetrics] = {}

    def weight(self) -> int:
        """The number of test samples."""
        self._check()
        return 0 if self._samples is None else self._samples.num_samples

    def loss(self, model: bytes) -> float:
        """Their mean loss under an announced model, in nats; 0 without samples."""
        self._check()
        return 0.0 if self._samples is None else self._of(model).loss

    def update(self, model: bytes) -> Vector:
        """The share that the model gets wrong, of shape (1,)."""
        self._check()
        error = 0.0 if self._samples is None else self._of(model).error
        return np.array([error], dtype=np.float32)

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

    def _of(self, announced: bytes) -> DeviceMetrics:
        if self._samples is None:
            raise RuntimeError("without samples, there is nothing to measure: this is a bug")
        if announced not in self._measured:
            vector = np.frombuffer(announced, dtype="<f4")
            if vector[-1] != _MARK:
                raise ValueError("the announced model is not marked as one to be measured")
            (self._measured[announced],) = self._backend().evaluate(vector[:-1], [self._samples])
        return self._measured[announced]
