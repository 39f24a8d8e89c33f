"""Devices that train a model of the project on samples of their own, in a round with every defence.

The server announces whatever model it likes and follows the protocol. Nobody can refuse anything:
the session is signed, and the sum is over five devices that expect an active server. What the
server reads from the sum, it reads from what the devices have learnt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.vectors import Vector
from deltafl.protocol.configuration import UpdateParams
from deltafl.secagg import ClientId
from deltafl.secagg.ring import Vector as Words
from deltafl.sim.inspect.attacks.attack import presuppose
from deltafl.sim.inspect.attacks.own_round import (
    VERIFIED_ROUND,
    Device,
    RoundDevices,
    with_an_honest_server,
)

if TYPE_CHECKING:
    from torch import nn

NUM_DEVICES: Final = VERIFIED_ROUND.cohort_size
"""In a round."""
RING_BITS: Final = 32
"""Of a sum of updates."""
_UPDATE: Final = UpdateParams(clip=4.0, resolution_bits=16, max_weight=1000)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model of the project, without its weights.

    Attributes:
        name: As in `deltafl.fl.registry.MODELS`.
        input_shape: Of one input.
        num_classes: Labels are below it.
    """

    name: str
    input_shape: tuple[int, ...]
    num_classes: int

    def build(self) -> "nn.Module":
        """A module, freshly initialised."""
        from deltafl.fl.models import build_model  # loads torch, which takes seconds

        return build_model(
            self.name, input_shape=self.input_shape, num_classes=self.num_classes, seed=0
        )

    def first(self) -> Vector:
        """The weights that training begins with, as one vector."""
        from deltafl.fl.parameters import to_vector

        return to_vector(self.build())


@dataclass(frozen=True, slots=True)
class Steps:
    """How devices train, at a learning rate of 1 unless another is given.

    Attributes:
        batch_size: Samples in a step; the default makes all of a device's one batch.
        epochs: Passes over the samples.
        rate: The learning rate.
    """

    batch_size: int = 500
    epochs: int = 1
    rate: float = 1.0


_ONE_STEP: Final = Steps()


@dataclass(frozen=True, eq=False)
class Learnt:
    """What the server has after a round.

    Attributes:
        words: Σ n_k·Δ_k in units of 2^-resolution_bits, as the session revealed it; words of a
            ring of RING_BITS.
        own: For comparison, the same words of each device alone.
        weight: Σ n_k of the devices that trained.
        count: How many they are.
    """

    words: Words
    own: Sequence[Words]
    weight: int
    count: int

    @property
    def update(self) -> npt.NDArray[np.float64]:
        """Σ n_k·Δ_k."""
        return as_numbers(self.words)


def as_numbers(words: "Words | npt.NDArray[np.bool_]") -> npt.NDArray[np.float64]:
    """What words of a sum of updates stand for."""
    return words.view(np.int32) / (1 << _UPDATE.resolution_bits)


def learnt(
    architecture: Architecture,
    model: Vector,
    data: Sequence[DeviceData],
    steps: Steps = _ONE_STEP,
    theta: Fraction = Fraction(1),
) -> Learnt:
    """Play a round.

    Args:
        architecture: What devices train.
        model: Its weights, as the server announces them.
        data: The samples of each device.
        steps: How devices train.
        theta: Which share of the devices trains; there is no search if it is 1.
    """
    config = replace(VERIFIED_ROUND, theta=theta, update=_UPDATE, update_length=len(model))
    own = [_trained(architecture, model, one, steps) for one in data]
    devices = {ClientId(3 + 7 * rank): device for rank, device in enumerate(own)}
    _, sums = with_an_honest_server(
        RoundDevices(config, devices, model=model.astype("<f4").tobytes())
    )
    presuppose(len(sums[-1].contributors) == len(data), "nobody was lost")
    presuppose(config.update_layout.ring_bits == RING_BITS, "the ring is that of 32 bits")
    others = config.update_layout.decode(sums[-1].vector)
    return Learnt(
        sums[-1].vector[: len(model)],
        [one.measured(config).contribution(one.update)[: len(model)] for one in own],
        int(others["weight"][0]),
        int(others["count"][0]),
    )


def _trained(architecture: Architecture, model: Vector, data: DeviceData, steps: Steps) -> Device:
    """What a device answers with that has measured and trained a model."""
    import torch

    from deltafl.fl.local import Learner, LocalTraining

    learner = Learner(architecture.build())
    training = LocalTraining(steps.rate, steps.batch_size, steps.epochs)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small tensors on many threads mostly wait for each other
    try:
        update = learner.train(model, data, training, torch.Generator().manual_seed(0))
        return Device(learner.mean_loss(model, data), data.num_samples, update)
    finally:
        torch.set_num_threads(threads)
