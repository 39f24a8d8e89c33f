"""Weighted means under secure aggregation: the server sees Σ a_k·u_k and Σ a_k, and no device.

A round is a round of `PrivateDeltaFL` with θ = 1, whose protocol sums n_k·Δ_k, n_k, n_k·F_k and 1.
A device replaces its number of samples n_k by the integer round(a_k / unit), and Δ_k by u_k. The
protocol itself does not change, and does not distinguish such devices from others.

Numbers of samples are integers, so their unit is 1. For real weights the unit is a power of two,
public, and chosen by the server before the round:

- From the second round on, the unit follows from the last round's mean weight, which the two sums
  reveal. An average device then weighs 2^(WEIGHT_BITS − h) units, where 2^h is at least 16 times
  the cohort. No device weighs more than the cohort's sum, so no device is clipped unless the
  weights grow more than 16-fold from one round to the next.
- In the first round only the expected loss is known. Weights then have FIRST_WEIGHT_BITS bits, half
  of which are used by the expected weight: in a cohort of m no device is clipped unless the mean is
  more than 2^(FIRST_WEIGHT_BITS/2) / m times as large, and a mean that is a thousand times smaller
  still has half as many bits.
- A round in which all weights rounded to zero, or in which one may have been clipped, reveals only
  a bound on the mean. The next round starts from this bound like a first round.

A weight above 2^bits is reduced to 2^bits, and the report counts it as clipped. Losses are summed
with the same weights, so the server also learns Σ a_k·F_k, as in every private round.

A session's context binds its devices to configuration and model, but not to the unit or to the
constants of the mean, which the simulation gives to all devices alike. If the server may lie, these
must be bound too: a device with a finer unit than the others would outweigh them. A federation
binds them by the session's graph seed (`deltafl.sim.net.frames.Task`).

Precision. Let m devices have a mean weight of A units, without clipping. Rounding changes each
weight by at most half a unit. Because Σ a_k·(u_k − ū) = 0 for the mean ū of real weights, the
masked mean differs from it, in every coordinate, by at most

    (max_k |u_k − ū| + r) / (2·A)

where r is the resolution to which products of weight and update are rounded: one unit for real
weights, which have enough bits themselves, and 2^-update_resolution_bits for integer weights, for
which the first term is zero.
"""

import math
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from deltafl.fl.cohort import Cohort, Later, Local, check_cohort
from deltafl.fl.errors import check_positive
from deltafl.fl.objectives import LocalObjective
from deltafl.fl.strategies.base import Memory, TrainingState, Visibility
from deltafl.fl.strategies.private_delta_fl import (
    Encoding,
    PrivateDeltaFL,
    PrivateRoundReport,
)
from deltafl.fl.strategies.weighted_mean import Participant, WeightedMean
from deltafl.fl.vectors import Vector
from deltafl.protocol.configuration import UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.quantile.registry import default_max_queries
from deltafl.protocol.quantile.search import SearchParams

WEIGHT_BITS: Final = 28
"""Bits of a real weight, once a round has revealed how large weights are."""

FIRST_WEIGHT_BITS: Final = 40
"""Bits of a real weight before that."""

