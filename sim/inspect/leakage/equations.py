"""The sums of `mm` and of the tail as equations, in variables that keep the ranks.

Device k is somewhere in a bucket whose ends are pivots that were asked. Its position is the
bucket's low end plus its width times a logistic function of the unknown. If the weights are not
known, the devices of a bucket share its weight by a softmax of further unknowns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from deltafl.protocol.quantile.registry import NOISY
from deltafl.protocol.weighting import Weighting
from deltafl.sim.inspect.leakage.observations import SearchView, beta_bits
from deltafl.sim.inspect.leakage.prior import Numbers


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
        betas: The sums of β there, in units of 1/tick.
        unit: What β was rounded to on each device, per tick.
        epsilon: ε in ticks; 0 never acts.
        tail: Weight of each device in the weighted loss of the tail, shape (S, m); 0 if below.
        tail_loss: Σ n·F over the tail, in ticks; None where it is not known.
        tail_unit: What each device's n·F was rounded to, in ticks.
    """

    low: Numbers
    width: Numbers
    weight: Numbers
    shares: Numbers | None
    points: Numbers
    betas: Numbers
    unit: float
    epsilon: float
    tail: Numbers
    tail_loss: float | None
    tail_unit: float

    def rows(self, chosen: npt.NDArray[np.int64]) -> "Equations":
        """The equations of some of the ways only."""
        return replace(
            self,
            low=self.low[chosen],
            width=self.width[chosen],
            weight=self.weight[chosen],
            shares=None if self.shares is None else self.shares[chosen],
            tail=self.tail[chosen],
        )

    @property
    def devices(self) -> int:
        """Devices."""
        return int(self.low.shape[1])

    @property
    def num_sums(self) -> int:
        """Equations."""
        return len(self.betas) + (self.tail_loss is not None)

    @property
    def tolerances(self) -> Numbers:
        """The most that rounding on m devices can change each sum."""
        tolerances = np.full(self.num_sums, self.unit / 2 * self.devices)
        if self.tail_loss is not None:
            tolerances[-1] = self.tail_unit / 2 * self.devices
        return tolerances

    @property
    def sums(self) -> Numbers:
        """The sums, those of β first."""
        last = [] if self.tail_loss is None else [self.tail_loss]
        return np.concatenate([self.betas, last])

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
        beta = weight[:, None, :] * nearness
        acts = np.abs(distance) > self.epsilon
        by_position = -beta * nearness * np.sign(distance) * acts * slope[:, None, :]
        sums = [beta.sum(axis=2)]
        jacobians = [by_position]
        if self.tail_loss is not None:
            own = weight * (self.tail > 0) if self.shares is not None else self.tail
            sums.append((own * position).sum(axis=1, keepdims=True))
            jacobians.append((own * slope)[:, None, :])
        by_position = np.concatenate(jacobians, axis=1)
        if self.shares is None:
            return np.concatenate(sums, axis=1), by_position
        terms = [beta]
        if self.tail_loss is not None:
            terms.append((weight * (self.tail > 0) * position)[:, None, :])
        each = np.concatenate(terms, axis=1)
        together = np.einsum("srk,skl->srl", each, self.shares)
        share_of_bucket = weight / np.maximum(self.weight, 1e-300)
        by_weight = each - share_of_bucket[:, None, :] * together
        return np.concatenate(sums, axis=1), np.concatenate([by_position, by_weight], axis=2)

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
    points = np.array([answer.pivots[0] - 0.5 for answer in queries])
    unit = 2.0 ** -beta_bits(view.config)
    betas = np.array([answer.sums["beta"][0] * unit for answer in queries])
    grid = view.config.search.grid
    tail, tail_loss, tail_unit = np.zeros_like(low), None, 0.0
    is_own = view.config.search.weighting is Weighting.SAMPLES
    groups = low
    if free_weights and view.method == NOISY and view.tail is not None:
        is_own = True
        groups = (low >= view.tail.pivot).astype(float)
    if view.tail is not None and view.tail.weighted_loss and (own_weights is not None or is_own):
        in_tail = low >= view.tail.pivot
        if (in_tail.sum(axis=1) == view.tail.count).all():
            tail = in_tail * (weights if own_weights is None else own_weights)
            tail_unit = 2.0 ** (grid.resolution_bits - view.tail.loss_bits)
            tail_loss = view.tail.weighted_loss * tail_unit
    shares = None
    if free_weights:
        shares = (groups[:, :, None] == groups[:, None, :]).astype(float)
    return Equations(
        low=low - 0.5,
        width=high - low,
        weight=weights,
        shares=shares,
        points=points,
        betas=betas,
        unit=unit,
        epsilon=float(view.config.search.epsilon_ticks),
        tail=tail,
        tail_loss=tail_loss,
        tail_unit=tail_unit,
    )


def _logistic(values: Numbers) -> Numbers:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -40, 40))))
