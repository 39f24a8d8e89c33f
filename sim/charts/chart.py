"""What a chart shows, whoever draws it, and how the lines of several methods are told apart.

The colours are those of Okabe and Ito, which people with any colour vision can tell apart. They are
not enough by themselves: printed in grey, some are alike. The numbers of colours and of dashes have
no common divisor, so the first 56 lines differ in both together, and any eight lines in a row
differ in their dashes.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

import numpy as np

from deltafl.fl.simplex import Reals
from deltafl.sim.writing import number as written
from deltafl.sim.writing import quantity

Write = Callable[[float | None], str]
"""How a value is written."""

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""As hexadecimal RGB."""

DASHES: Final[tuple[tuple[float, ...], ...]] = (
    (),
    (4, 1.6),
    (1, 1.4),
    (6, 1.6, 1, 1.6),
    (9, 2.5),
    (4, 1.4, 1, 1.4, 1, 1.4),
    (2.4, 1.2),
    (10, 1.6, 3, 1.6),
)
"""Lengths of strokes and gaps in turn, in widths of the line; nothing for a solid line."""

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
"""By matplotlib's letters: disc, square, triangle up, diamond, triangle down, plus, cross, ..."""

MOST_ROWS: Final = 80
"""The most rounds of which a chart says the values, and draws a distribution."""

MOST_PAIRS: Final = 150
"""Pairs that are drawn one by one; of more devices, neighbours are drawn together."""

