"""How AAggFF maps losses to bounded responses: by a distribution function.

Source: arXiv 2405.20821, Definition 4.2 (equation 8) and Appendix B.1. A loss is divided by the
mean loss of the round, z_k = F_k/F̄, so that z is 1 on average, and the distribution function maps
z to [0, 1]. All scales are 1; the shape of Weibull is 2, and the location of Normal, Gumbel and
Logistic is 1.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from scipy.special import expit, ndtr

from deltafl.fl.simplex import Reals
from deltafl.fl.strategies.choices import Response


def _frechet(z: Reals) -> Reals:
    with np.errstate(divide="ignore", over="ignore"):
        values: Reals = np.exp(-1 / z)  # 0 where 1/z is infinite
    return values


_DISTRIBUTION: Final[Mapping[Response, Callable[[Reals], Reals]]] = MappingProxyType(
    {
        Response.WEIBULL: lambda z: -np.expm1(-(z**2)),
        Response.EXPONENTIAL: lambda z: -np.expm1(-z),
        Response.FRECHET: _frechet,
        Response.NORMAL: lambda z: ndtr(z - 1),
        Response.GUMBEL: lambda z: np.exp(-np.exp(1 - z)),
        Response.LOGISTIC: lambda z: expit(z - 1),
    }
)


def respond(losses: Sequence[float], response: Response) -> Reals:
    """Transform the losses of one round, before any scaling.

    Args:
        losses: F_k in nats, at least one, finite and not negative. All zero counts as all equal.
        response: the distribution function.

    Returns:
        float64 [m] in [0, 1], in the order of the losses.

    Raises:
        ValueError: no losses, or one that is negative or not finite.

    >>> respond([0.01, 0.10, 0.02], Response.WEIBULL).round(2)
    array([0.05, 1.  , 0.19])
    """
    values = np.asarray(losses, dtype=np.float64)
    if values.size == 0 or not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(f"losses {list(losses)}: pass finite, non-negative numbers, at least one")
    mean = float(values.mean())
    ratios = values / mean if mean > 0 else np.ones_like(values)
    return _DISTRIBUTION[response](ratios)
