"""Charts of devices: how their errors move from round to round, and pairs under two methods."""

import itertools
from dataclasses import dataclass
from typing import Final

from deltafl.sim.inspect.audit.html.axes import Axis, Tick, steps
from deltafl.sim.inspect.audit.html.writing import number
from deltafl.sim.view.charts import BOTTOM, LEFT, RIGHT, TOP, Look, look_of, percent, thinned
from deltafl.sim.view.series import Pairs, Spread

MOST_DOTS: Final = 150
"""Pairs that are drawn one by one; of more devices, neighbours are drawn together."""

_BINS_SHOWN: Final = 4  # marks on the axis of a distribution


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of a distribution: how many devices have about this error at a round."""

    x: float
    y: float
    width: float
    height: float
    opacity: float
    text: str


@dataclass(frozen=True, slots=True)
class Heat:
    """How a distribution over devices moves, by round.

    Attributes:
        look: of its method.
        x_ticks: marks of the horizontal axis, which counts rounds.
        y_ticks: marks of the vertical axis, the test error.
        cells: the darker, the more devices.
        summary: what it shows, in words.
    """

    look: Look
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    cells: tuple[Cell, ...]
    summary: str


def heat(spread: Spread) -> Heat:
    """Draw how a distribution moves."""
    kept = thinned(len(spread.rounds))
    rounds, shares = [spread.rounds[at] for at in kept], spread.shares[kept]
    x_axis = Axis(0, len(rounds), LEFT, RIGHT)
    bins = shares.shape[1]
    y_axis = Axis(0, bins, BOTTOM, TOP)
    most = float(shares.max())
    cells = [
        Cell(
            x_axis(column),
            y_axis(row + 1),
            round(x_axis(column + 1) - x_axis(column), 1),
            round(y_axis(row) - y_axis(row + 1), 1),
            round(float(shares[column, row]) / most, 3),
            f"round {number(rounds[column])}: {percent(float(shares[column, row]))} of the devices "
            f"have an error of {percent(row / bins)} to {percent((row + 1) / bins)}",
        )
        for column, row in itertools.product(range(len(rounds)), range(bins))
        if shares[column, row] > 0
    ]
    every = -(-len(rounds) // 8)
    shown = [at for at in range(0, len(rounds), every) if at == 0 or at + every <= len(rounds)]
    shown = sorted({*shown[:-1], len(rounds) - 1} if len(shown) > 1 else {*shown, len(rounds) - 1})
    middle = [0.5 * (x_axis(at) + x_axis(at + 1)) for at in shown]
    return Heat(
        look_of(spread.label, spread.number),
        tuple(Tick(x, number(rounds[at])) for x, at in zip(middle, shown, strict=True)),
        tuple(
            Tick(y_axis(at * bins / _BINS_SHOWN), percent(at / _BINS_SHOWN))
            for at in range(_BINS_SHOWN + 1)
        ),
        tuple(cells),
        f"{spread.label}: test errors of the devices from round {number(rounds[0])} to "
        f"{number(rounds[-1])}",
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """A device, or neighbours, under two methods."""

    x: float
    theirs: float
    ours: float
    style: str
    text: str


@dataclass(frozen=True, slots=True)
class PairChart:
    """Who is helped and who is hurt by a method, against another.

    Attributes:
        look: of the method.
        baseline: how the other is drawn.
        y_ticks: marks of the vertical axis, the test error.
        pairs: from left to right, the devices that the baseline serves best first.
        helped: how many devices have a lower error.
        hurt: how many have a higher one.
        same: how many have the same.
        worst: the mean change of the tenth that the baseline serves worst, as a share.
        together: of how many devices one pair is the mean.
        round: of which round the models are.
        seeds: over how many seeds errors are averaged.
        summary: what it shows, in words.
    """

    look: Look
    baseline: Look
    y_ticks: tuple[Tick, ...]
    pairs: tuple[Pair, ...]
    helped: int
    hurt: int
    same: int
    worst: float
    together: int
    round: int
    seeds: int
    summary: str


def pair_chart(found: Pairs, number_: int, baseline: int) -> PairChart:
    """Draw pairs.

    Args:
        found: what to draw.
        number_: of the method on its page.
        baseline: of the baseline.
    """
    size = len(found.devices)
    together = -(-size // MOST_DOTS)
    groups = [range(at, min(at + together, size)) for at in range(0, size, together)]
    x_axis = Axis(-0.5, len(groups) - 0.5, LEFT, RIGHT)
    marks = steps(0.0, max(float(found.ours.max()), float(found.theirs.max())))
    y_axis = Axis(marks[0][0], marks[-1][0], BOTTOM, TOP)
    drawn = []
    for place, group in enumerate(groups):
        ours, theirs = float(found.ours[group].mean()), float(found.theirs[group].mean())
        name = found.devices[group[0]] if together == 1 else f"{len(group)} devices"
        change = "helped" if ours < theirs else "hurt" if ours > theirs else "same"
        drawn.append(
            Pair(
                x_axis(place),
                y_axis(theirs),
                y_axis(ours),
                change,
                f"{name}: {percent(theirs)} under {found.baseline}, {percent(ours)} under "
                f"{found.method}",
            )
        )
    tenth = max(1, size // 10)
    worst = float((found.ours - found.theirs)[-tenth:].mean())
    same = size - found.helped - found.hurt
    return PairChart(
        look_of(found.method, number_),
        look_of(found.baseline, baseline),
        tuple(Tick(y_axis(at), percent(at)) for at, _ in marks),
        tuple(drawn),
        found.helped,
        found.hurt,
        same,
        worst,
        together,
        found.round,
        found.seeds,
        f"Of {size} devices, {found.method} helps {found.helped}, hurts {found.hurt} and leaves "
        f"{same} as they are, against {found.baseline}",
    )
