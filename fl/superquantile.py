"""Weighted quantile, superquantile and conformity, exactly.

θ in (0, 1] is the conformity level, the share of the tail that is kept; 1 − θ is the quantile's
level. Weights are integers (sample counts) and θ is a fraction, so no comparison is ever decided
by rounding.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.fl.read.exact import exact_number, shortened

Values: TypeAlias = Sequence[float] | npt.NDArray[np.floating]
Weights: TypeAlias = Sequence[int] | npt.NDArray[np.integer]


def parse_theta(theta: str | float | Fraction) -> Fraction:
    """Read a conformity level as the exact fraction that was meant.

    A float means the decimal number that it prints as: 0.8 is 4/5 and not the nearest double.

    Raises:
        ValueError: not a number in (0, 1].

    >>> parse_theta(0.8), parse_theta("1/3"), parse_theta(1)
    (Fraction(4, 5), Fraction(1, 3), Fraction(1, 1))
    """
    if isinstance(theta, Fraction):
        return _check_theta(theta)
    try:
        fraction = exact_number(str(theta))
    except ValueError as error:
        raise ValueError(
            f"theta={shortened(theta)} is not a number: write it like 0.5 or '1/2'"
        ) from error
    return _check_theta(fraction)


def weighted_quantile(values: Values, weights: Weights, theta: Fraction) -> float:
    """Find the (1 − θ)-quantile: min{x : W(values ≤ x) ≥ (1 − θ)·W}, always one of the values.

    No interpolation. θ = 1 gives the smallest value, whatever its weight.
    Source: arXiv 2002.11223, Property 7 and line 5 of Algorithm 2.

    Raises:
        ValueError: no values, unequal lengths, a value that is not finite, a weight that is
            negative or no integer, no positive weight, or θ not in (0, 1].

    >>> weighted_quantile([0.1, 0.5, 0.9], [1, 1, 2], Fraction(1, 2))
    0.5
    """
    numbers, counts = check_sample(values, weights)
    _check_theta(theta)
    order = np.argsort(numbers, kind="stable")
    total = sum(counts)
    below = 0
    for index in order:
        below += counts[index]
        if below * theta.denominator >= (theta.denominator - theta.numerator) * total:
            break
    return float(numbers[index])


def superquantile(values: Values, weights: Weights, theta: Fraction) -> float:
    """Average the largest values that make up the share θ of the weight.

    The value on the boundary counts with the fraction of its weight that fits, so this is the
    minimum over η of η + Σ_k w_k max(values_k − η, 0) / (θ·W). θ = 1 gives the weighted mean.
    Source: arXiv 2002.11223, Section 2 and equation (2).

    Raises:
        ValueError: as `weighted_quantile`.

    >>> superquantile([1.0, 2.0, 4.0], [1, 1, 1], Fraction(1, 2))
    3.3333333333333335
    """
    numbers, counts = check_sample(values, weights)
    tail = _tail(numbers, counts, theta)
    return float(sum(share * Fraction(float(numbers[index])) for index, share in tail))


def _tail(
    numbers: npt.NDArray[np.float64], counts: Sequence[int], theta: Fraction
) -> Iterator[tuple[int, Fraction]]:
    """The places of the largest values that make up the share θ of the weight, and their shares."""
    room = size = _check_theta(theta) * sum(counts)
    for index in np.argsort(-numbers, kind="stable").tolist():
        taken = min(Fraction(counts[index]), room)
        yield index, taken / size
        room -= taken
        if not room:
            break


def conformity(alpha: Sequence[float], pi: Sequence[float]) -> float:
    """Measure how far the mixture with weights `pi` is from the training mixture `alpha`.

    It is min_k alpha_k / pi_k, in [0, 1], and 1 only for equal mixtures. A device that the mixture
    does not use (pi_k = 0) does not count.
    Source: arXiv 2002.11223, Definition 1.

    Raises:
        ValueError: unequal lengths, a negative weight, or weights that do not sum to one.

    >>> conformity([0.5, 0.5, 0.0], [0.25, 0.75, 0.0])
    0.6666666666666666
    """
    if len(alpha) != len(pi):
        raise ValueError(f"alpha has {len(alpha)} weights and pi {len(pi)}: give one per device")
    for name, weights in (("alpha", alpha), ("pi", pi)):
        # `not >=` and not `<`, so that NaN is refused as well
        if any(not weight >= 0 for weight in weights) or not abs(sum(weights) - 1) <= 1e-9:
            raise ValueError(
                f"{name} is not a mixture (smallest weight {min(weights, default=None)}, "
                f"sum {sum(weights)}): pass non-negative weights that sum to one"
            )
    return min(a / p for a, p in zip(alpha, pi, strict=True) if p > 0)


def _check_theta(theta: Fraction) -> Fraction:
    if not 0 < theta <= 1:
        raise ValueError(f"theta={theta} is not in (0, 1]")
    return theta


def check_sample(values: Values, weights: Weights) -> tuple[npt.NDArray[np.float64], list[int]]:
    """Check values and their weights, and take them as float64 and exact integers.

    Raises:
        ValueError: no values, unequal lengths, a value that is not finite, a weight that is
            negative or no integer, or no positive weight.
    """
    numbers = np.asarray(values, dtype=np.float64)
    raw = np.asarray(weights)
    if numbers.ndim != 1 or numbers.size == 0:
        raise ValueError(f"values of shape {numbers.shape}: pass at least one number, in one row")
    if raw.shape != numbers.shape:
        raise ValueError(f"{numbers.size} values but weights of shape {raw.shape}: pass one each")
    if raw.dtype.kind not in "iu":
        raise ValueError(f"weights of dtype {raw.dtype}: pass integers (sample counts)")
    if not np.isfinite(numbers).all():
        index = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ValueError(f"values[{index}]={numbers[index]} is not finite: leave it out")
    # Python integers: sums and products below can not overflow
    counts: list[int] = [int(count) for count in raw.tolist()]
    if min(counts) < 0:
        raise ValueError(f"weights[{counts.index(min(counts))}]={min(counts)} is negative")
    if sum(counts) == 0:
        raise ValueError("all weights are zero: at least one must be positive")
    return numbers, counts
