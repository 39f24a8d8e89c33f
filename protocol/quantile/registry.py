"""The quantile methods by name."""

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.registry import Entry

if TYPE_CHECKING:  # settings read the names from the table, so importing it loads no method
    from deltafl.protocol.noise import Noise
    from deltafl.protocol.quantile.search import QuantileMethod

NOISY: Final = "noisy"
"""Name of the method whose sums are noisy."""

METHODS: Final[Mapping[str, "Entry[QuantileMethod]"]] = {
    "mm": Entry("deltafl.protocol.quantile.mm:MajoriseMinimise"),
    "bracketed": Entry("deltafl.protocol.quantile.histogram:Bracketed"),
    "histogram": Entry("deltafl.protocol.quantile.histogram:Histogram", ("num_pivots",)),
    NOISY: Entry("deltafl.protocol.quantile.noisy:NoisyHistogram", ("noise", "num_pivots")),
}
"""All methods, each with the options that it has."""

QUANTILE_METHODS: Final = tuple(name for name in METHODS if name != NOISY)
"""Names of the methods that ask for exact sums, and certify what they find."""


def quantile_method(
    name: str, *, num_pivots: int | None = None, noise: "Noise | None" = None
) -> "QuantileMethod":
    """Build the quantile method of that name.

    Args:
        name: One of `METHODS`.
        num_pivots: Pivots in a query of `histogram` or `noisy`; absent for the others, which ask
            for one.
        noise: Noise of the sums of `noisy`, which needs it; absent for the others.

    Raises:
        ConfigurationError: If there is no such method, or it has no such option or value, or the
            noise is missing.

    >>> quantile_method("histogram", num_pivots=16)
    Histogram(num_pivots=16)
    """
    if noise is not None and name not in _with("noise"):
        raise ConfigurationError(f"noise is no option of {name!r}: only of {_named('noise')}")
    if name not in METHODS:
        names = ", ".join(METHODS)
        raise ConfigurationError(f"unknown quantile method {name!r}: choose one of {names}")
    if num_pivots is not None and name not in _with("num_pivots"):
        raise ConfigurationError(
            f"num_pivots={num_pivots} is no option of {name!r}: only of {_named('num_pivots')}"
        )
    if noise is None and name in _with("noise"):
        raise ConfigurationError(f"the noise of {name!r} is missing: say how much")
    given = {"noise": noise, "num_pivots": num_pivots}
    entry = METHODS[name]
    options = {option: given[option] for option in entry.arguments if given[option] is not None}
    return entry.make(**options)


def default_max_queries(name: str) -> int:
    """Queries that certify any search by this method on the default loss grid; 1 of `noisy`.

    Raises:
        ConfigurationError: If there is no such method.

    >>> default_max_queries("bracketed")
    26
    """
    from deltafl.protocol.noise import Noise  # not at the top: see above

    noise = Noise(Fraction(1), 1) if name == NOISY else None  # the amount makes no difference
    return quantile_method(name, noise=noise).default_max_queries


def _with(option: str) -> list[str]:
    return [name for name, entry in METHODS.items() if option in entry.arguments]


def _named(option: str) -> str:
    return " and ".join(map(repr, _with(option)))
