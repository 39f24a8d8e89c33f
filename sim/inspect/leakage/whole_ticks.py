"""The end of the attack: losses are whole ticks, and the released sums are whole numbers.

Around a solution the sums are linear in the losses, so those that rounding allows are the whole
points in an ellipsoid. They are listed as in Fincke & Pohst (1985), from the coordinate that is
known best to the one that is known least, and each is put to the test: whether it reproduces every
released integer. The rounding on the devices is known to the last bit, so the truth always does.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.sim.inspect.leakage.equations import Equations
from deltafl.sim.inspect.leakage.observations import SearchView, beta_bits
from deltafl.sim.inspect.leakage.prior import Numbers

_MOST_POINTS: Final = 50_000
_DEVIATIONS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Region:
    """The losses near a solution that rounding allows, to first order.

    Attributes:
        centre: The least-squares solution, positions in ticks, shape (m,).
        matrix: Derivatives of the sums by the positions, in standard deviations of what rounding on
            m devices adds to a sum, shape (R, m).
        radius: How far each loss can be from its place, in ticks: three standard deviations;
            infinite where others can make up for any move of it.
    """

    centre: Numbers
    matrix: Numbers
    radius: Numbers


def region_around(equations: Equations, unknowns: Numbers, row: int) -> Region:
    """Linearise the equations of one way around its solution."""
    one = equations.rows(np.array([row]))
    values = unknowns[row : row + 1]
    devices = equations.devices
    _, jacobian = one.predict(values)
    share = 1 / (1 + np.exp(-np.clip(values[0, :devices], -40, 40)))
    slope = np.maximum(one.width[0] * share * (1 - share), 1e-9)
    # the errors of m devices are even in ± half a unit each
    deviations = equations.tolerances / np.sqrt(3 * devices)
    matrix = jacobian[0] / deviations[:, None]
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    _, values_, rows = np.linalg.svd(matrix / scale, full_matrices=False)
    rank = int((values_ > 1e-10 * max(values_.max(initial=0.0), 1e-300)).sum())
    inverse = np.linalg.pinv(matrix / scale, rcond=1e-10)[:devices]
    radius = _DEVIATIONS * np.linalg.norm(inverse, axis=1) / scale[:devices] * slope
    # what of each direction no sum sees: the rest of a unit vector
    seen = np.sum(rows[:rank, :devices] ** 2, axis=0)
    free = np.sqrt(np.maximum(1 - seen, 0.0)) * (rank < matrix.shape[1])
    return Region(
        centre=one.positions(values)[0],
        matrix=matrix[:, :devices] / slope,
        radius=np.where(free > 1e-6, np.inf, radius),
    )


@dataclass(frozen=True, slots=True)
class WholeSolutions:
    """Whole ticks near a solution that reproduce every sum of `mm`.

    Attributes:
        found: Them, in the order of the region's positions.
        complete: Whether all whole ticks that rounding allows there were tried.
    """

    found: tuple[tuple[int, ...], ...]
    complete: bool


def whole_solutions(view: SearchView, region: Region, weights: Numbers) -> WholeSolutions:
    """Try the whole ticks of a region, all or, if they are too many, the nearest.

    Args:
        view: What the server saw.
        region: Where to look.
        weights: What the devices weigh in the search, in the order of the region's positions.
    """
    listed = _whole_points(region)
    points = np.rint(region.centre).astype(np.int64)[None, :] if listed is None else listed
    top = view.config.search.grid.max_tick
    points = points[((points >= 0) & (points <= top)).all(axis=1)]
    whole = np.rint(weights).astype(np.int64)
    for answer in view.answers:
        half_ticks = 2 * (points - answer.pivots[0]) + 1
        distance = np.maximum(np.abs(half_ticks), 2 * view.config.search.epsilon_ticks)
        beta = np.rint(np.ldexp(2.0 * whole / distance, beta_bits(view.config))).sum(axis=1)
        signed = (whole * np.sign(half_ticks)).sum(axis=1)
        agrees = (beta == answer.sums["beta"][0]) & (signed == answer.sums["signed_weight"][0])
        points = points[agrees]
    found = tuple(tuple(point.tolist()) for point in points)
    return WholeSolutions(found, listed is not None)


def _whole_points(region: Region) -> npt.NDArray[np.int64] | None:
    """The whole points of the ellipsoid; None if they are too many."""
    rows, size = region.matrix.shape
    if rows < size or not np.isfinite(region.radius).all():
        return None
    order = np.argsort(-region.radius, kind="stable")
    _, triangle = np.linalg.qr(region.matrix[:, order])
    centre = region.centre[order]
    diagonal = np.abs(np.diag(triangle))
    if (diagonal == 0).any():
        return None
    bound = rows + 4 * np.sqrt(2.0 * rows)
    points = np.empty((1, 0))
    costs = np.zeros(1)
    for index in range(size - 1, -1, -1):
        later = (points - centre[index + 1 :]) @ triangle[index, index + 1 :]
        middle = centre[index] - later / triangle[index, index]
        reach = np.sqrt(np.maximum(bound - costs, 0)) / diagonal[index]
        first = np.ceil(middle - reach).astype(np.int64)
        numbers = np.maximum(np.floor(middle + reach).astype(np.int64) - first + 1, 0)
        if numbers.sum() > _MOST_POINTS:
            return None
        parent = np.repeat(np.arange(len(points)), numbers)
        step = np.arange(numbers.sum()) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        chosen = (first[parent] + step).astype(float)
        costs = costs[parent] + ((chosen - middle[parent]) * diagonal[index]) ** 2
        points = np.column_stack([chosen, points[parent]])
    listed = np.empty(points.shape, dtype=np.int64)
    listed[:, order] = points.astype(np.int64)
    return listed
