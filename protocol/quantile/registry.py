"""The quantile methods by name."""

from protocol.errors import ConfigurationError
from protocol.quantile.bracketed import Bracketed
from protocol.quantile.histogram import Histogram
from protocol.quantile.mm import MajoriseMinimise
from protocol.quantile.search import QuantileMethod

QUANTILE_METHODS = ("mm", "bracketed", "histogram")
"""Names of all methods."""


def quantile_method(name: str, *, num_cuts: int | None = None) -> QuantileMethod:
    """Build the quantile method of that name.

    Args:
        name: One of `QUANTILE_METHODS`.
        num_cuts: Cuts in a query of `histogram`; absent for the others, which ask for one.

    Raises:
        ConfigurationError: If there is no such method, or it has no such option or value.

    >>> quantile_method("histogram", num_cuts=16)
    Histogram(num_cuts=16)
    """
    match name, num_cuts:
        case "mm", None:
            return MajoriseMinimise()
        case "bracketed", None:
            return Bracketed()
        case "histogram", None:
            return Histogram()
        case "histogram", int():
            return Histogram(num_cuts)
    if name not in QUANTILE_METHODS:
        names = ", ".join(QUANTILE_METHODS)
        raise ConfigurationError(f"unknown quantile method {name!r}: choose one of {names}")
    raise ConfigurationError(f"num_cuts={num_cuts} is no option of {name!r}: only of 'histogram'")
