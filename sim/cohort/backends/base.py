"""What does the devices' work: the interface that all backends share.

Work is requested ahead: `begin_loss` and `begin_update` say what will be needed, and the caller
waits for an answer when it needs it. In between, a backend may gather the work of many devices into
one batch, or let other processes do it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from torch import nn

from deltafl.fl.cohort import Pending
from deltafl.fl.criterion import CLASSIFIES, Criterion
from deltafl.fl.data.federated import DeviceData
from deltafl.fl.evaluation import DeviceMetrics
from deltafl.fl.local import LocalTraining
from deltafl.fl.models import build_model, seeded
from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.optimizers import MakeOptimizer
from deltafl.fl.registry import OWN
from deltafl.fl.vectors import Vector
from deltafl.sim.errors import ConfigError

Answer: TypeAlias = float | Vector | DeviceMetrics
"""What comes of a device's work: a loss, an update, or metrics."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec:
    """What is trained: all that `deltafl.fl.models.build_model` wants but the seed.

    Attributes:
        name: one of `deltafl.fl.models.MODELS`.
        input_shape: the shape of one input, without the batch.
        num_classes: at least 2; 0 if a module of the caller's own is trained for numbers.
        embedding: frozen vectors of the tokens, float32 [vocabulary, dimension]; None without.
        own: makes the module, if it is one of the caller's own; it then has the name `OWN`.
        criterion: what it is trained for; of the papers' models, always `CLASSIFIES`.
        optimizer: makes a device's optimiser, if it is one of the caller's own.
    """

    name: str
    input_shape: tuple[int, ...]
    num_classes: int
    embedding: npt.NDArray[np.float32] | None = None
    own: Callable[[], nn.Module] | None = None
    criterion: Criterion = CLASSIFIES
    optimizer: MakeOptimizer | None = None

    @property
    def shapes_sha256(self) -> str:
        """All that the server of a federation knows of the data: a digest of the shapes, hex."""
        return sha256(f"{self.input_shape} {self.num_classes}".encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """Write it for workers in other processes, by value, as cloudpickle does.

        The classes of a notebook are in no file that a worker could import. Nothing of this comes
        from outside: the bytes go from the process that has the model to workers that it has
        started, through a pipe that nobody else has.

        Raises:
            ConfigError: a module of the caller's own, its loss or its optimiser refers to
                something that is of this process alone.
        """
        import cloudpickle  # few need it

        try:
            written: bytes = cloudpickle.dumps(self)
        except Exception as error:
            raise ConfigError(
                "training.backend = 'processes': the model, or its loss, cannot be sent to other "
                f"processes ({error}): pass a function that makes the module and opens what it "
                "needs, or take 'reference' or 'batched'"
            ) from error
        return written

    @staticmethod
    def of_bytes(written: bytes) -> "ModelSpec":
        """Read what `to_bytes` wrote; only for bytes of the process that has started this one."""
        import cloudpickle

        read: ModelSpec = cloudpickle.loads(written)
        return read

    def build(self, seed: int = 0) -> nn.Module:
        """Build the module.

        Raises:
            ValueError: an unknown name, or shapes that the model cannot take.
        """
        if self.own is not None:
            return seeded(self.own, seed)
        if self.name == OWN:
            raise ValueError(
                "a module of your own cannot be built from this name: pass it again, or name it "
                "(own.module = 'package.module:name')"
            )
        return build_model(
            self.name,
            input_shape=self.input_shape,
            num_classes=self.num_classes,
            seed=seed,
            embedding=self.embedding,
        )


@dataclass(frozen=True, slots=True, eq=False)
class SampleReference:
    """Where a device's samples are: a sequence of devices, and its index there.

    A sequence may make a device when it is asked for, and a backend that has its samples already
    does not ask.

    Attributes:
        devices: the sequence.
        index: the device's.
        size: the number of samples.
    """

    devices: Sequence[DeviceData]
    index: int
    size: int

    def data(self) -> DeviceData:
        """Fetch or make the device's samples."""
        return self.devices[self.index]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What devices are to do with a model: train, or measure its loss.

    Attributes:
        model: w, float32 [num_parameters]; not to be changed afterwards.
        training: how to train; None to measure the loss instead.
        objective: what training minimises.
        evaluates: whether all metrics are wanted, and not the loss alone.
    """

    model: Vector
    training: LocalTraining | None = None
    objective: LocalObjective = PLAIN
    evaluates: bool = False

    def is_same(self, other: "Work") -> bool:
        """Whether both ask for the same, so that devices may be worked on together."""
        return (
            self.evaluates == other.evaluates
            and self.training == other.training
            and self.objective == other.objective
            and (self.model is other.model or np.array_equal(self.model, other.model))
        )


@dataclass(slots=True)
class CpuClock:
    """CPU seconds that learning has taken.

    Attributes:
        here: in this process, all threads.
        elsewhere: in other processes.
    """

    here: float = 0.0
    elsewhere: float = 0.0

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.here + self.elsewhere


class Backend(Protocol):
    """Does the devices' work. Close it when it is no longer needed.

    Attributes:
        name: one of `deltafl.sim.settings.config.BACKENDS` but "auto".
        clock: the CPU time of all work so far.
    """

    name: str
    clock: CpuClock

    def begin(self, work: Work, ref: SampleReference, seed: int) -> Pending[Answer]:
        """Ask a device for what comes of its work.

        Args:
            work: what to do; not to evaluate.
            ref: whose samples.
            seed: of the shuffling, in [0, 2^63).
        """

    def begin_loss(self, model: Vector, ref: SampleReference) -> Pending[float]:
        """Ask for F_k of a model: the mean loss over a device's samples, in nats."""
        return cast("Pending[float]", self.begin(Work(model), ref, 0))

    def begin_update(
        self,
        model: Vector,
        ref: SampleReference,
        training: LocalTraining,
        seed: int,
        objective: LocalObjective = PLAIN,
    ) -> Pending[Vector]:
        """Ask for Δ_k, float32 [num_parameters]: local training that starts from a model.

        Args:
            model: where to start.
            ref: whose samples.
            training: how to train.
            seed: of the shuffling, in [0, 2^63).
            objective: what to minimise.
        """
        return cast("Pending[Vector]", self.begin(Work(model, training, objective), ref, seed))

    def forget(self) -> None:
        """Drop work that was requested but not begun, because nobody will need it."""

    def evaluate(self, model: Vector, devices: Sequence[DeviceData]) -> list[DeviceMetrics]:
        """Measure a model on many devices, in their order.

        Raises:
            ValueError: the model does not fit the data or the architecture.
            RunError: whoever was at work is gone.
        """

    def close(self) -> None:
        """Let go of processes and memory."""
