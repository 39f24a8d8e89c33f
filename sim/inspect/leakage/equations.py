"""The sums of `mm` and of the tail as equations, and their solutions.

Device k is somewhere in a bucket whose ends are pivots that were asked. Its position is the
bucket's low end plus its width times a logistic function of the unknown. If the weights are not
known, the devices of a bucket share its weight by a softmax of further unknowns.

`solve` fits the unknowns by damped Gauss-Newton, Levenberg (1944), Marquardt (1963), from many
starts. All of them advance together as one batch of matrices, which for a few unknowns each is a
hundred times faster than one after the other.

In the end, losses are whole ticks, and the released sums are whole numbers. Around a solution the
sums are linear in the losses, so those that rounding allows are the whole points in an ellipsoid.
They are listed as in Fincke & Pohst (1985), from the coordinate that is known best to the one that
is known least, and each is put to the test: whether it reproduces every released integer. The
rounding on the devices is known to the last bit, so the truth always does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from deltafl.protocol.quantile.registry import NOISY
from deltafl.protocol.weighting import Weighting
from deltafl.sim.inspect.leakage.observations import Numbers, SearchView, beta_bits


@dataclass(frozen=True, slots=True)
class Equations:
    """Sums and their terms, for S ways to place the devices at once.

    Attributes:
        low: Lower end of the bucket of each device, a position, shape (S, m).
        width: Its width in ticks, shape (S, m).
        weight: Weight of each device in the search, shape (S, m); with free weights that of its
            bucket.
        shares: Which devices share a bucket, shape (S, m, m); None where the weights are known.
        points: The points μ asked, T of them, in ticks.
        epsilon: ε in ticks; 0 never acts.
        tail: Weight of each device in the weighted loss of the tail, shape (S, m); 0 if below.
        sums: The sums, R of them: those of β at the points, in units of 1/tick, and then, where it
            is known, Σ n·F over the tail, in ticks.
        units: What each device's part of a sum was rounded to, shape (R,).
    """

    low: Numbers
    width: Numbers
    weight: Numbers
    shares: Numbers | None
    points: Numbers
    epsilon: float
    tail: Numbers
    sums: Numbers
    units: Numbers

    def rows(self, chosen: npt.NDArray[np.int64]) -> "Equations":
        """The equations of some of the ways only."""
        own = {name: getattr(self, name)[chosen] for name in ("low", "width", "weight", "tail")}
        return replace(self, shares=None if self.shares is None else self.shares[chosen], **own)

    @property
    def devices(self) -> int:
        """Devices."""
        return int(self.low.shape[1])

    @property
    def tolerances(self) -> Numbers:
        """The most that rounding on m devices can change each sum."""
        return np.asarray(self.units / 2 * self.devices)

    def unknowns(self, positions: Numbers) -> Numbers:
        """The unknowns that stand for these positions, and for equal shares of the weight."""
        share = np.clip((positions - self.low) / self.width, 1e-9, 1 - 1e-9)
        logits = np.log(share / (1 - share))
        return logits if self.shares is None else np.hstack([logits, np.zeros_like(logits)])

    def positions(self, unknowns: Numbers) -> Numbers:
        """Where the devices are, in ticks, shape (S, m)."""
        return self.low + self.width * _logistic(unknowns[:, : self.devices])

    def weights(self, unknowns: Numbers) -> Numbers:
        """What the devices weigh in the search, shape (S, m)."""
        if self.shares is None:
            return self.weight
        parts = np.exp(np.clip(unknowns[:, self.devices :], -30, 30))
        return np.asarray(self.weight * parts / np.einsum("skl,sl->sk", self.shares, parts))

    def predict(self, unknowns: Numbers) -> tuple[Numbers, Numbers]:
        """The sums that these unknowns give, (S, R), and their derivatives, (S, R, P)."""
        share = _logistic(unknowns[:, : self.devices])
        position = self.low + self.width * share
        slope = self.width * share * (1 - share)
        weight = self.weights(unknowns)
        distance = position[:, None, :] - self.points[None, :, None]
        nearness = 1 / np.maximum(np.abs(distance), max(self.epsilon, 1e-3))
        each = weight[:, None, :] * nearness
        acts = np.abs(distance) > self.epsilon
        by_position = -each * nearness * np.sign(distance) * acts * slope[:, None, :]
        if len(self.sums) > len(self.points):
            own = self.tail if self.shares is None else weight * (self.tail > 0)
            each = np.concatenate([each, (own * position)[:, None, :]], axis=1)
            by_position = np.concatenate([by_position, (own * slope)[:, None, :]], axis=1)
        if self.shares is None:
            return each.sum(axis=2), by_position
        together = np.einsum("srk,skl->srl", each, self.shares)
        share_of_bucket = weight / np.maximum(self.weight, 1e-300)
        by_weight = each - share_of_bucket[:, None, :] * together
        return each.sum(axis=2), np.concatenate([by_position, by_weight], axis=2)

    def relative(self, unknowns: Numbers) -> tuple[Numbers, Numbers]:
        """Residuals of the logarithms of the sums: far from a solution they are the smoother."""
        predicted, jacobian = self.predict(unknowns)
        positive = np.maximum(predicted, 1e-300)
        wanted = np.maximum(self.sums, 1e-300)
        return np.log(positive) - np.log(wanted), jacobian / positive[:, :, None]

    def misfits(self, unknowns: Numbers) -> Numbers:
        """Largest deviation of a sum in units of what rounding can do, shape (S,)."""
        predicted, _ = self.predict(unknowns)
        return np.asarray(np.max(np.abs(predicted - self.sums) / self.tolerances, axis=1))

    def scaled(self, unknowns: Numbers, looseness: float) -> tuple[Numbers, Numbers]:
        """Residuals in units of what rounding can do, or of a share of the sums if that is more."""
        predicted, jacobian = self.predict(unknowns)
        unit = np.hypot(self.tolerances, looseness * self.sums)
        return (predicted - self.sums) / unit, jacobian / unit[:, None]

    def region_around(self, unknowns: Numbers, row: int) -> "Region":
        """Linearise the equations of one way around its solution."""
        one = self.rows(np.array([row]))
        values = unknowns[row : row + 1]
        devices = self.devices
        _, jacobian = one.predict(values)
        share = _logistic(values[0, :devices])
        slope = np.maximum(one.width[0] * share * (1 - share), 1e-9)
        # the errors of m devices are even in ± half a unit each
        deviations = self.tolerances / np.sqrt(3 * devices)
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


def set_up(
    view: SearchView,
    places: Sequence[Sequence[tuple[int, int]]],
    weights: Numbers,
    own_weights: Numbers | None,
    *,
    free_weights: bool,
) -> Equations:
    """Write down the equations of a view.

    Args:
        view: What the server saw.
        places: For S ways, for every device the bucket [low, high) of ticks that it is in.
        weights: What the devices weigh in the search, shape (S, m); their bucket's weight if free.
        own_weights: n_k of the devices, shape (S, m); None where they are not known.
        free_weights: Whether the weights are unknowns too. For `noisy`, where all weigh the same in
            the search, they are those in the update, and shared by the devices on either side of
            the threshold.
    """
    edges = np.array(places, dtype=float).reshape(len(places), view.devices, 2)
    low, high = edges[:, :, 0], edges[:, :, 1]
    queries = view.answers if view.method == "mm" else ()
    units = [2.0 ** -beta_bits(view.config)] * len(queries)
    sums = [answer.sums["beta"][0] * unit for answer, unit in zip(queries, units, strict=True)]
    tail, groups = np.zeros_like(low), low
    is_own = view.config.search.weighting is Weighting.SAMPLES
    if free_weights and view.method == NOISY and view.tail is not None:
        is_own = True
        groups = (low >= view.tail.pivot).astype(float)
    if view.tail is not None and view.tail.weighted_loss and (own_weights is not None or is_own):
        in_tail = low >= view.tail.pivot
        if (in_tail.sum(axis=1) == view.tail.count).all():
            tail = in_tail * (weights if own_weights is None else own_weights)
            units.append(2.0 ** (view.config.search.grid.resolution_bits - view.tail.loss_bits))
            sums.append(view.tail.weighted_loss * units[-1])
    shares = (groups[:, :, None] == groups[:, None, :]).astype(float) if free_weights else None
    return Equations(
        low=low - 0.5,
        width=high - low,
        weight=weights,
        shares=shares,
        points=np.array([answer.pivots[0] - 0.5 for answer in queries]),
        epsilon=float(view.config.search.epsilon_ticks),
        tail=tail,
        sums=np.array(sums),
        units=np.array(units),
    )


def _logistic(values: Numbers) -> Numbers:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -40, 40))))


Model: TypeAlias = Callable[[Numbers], tuple[Numbers, Numbers]]
"""From unknowns, shape (S, P), to residuals (S, R) and their derivatives (S, R, P)."""

_SCREENING: Final = ((1e-4, False, 8), (0.0, False, 12), (0.0, True, 12))
"""Looseness, scaling and steps, after the logarithms."""
_RELATIVE_STEPS: Final = 30
_REFINING: Final = ((4, 30), (2, 30))
"""Of how many one is kept, and gets how many steps more of either kind."""
_LONGEST_STEP: Final = 2.0
_DAMPING_RANGE: Final = (1e-20, 1e6)


def solve(equations: Equations, unknowns: Numbers) -> tuple[Equations, Numbers]:
    """Least squares from many starts; the better ones, which get the most steps."""
    unknowns = _minimise(equations.relative, unknowns, steps=_RELATIVE_STEPS, scaled=False)
    for looseness, scaled, steps in _SCREENING:
        model = partial(equations.scaled, looseness=looseness)
        unknowns = _minimise(model, unknowns, steps=steps, scaled=scaled)
    for part, steps in _REFINING:
        misfits = equations.misfits(unknowns)
        if (misfits <= 1).mean() < 1 / part:
            best = np.argsort(misfits)[: max(len(misfits) // part, 1)]
            equations, unknowns = equations.rows(best), unknowns[best]
            model = partial(equations.scaled, looseness=0.0)
            for scaled in (False, True):
                unknowns = _minimise(model, unknowns, steps=steps, scaled=scaled)
    return equations, unknowns


def _minimise(model: Model, start: Numbers, *, steps: int, scaled: bool) -> Numbers:
    """Reduce the sum of squared residuals of every row of unknowns on its own.

    A step that would make a row worse is not taken, and the next one is shorter. With more unknowns
    than residuals the solution nearest to where the row started is approached.

    Args:
        model: The residuals.
        start: Where to start, shape (S, P).
        steps: How many steps to try.
        scaled: Whether every unknown is damped by its own influence (Marquardt) or all alike
            (Levenberg). A device half a tick from a pivot moves its sum 10^10 times as much as one
            a nat away: damped alike, the latter hardly moves. But far from a solution, and where
            there are more unknowns than residuals, that is as it should be.

    Returns:
        The unknowns afterwards, shape (S, P).
    """
    unknowns = start.copy()
    residuals, jacobian = model(unknowns)
    cost = np.sum(residuals**2, axis=1)
    damping = np.full(len(start), 1e-3)
    step_of = _by_influence if scaled else _alike
    for _ in range(steps):
        step = step_of(residuals, jacobian, damping)
        longest = np.max(np.abs(step), axis=1, keepdims=True)
        trial = unknowns + step * np.minimum(1, _LONGEST_STEP / np.maximum(longest, 1e-300))
        new_residuals, new_jacobian = model(trial)
        new_cost = np.sum(new_residuals**2, axis=1)
        better = new_cost < cost
        unknowns[better] = trial[better]
        residuals[better] = new_residuals[better]
        jacobian[better] = new_jacobian[better]
        cost[better] = new_cost[better]
        damping = np.clip(np.where(better, damping * 0.2, damping * 5), *_DAMPING_RANGE)
    return unknowns


def _alike(residuals: Numbers, jacobian: Numbers, damping: Numbers) -> Numbers:
    """The step with all unknowns damped alike, from the smaller one of the two normal equations."""
    transposed = np.swapaxes(jacobian, 1, 2)
    wide = jacobian.shape[1] < jacobian.shape[2]
    normal = jacobian @ transposed if wide else transposed @ jacobian
    right = residuals[:, :, None] if wide else transposed @ residuals[:, :, None]
    size = normal.shape[1]
    trace = np.trace(normal, axis1=1, axis2=2) / size + 1e-300
    normal[:, range(size), range(size)] += (np.maximum(damping, 1e-14) * trace)[:, None]
    solved = np.linalg.solve(normal, right)
    return np.asarray(-((transposed @ solved) if wide else solved)[:, :, 0])


def _by_influence(residuals: Numbers, jacobian: Numbers, damping: Numbers) -> Numbers:
    """Marquardt's step: every unknown is damped by its own influence.

    It takes singular values, for normal equations would square a large condition.
    """
    scale = np.linalg.norm(jacobian, axis=1)
    scale = np.maximum(scale, 1e-12 * scale.max(axis=1, keepdims=True) + 1e-300)
    left, values, right = np.linalg.svd(jacobian / scale[:, None, :], full_matrices=False)
    projected = np.einsum("srk,sr->sk", left, residuals)
    filtered = projected * values / (values**2 + damping[:, None])
    return np.asarray(-np.einsum("skp,sk->sp", right, filtered) / scale)


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

    def whole_solutions(
        self, view: SearchView, weights: Numbers
    ) -> tuple[tuple[tuple[int, ...], ...], bool]:
        """Try the whole ticks of the region, all or, if they are too many, the nearest.

        Args:
            view: What the server saw.
            weights: What the devices weigh in the search, in the order of the region's positions.

        Returns:
            Those that reproduce every sum of `mm`, in that order; and whether all were tried.
        """
        listed = _whole_points(self)
        points = np.rint(self.centre).astype(np.int64)[None, :] if listed is None else listed
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
        return found, listed is not None


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
