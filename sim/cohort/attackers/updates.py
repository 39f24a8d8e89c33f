"""What attackers send in place of their updates.

Every function takes float32 [d] and gives float32 [d]. The vectors are computed in float64.
"""

from collections.abc import Sequence

import numpy as np

from deltafl.fl.vectors import Vector


def scaled(update: Vector, factor: float) -> Vector:
    """Send a multiple of the update: more than it (model replacement), or against it.

    Source: the factor that lets one device replace the model is of Bagdasaryan et al., "How To
    Backdoor Federated Learning", AISTATS 2020; the flipped sign of Li et al., "RSA", AAAI 2019.
    """
    return _vector(np.multiply(update, factor, dtype=np.float64))


def noise_like(update: Vector, scale: float, generator: np.random.Generator) -> Vector:
    """Send Gaussian noise with `scale` times the root mean square of a vector.

    Source: Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS 2017, where its deviation is 200; here it is in units of what it replaces, so
    that it means the same for every model.
    """
    size = float(np.sqrt(np.mean(np.square(update, dtype=np.float64))))
    return _vector(generator.normal(0.0, scale * size, len(update)))


def little_is_enough(updates: Sequence[Vector], deviations: float) -> Vector:
    """Send the mean of the attackers' updates less some standard deviations, by coordinate.

    Each coordinate stays within what honest devices may send, and all point one way. One attacker
    alone has no deviation, and sends its own update.

    Source: Baruch et al., "A Little Is Enough: Circumventing Defenses For Distributed Learning",
    NeurIPS 2019, Algorithm 3, with 1.5 deviations as in its experiments. As there, mean and
    deviation are those of the attackers' own updates.
    """
    stacked = np.stack(updates).astype(np.float64)
    return _vector(stacked.mean(axis=0) - deviations * stacked.std(axis=0))


def inner_product(updates: Sequence[Vector], scale: float) -> Vector:
    """Send minus a multiple of the mean of the attackers' updates.

    The inner product of the aggregate with the honest mean turns negative.

    Source: Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner
    Product Manipulation", UAI 2019 (PMLR 115, 2020). There the attackers know the honest updates;
    here they know their own.
    """
    return _vector(-scale * np.stack(updates).astype(np.float64).mean(axis=0))


def _vector(numbers: "np.typing.NDArray[np.float64]") -> Vector:
    with np.errstate(over="ignore", invalid="ignore"):  # as of a training that diverged
        vector: Vector = numbers.astype(np.float32)
    return vector
