"""The objective of a device's local training: the loss of its samples, or a variant of it."""

import math
from dataclasses import dataclass
from typing import Final

from deltafl.fl.errors import check_positive


@dataclass(frozen=True, slots=True)
class LocalObjective:
    """The loss of a minibatch, ℓ, as a strategy asks a device to change it.

    Attributes:
        proximal: μ of the term (μ/2)·‖w − w_t‖² that is added, not negative; w_t is the model that
            the device received. The norm is squared, so the term adds μ·(w − w_t) to the gradient.
            Source: Li et al., MLSys 2020 (FedProx), equation (2).
        ceiling: M of −log(1 − ℓ/M), positive, by which PropFair replaces ℓ; if ℓ is above
            M − `PROPFAIR_MARGIN`, the loss is ℓ/M. None keeps ℓ unchanged. Source: Zhang et al.,
            2022 (PropFair, arXiv 2202.01666), with the default of the published code.

    Raises:
        ValueError: a number is out of its range.
    """

    proximal: float = 0.0
    ceiling: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.proximal) and self.proximal >= 0):
            raise ValueError(f"proximal={self.proximal} is not a non-negative number")
        if self.ceiling is not None:
            check_positive(ceiling=self.ceiling)


PROPFAIR_MARGIN: Final = 0.2
"""How far below its ceiling a loss must be for the logarithm of PropFair."""

PLAIN: Final = LocalObjective()
"""The unchanged loss."""