_HUGE: Final = 1e12  # larger values cannot be measurements


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How one line looks.

    Attributes:
        number: of the line, from 0.
    """

    number: int

    @property
    def colour(self) -> str:
        """Hexadecimal RGB."""
        return COLOURS[self.number % len(COLOURS)]

    @property
    def dashes(self) -> tuple[float, ...]:
        """Strokes and gaps in turn, in widths of the line."""
        return DASHES[self.number % len(DASHES)]

    @property
    def marker(self) -> str:
        """The letter of a marker."""
        return MARKERS[self.number % len(MARKERS)]


@dataclass(frozen=True, slots=True)
class Curve:
    """One number by round, over seeds.

    Attributes:
        label: whose.
        number: of the method on its page, which decides how the line looks.
        rounds: ascending.
        mean: over the seeds that have a value there; None without any.
        low: the lowest of the seeds.
        high: the highest.
        has_range: whether low and high say more than the mean.
    """

    label: str
    number: int
    rounds: tuple[int, ...]
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    has_range: bool = False

    def told(self, place: int | None, write: Write) -> str:
        """What it says at a place: its mean, and the range where there are several seeds."""
        if place is None:
            return write(None)
        text = write(self.mean[place])
        if self.has_range:
            text += f" ({write(self.low[place])} to {write(self.high[place])})"
        return text


def fits(value: float | None) -> TypeGuard[float]:
    """Whether a value has a place in a chart: it is a measurement."""
    return value is not None and abs(value) < _HUGE


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over rounds.

    Attributes:
        title: what it shows.
        unit: of the vertical axis.
        curves: what is drawn.
        write: how values are written; by `percent`, the vertical axis is in percent as well.
        from_zero: whether the vertical axis includes zero.
    """

    title: str
    unit: str
    curves: Sequence[Curve] = ()
    write: Write = quantity
    from_zero: bool = True

    @property
    def values(self) -> list[float]:
        """All that is drawn; without any, there is no chart."""
        ends = (value for one in self.curves for value in (*one.low, *one.mean, *one.high))
        return list(filter(fits, ends))

    @property
    def left_out(self) -> int:
        """How many means have no place."""
        return sum(not fits(value) for one in self.curves for value in one.mean)

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last round."""
        rounds = [one.rounds for one in self.curves]
        return min(one[0] for one in rounds), max(one[-1] for one in rounds)

    @property
    def head(self) -> tuple[str, ...]:
        """The head of its table."""
        return ("round", *(one.label for one in self.curves))

    def rows(self) -> list[tuple[int, tuple[str, ...]]]:
        """Its table: rounds, each with the texts of its row; of very many rounds, some."""
        places = [{at: place for place, at in enumerate(one.rounds)} for one in self.curves]
        rounds = sorted(set().union(*places))
        pairs = list(zip(self.curves, places, strict=True))
        return [
            (at, (written(at), *(one.told(known.get(at), self.write) for one, known in pairs)))
            for at in (rounds[index] for index in thinned(len(rounds)))
        ]

    @property
    def summary(self) -> str:
        """What it shows, in words."""
        return "; ".join(
            f"{one.label}: {self.write(one.mean[0])} at round {written(one.rounds[0])}, "
            f"{self.write(one.mean[-1])} at round {written(one.rounds[-1])}"
            for one in self.curves
        )


def drawn(*charts: Chart) -> tuple[Chart, ...]:
    """The charts that have anything to draw."""
    return tuple(one for one in charts if one.values)


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """How the test errors of a method lie over devices, by round.

    Attributes:
        label: whose.
        number: of the method.
        rounds: ascending.
        shares: of the devices of all seeds, the share in each bin, float64 [rounds, bins]; bins
            are of equal width, from no error to all wrong.
    """

    label: str
    number: int
    rounds: tuple[int, ...]
    shares: Reals

    @property
    def summary(self) -> str:
        """What it shows, in words."""
        return (
            f"{self.label}: test errors of the devices from round {written(self.rounds[0])} to "
            f"{written(self.rounds[-1])}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """The test errors of devices under two methods, which have two seeds or more in common.

    Attributes:
        method: the label of the one.
        baseline: the label of the other.
        ours: errors under the method, means over seeds, float64 [devices].
        theirs: errors under the baseline, of the same devices, likewise.
        ranked: both, float64 [2, devices], but in each seed the devices are in the order in which
            the baseline serves them in the other seeds, the best served first, and means are by
            rank. By chance alone, errors are then as often higher as lower at every rank.
        worst: the mean change of the tenth that comes last, as a share, and the ends of its
            interval over seeds; None of fewer than ten devices.
        round: the round that both have reached, of which these errors are.
        seeds: how many seeds both have.
    """

    method: str
    baseline: str
    ours: Reals
    theirs: Reals
    ranked: Reals
    worst: tuple[float, float, float] | None
    round: int
    seeds: int

    @property
    def together(self) -> int:
        """Of how many ranks one pair of a chart is the mean."""
        return -(-len(self.ours) // MOST_PAIRS)

    @property
    def helped(self) -> int:
        """Devices with a lower error than under the baseline."""
        return int((self.ours < self.theirs).sum())

    @property
    def hurt(self) -> int:
        """Devices with a higher one."""
        return int((self.ours > self.theirs).sum())

    @property
    def same(self) -> int:
        """Devices with the same."""
        return len(self.ours) - self.helped - self.hurt

    @property
    def summary(self) -> str:
        """What they show, in words."""
        return (
            f"Of {len(self.ours)} devices, {self.method} helps {self.helped}, hurts {self.hurt} "
            f"and leaves {self.same} as they are, against {self.baseline}"
        )

    @property
    def drawn(self) -> list[tuple[str, float, float]]:
        """What is drawn as one pair: a rank, or several, and both errors."""
        found = []
        for first in range(0, len(self.ours), self.together):
            part = self.ranked[:, first : first + self.together]
            last = first + part.shape[1]
            name = f"rank {last}" if self.together == 1 else f"ranks {first + 1} to {last}"
            ours, theirs = part.mean(axis=1).tolist()
            found.append((name, ours, theirs))
        return found


def thinned(size: int, most: int = MOST_ROWS) -> list[int]:
    """Indices spread evenly over a sequence, the first and the last among them."""
    return sorted({round(at) for at in np.linspace(0, size - 1, min(size, most)).tolist()})


def round_ticks(first: int, last: int) -> list[int]:
    """Where to mark an axis of rounds: the first, the last, and about five round numbers between.

    Args:
        first: the first round on the axis.
        last: the last one; at least `first`.

    >>> round_ticks(0, 60), round_ticks(0, 64), round_ticks(1, 97), round_ticks(3, 3)
    ([0, 10, 20, 30, 40, 50, 60], [0, 20, 40, 64], [1, 20, 40, 60, 80, 97], [3])
    """
    steps = (factor * 10**decade for decade in itertools.count() for factor in (1, 2, 5))
    step = next(step for step in steps if last - first <= 6 * step)
    inner = range(-(-first // step) * step, last + 1, step)
    apart = [at for at in inner if min(at - first, last - at) > step / 2]  # not on top of the ends
    return sorted({first, *apart, last})
