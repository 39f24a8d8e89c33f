"""What an analyst asks: one statistic of one column, and what a device may contribute to it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.sim.errors import UserError

Values: TypeAlias = npt.NDArray[np.float64]

STATISTICS: Final = ("count", "mean", "variance", "histogram", "quantile")
SAMPLES: Final = "samples"
DEVICES: Final = "devices"
OF: Final = (SAMPLES, DEVICES)

STEPS: Final = 1 << 18
"""Most steps of the range: values are rounded to one."""

NOISY_STEPS: Final = 1 << 10
"""The same with noise, which is far larger than these."""

_MOST_BINS: Final = 1 << 12
_MOST_ROWS: Final = 1 << 20
_LARGEST: Final = 1e100


@dataclass(frozen=True, slots=True)
class Question:
    """A statistic, and the bounds that keep its sums finite and every device's part small.

    Attributes:
        statistic: one of `STATISTICS`.
        low: values below count as this one.
        high: values above count as this one; above `low`.
        of: whose distribution it is: of "samples" (a device's rows, `cap` at most), or of "devices"
            (the mean of a device's rows is its one value).
        cap: most rows of a device that count, the first ones; 1 of "devices".
        bins: of a histogram, of equal width, and of a quantile with noise.
        level: of the quantile, in (0, 1): the smallest value that this share does not exceed.
        noise: σ of the noise of every sum, in units of what one device can change in it; 0 for
            none.

    Raises:
        UserError: a value is out of range.
    """

    statistic: str
    low: float
    high: float
    of: str = SAMPLES
    cap: int = 100
    bins: int = 10
    level: Fraction = Fraction(1, 2)
    noise: Fraction = Fraction(0)
    step: Fraction = field(init=False)

    def __post_init__(self) -> None:
        _insist(self.statistic in STATISTICS, f"{self.statistic!r}: one of {', '.join(STATISTICS)}")
        _insist(self.of in OF, f"of {self.of!r}: must be one of {', '.join(OF)}")
        for name, end in (("low", self.low), ("high", self.high)):
            _insist(is_number(end), f"{name} {end!r:.40}: must be a number")
            object.__setattr__(self, name, _double(name, end))
        is_interval = math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high
        said = f"range {self.low:g} {self.high:g}"
        _insist(is_interval, f"{said}: must be two finite numbers, the first the smaller")
        _insist(
            max(-self.low, self.high) <= _LARGEST and self.high - self.low >= 1 / _LARGEST,
            f"{said}: must lie within ±{_LARGEST:g} and be no narrower than {1 / _LARGEST:g}",
        )
        check_whole("cap", self.cap, 1, _MOST_ROWS)
        check_whole("bins", self.bins, 1, _MOST_BINS)
        _insist(0 < self.level < 1, f"level {self.level}: must lie in (0, 1)")
        _insist(0 <= self.noise <= 10**6, f"noise {self.noise}: must lie in [0, 1000000]")
        if self.of == DEVICES:
            object.__setattr__(self, "cap", 1)
        # a power of two, so that whole numbers within a range of 2^18 are not rounded at all
        steps = NOISY_STEPS if self.noise else STEPS
        exponent = math.ceil(math.log2(self.high - self.low)) - (steps.bit_length() - 1)
        object.__setattr__(self, "step", Fraction(2) ** exponent)
        known = max(math.ulp(self.low), math.ulp(self.high))
        _insist(
            self.step >= known,
            f"{said}: numbers of this size are only known to {known:g}, too little for so narrow a "
            "range; take the same number off all values first",
        )

    @property
    def num_steps(self) -> int:
        """Steps from `low` to `high`; the last may be shorter."""
        return math.ceil((Fraction(self.high) - Fraction(self.low)) / self.step)

    def of_device(self, rows: Values) -> "Part":
        """What of a device's rows counts.

        Args:
            rows: the values of the column, finite.
        """
        if not len(rows):
            return Part(np.zeros(0), 0, 0)
        left_out = max(0, len(rows) - self.cap) if self.of == SAMPLES else 0
        values = rows[: self.cap] if self.of == SAMPLES else np.array([_mean(rows)])
        clipped = np.clip(values, self.low, self.high)
        return Part(clipped, int(np.count_nonzero(clipped != values)), min(left_out, _MOST_ROWS))

    def ticks(self, values: Values) -> npt.NDArray[np.int64]:
        """Values of the range as whole steps from `low`, to the nearest."""
        return np.rint((values - self.low) / float(self.step)).astype(np.int64)

    def value(self, ticks: Fraction | int) -> float:
        """A number of steps as a value."""
        return float(Fraction(self.low) + self.step * ticks)

    @property
    def edges(self) -> Values:
        """The ends of the bins, `bins` + 1 of them."""
        return np.linspace(self.low, self.high, self.bins + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What of a device's rows counts.

    Attributes:
        values: within the range.
        outside: how many of them were outside, and are now its nearest end.
        left_out: rows beyond the cap.
    """

    values: Values = field(repr=False)
    outside: int = field(repr=False)
    left_out: int = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sum:
    """A secure sum that a question needs: numbers from 0 to `most` of each device.

    Attributes:
        name: what is summed.
        size: how many numbers.
        most: the largest that a device contributes.
        of: the numbers of a device.
    """

    name: str
    size: int
    most: int
    of: Callable[[Part], npt.NDArray[np.int64]]


def sums_of(question: Question) -> tuple[Sum, ...]:
    """The sums that answer a question, except for a quantile without noise.

    Without noise, two more say how many values were outside of the range, and how many rows were
    beyond the cap.
    """
    cap, steps, edges = question.cap, question.num_steps, question.edges

    def count(part: Part) -> npt.NDArray[np.int64]:
        inside = len(part.values) - (part.outside if question.statistic == "count" else 0)
        return np.array([inside])

    def power(exponent: int) -> Callable[[Part], npt.NDArray[np.int64]]:
        return lambda part: np.array([int((question.ticks(part.values) ** exponent).sum())])

    def binned(part: Part) -> npt.NDArray[np.int64]:
        return np.histogram(part.values, edges)[0].astype(np.int64)

    found = {
        "count": [Sum("count", 1, cap, count)],
        "mean": [Sum("count", 1, cap, count), Sum("sum", 1, cap * steps, power(1))],
        "variance": [
            Sum("count", 1, cap, count),
            Sum("sum", 1, cap * steps, power(1)),
            Sum("squares", 1, cap * steps**2, power(2)),
        ],
    }.get(question.statistic, [Sum("bins", question.bins, cap, binned)])
    if not question.noise:
        found += notes_of(question)
    return tuple(found)


def _double(name: str, end: float) -> float:
    try:
        return float(end)
    except OverflowError:
        raise UserError(f"{name}: it is too large for a double") from None


def _mean(rows: Values) -> float:
    """The mean, of values whose sum is too large for a double too."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.mean(rows))
    return mean if math.isfinite(mean) else math.fsum(rows / len(rows))


HOLDERS: Final = Sum("holders", 1, 1, lambda part: np.array([int(len(part.values) > 0)]))
"""The devices that have a row that counts."""


def notes_of(question: Question) -> list[Sum]:
    """The sums that say how much of the data the bounds have changed."""
    return [
        Sum("outside", 1, question.cap, lambda part: np.array([part.outside])),
        Sum("left_out", 1, _MOST_ROWS, lambda part: np.array([part.left_out])),
    ]


def is_number(value: object) -> bool:
    """Whether it is a real number; a truth value is none."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Check that an argument is a whole number of a range.

    Raises:
        UserError: it is not.
    """
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    _insist(
        is_whole and least <= value <= most,  # type: ignore[operator]
        f"{name} {value!r:.40}: must be a whole number in [{least}, {most}]",
    )


def _insist(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UserError(otherwise)
