"""Options of strategies that settings may choose; importing this module loads nothing else.

Each is explained where it is used: `deltafl.fl.strategies.aaggff`,
`deltafl.fl.strategies.delta_fl`.
"""

from enum import StrEnum


class Response(StrEnum):
    """A distribution function of Appendix B.1."""

    WEIBULL = "weibull"
    """1 − exp(−z²)."""

    EXPONENTIAL = "exponential"
    """1 − exp(−z)."""

    FRECHET = "frechet"
    """exp(−1/z); 0 at z = 0."""

    NORMAL = "normal"
    """½·(1 + erf((z − 1)/√2))."""

    GUMBEL = "gumbel"
    """exp(−exp(−(z − 1)))."""

    LOGISTIC = "logistic"
    """1/(1 + exp(−(z − 1)))."""


class DeviceWeights(StrEnum):
    """The weight of a device, both in the quantile and in the mean."""

    SAMPLES = "samples"
    """n_k, as in arXiv 2002.11223."""

    UNIFORM = "uniform"
    """One, as in the workshop version."""