_GROWTH_BITS: Final = 4  # weights may grow 16-fold between two rounds
MEAN_WEIGHT: Final = "masked.mean_weight"
"""What is remembered after a round, of shape (2,): log2 of its mean weight, and 1 if that is only a
bound, otherwise 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedMeanReport(PrivateRoundReport):
    """What the server learnt in a masked round of a weighted mean.

    `kept_weight` is Σ a_k in units, each weight rounded; `train_loss` is Σ a_k·F_k / Σ a_k.

    Attributes:
        weight_unit_log2: log2 of the unit; 0 for numbers of samples.
    """

    weight_unit_log2: int


@dataclass(frozen=True, slots=True)
class MaskedMean:
    """A weighted mean whose server sees only sums.

    Attributes:
        mean: which mean.
        rounds: how rounds are run; its θ is 1. For real weights only the grid and the clip of its
            encoding count: weights have the bits that the module says, and products are rounded
            to whole units.
        expected_loss: about the mean loss of the initial model in nats, positive, for the unit of
            the first round; a model that knows nothing of C classes has ln C.

    Raises:
        ValueError: θ is not 1, or the loss is not positive.
    """

    server_sees: ClassVar[Visibility] = Visibility.SUMS
    """Nothing but sums over the cohort."""

    mean: WeightedMean
    rounds: PrivateDeltaFL
    expected_loss: float = math.log(10)

    def __post_init__(self) -> None:
        if self.rounds.clipping is not None and not self.mean.has_whole_weights:
            raise ValueError(
                f"{self.name} weighs devices by real numbers, and a device that claims a large "
                "one is what clipping is to withstand: take private-fedavg, private-fedprox "
                "or private-delta-fl"
            )
        if self.rounds.theta != 1:
            raise ValueError(f"theta={self.rounds.theta} of the rounds is not 1: all take part")
        check_positive(expected_loss=self.expected_loss)

    @property
    def name(self) -> str:
        """The name in configurations and tables."""
        return f"private-{self.mean.name}"

    def init(self, model: Vector, num_devices: int) -> TrainingState:
        """As in clear."""
        return self.mean.init(model, num_devices)

    def apply(self, state: TrainingState, cohort: Cohort) -> tuple[TrainingState, MaskedMeanReport]:
        """Run one round with this cohort.

        Raises:
            ValueError: the cohort is empty, or too small for the threat that a session must
                withstand.
            DivergenceError: a device's loss or update is NaN or infinite.
            PeerError: the session falls short of the devices' policy.
        """
        check_cohort(cohort)
        rounds, unit = self._rounds(state, len(cohort.weights))
        weighing = InUnits(self.mean, state.round, unit, rounds.encoding.update.max_weight)
        played, report = rounds.apply(state, cohort, weighing)
        known = {field.name: getattr(report, field.name) for field in fields(report)}
        memory = {**played.memory, **self._learnt(report, unit, rounds.encoding.update.max_weight)}
        following = replace(played, memory=MappingProxyType(memory))
        return following, MaskedMeanReport(**known, weight_unit_log2=unit)

    def levels_for(self, state: TrainingState, cohort_size: int) -> Levels:
        """What the next round announces to a cohort of this size; see `PrivateDeltaFL`."""
        return self._rounds(state, cohort_size)[0].levels_for(state, cohort_size)

    def _rounds(self, state: TrainingState, cohort_size: int) -> tuple[PrivateDeltaFL, int]:
        """How the next round is run, and log2 of its unit."""
        if self.mean.has_whole_weights:
            return self.rounds, 0
        if MEAN_WEIGHT in state.memory:
            log2_mean, is_bound = state.memory[MEAN_WEIGHT].tolist()
        else:
            still = np.zeros(1, np.float32)
            one = Participant(0, 1, Later(lambda: self.expected_loss), Later(lambda: still), (1,))
            expected = self.mean.share(one, state.round)
            log2_mean, is_bound = expected.log_weight / math.log(2), True
        bits = FIRST_WEIGHT_BITS if is_bound else WEIGHT_BITS
        headroom = bits // 2 if is_bound else (cohort_size - 1).bit_length() + _GROWTH_BITS
        own = self.rounds.encoding
        # bracketed: nothing is searched for, but mm's sums would have to fit such weights as well
        encoding = Encoding(
            method="bracketed",
            search=SearchParams(default_max_queries("bracketed"), own.search.grid),
            update=UpdateParams(own.update.clip, resolution_bits=0, max_weight=1 << bits),
        )
        return replace(self.rounds, encoding=encoding, noise=None), math.ceil(log2_mean) - (
            bits - headroom
        )

    def _learnt(self, report: PrivateRoundReport, unit: int, max_weight: int) -> Memory:
        """The mean weight, unless the round was given up or the weights are whole."""
        if self.mean.has_whole_weights or not report.kept_devices:
            return {}
        # zeros are weights below a half; a clipped weight alone brings the sum to the largest
        is_bound = not 0 < report.kept_weight < max_weight
        mean = max(report.kept_weight / report.kept_devices, 0.5)
        return {MEAN_WEIGHT: np.array([math.log2(mean) + unit, is_bound], dtype=np.float64)}


@dataclass(frozen=True, slots=True)
class InUnits:
    """By which a device weighs a_k in whole units and contributes u_k; a `Weighing`.

    Attributes:
        mean: which mean.
        round_index: the round, counted from 0.
        unit: log2 of the unit.
        max_weight: the largest number of units that counts in full.
    """

    mean: WeightedMean
    round_index: int
    unit: int
    max_weight: int

    @property
    def objective(self) -> LocalObjective:
        """That of the mean."""
        return self.mean.objective

    @property
    def trains_first(self) -> bool:
        """Real weights may follow from the update."""
        return not self.mean.has_whole_weights

    def weigh(self, own: Local) -> tuple[int, float]:
        """Whole units, at most one more than may be: the protocol clips that and counts it.

        A weight that is no number, of settings that no data suit, counts as 0.
        """
        share = self.mean.share(own, self.round_index)
        log_units = share.log_weight - self.unit * math.log(2)
        if math.isnan(log_units):
            return 0, share.step
        if log_units > math.log(self.max_weight + 1):
            return self.max_weight + 1, share.step
        return round(math.exp(log_units)), share.step
