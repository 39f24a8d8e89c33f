"""The quantile methods by name."""

from fractions import Fraction
from typing import Final

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.bracketed import Bracketed
from deltafl.protocol.quantile.histogram import Histogram
from deltafl.protocol.quantile.mm import MajoriseMinimise
from deltafl.protocol.quantile.noisy import NoisyHistogram
from deltafl.protocol.quantile.search import QuantileMethod

QUANTILE_METHODS = ("mm", "bracketed", "histogram")
"""Names of the methods that ask for exact sums, and certify what they find."""

NOISY: Final = "noisy"
"""Name of the method whose sums are noisy."""


def quantile_method(
    name: str, *, num_pivots: int | None = None, noise: Noise | None = None
) -> QuantileMethod:
    """Build the quantile method of that name.

    Args:
        name: One of `QUANTILE_METHODS`, or `NOISY`.
        num_pivots: Pivots in a query of `histogram` or `noisy`; absent for the others, which ask
            for one.
        noise: Of the sums of `noisy`, which needs it; absent for the others.

    Raises:
        ConfigurationError: If there is no such method, or it has no such option or value, or the
            noise is missing.

    >>> quantile_method("histogram", num_pivots=16)
    Histogram(num_pivots=16)
    """
    if noise is not None and name != NOISY:
        raise ConfigurationError(f"noise is no option of {name!r}: only of {NOISY!r}")
    match name, num_pivots:
        case "mm", None:
            return MajoriseMinimise()
        case "bracketed", None:
            return Bracketed()
        case "histogram", None:
            return Histogram()
        case "histogram", int():
            return Histogram(num_pivots)
        case "noisy", _:
            if noise is None:
                raise ConfigurationError(f"the noise of {NOISY!r} is missing: say how much")
            return (
                NoisyHistogram(noise) if num_pivots is None else NoisyHistogram(noise, num_pivots)
            )
    if name not in QUANTILE_METHODS:
        names = ", ".join((*QUANTILE_METHODS, NOISY))
        raise ConfigurationError(f"unknown quantile method {name!r}: choose one of {names}")
    raise ConfigurationError(
        f"num_pivots={num_pivots} is no option of {name!r}: only of 'histogram' and {NOISY!r}"
    )


def default_max_queries(name: str) -> int:
    """Queries that certify any search by this method on the default loss grid; 1 of `noisy`.

    Raises:
        ConfigurationError: If there is no such method.

    >>> default_max_queries("bracketed")
    26
    """
    noise = Noise(Fraction(1), 1) if name == NOISY else None  # how much makes no difference
    return quantile_method(name, noise=noise).default_max_queries
