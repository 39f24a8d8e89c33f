"""Weighted means under secure aggregation: the server sees Σ a_k·u_k and Σ a_k, and no device.

A round is one of `PrivateDeltaFL` with θ = 1, whose protocol sums n_k·Δ_k, n_k, n_k·F_k and 1. In
the place of its number of samples n_k a device puts the whole number round(a_k / unit), and u_k in
the place of Δ_k. Nothing of the protocol changes, and devices cannot be told apart by it.

Numbers of samples are whole, and their unit is 1. For real weights the unit is a power of two,
public, and chosen by the server before the round:

- From the second round on, by the mean weight of the last round, which the two sums have told. An
  average device then weighs 2^(WEIGHT_BITS − h) units, where 2^h is at least 16 times the cohort.
  No device weighs more than the cohort's sum, so nobody is clipped unless the weights have grown
  more than 16-fold from one round to the next.
- In the first round nothing is known but the loss that is expected. Weights then have
  FIRST_WEIGHT_BITS bits, half of which are the expected weight's: in a cohort of m nobody is
  clipped unless the mean is more than 2^(FIRST_WEIGHT_BITS/2) / m times as large, and a mean that
  is a thousand times smaller still has half as many bits.
- A round in which every weight came out as zero, or in which one may have been clipped, has told no
  more than a bound of the mean. The next one goes on from there like a first one.

A weight above 2^bits counts as that, and the report counts it as clipped. Losses sum with the same
weights, so that the server also learns Σ a_k·F_k, like in every private round.

A session's context binds its devices to configuration and model, and not to the unit or to the
constants of the mean, which the simulation hands to every device alike. Where the server may lie,
they have to be bound too: a device with a finer unit than the others would outweigh them.

Precision. Let m devices have a mean weight of A units, and no clipping. Rounding moves each weight
by half a unit at most; as Σ a_k·(u_k − ū) = 0 for the mean ū of real weights, the masked mean
differs from it, in every coordinate, by at most

    (max_k |u_k − ū| + r) / (2·A)

where r is the resolution to which products of weight and update are rounded: one unit for real
weights, which bring bits enough of their own, and 2^-update_resolution_bits for whole ones, for
which the first term is none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.fl.strategies.base import (
    Device,
    Memory,
    ServerState,
    Visibility,
    check_cohort,
    expect_losses,
)
from deltafl.fl.strategies.private_delta_fl import Encoding, PrivateDeltaFL, PrivateRoundReport
from deltafl.fl.strategies.weighted_mean import Participant, WeightedMean
from deltafl.fl.vectors import Vector

WEIGHT_BITS: Final = 28
"""Bits of a real weight, once a round has told how large weights are."""

FIRST_WEIGHT_BITS: Final = 40
"""Bits of a real weight before."""

_GROWTH_BITS: Final = 4  # weights may grow 16-fold between two rounds
_MEAN_WEIGHT: Final = "masked.mean_weight"
"""log2 of the last round's mean weight, and 1 if that is but a bound, else 0."""


@dataclass(frozen=True, slots=True)
class MaskedMeanReport(PrivateRoundReport):
    """What the server learnt in a masked round of a weighted mean.

    `kept_weight` is Σ a_k in units, each weight rounded; `train_loss` is Σ a_k·F_k / Σ a_k.

    Attributes:
        weight_unit_log2: log2 of the unit; 0 for numbers of samples.
    """

    weight_unit_log2: int


@dataclass(frozen=True, slots=True)
class MaskedMean:
    """A weighted mean whose server sees nothing but sums.

    Attributes:
        mean: which mean.
        rounds: how rounds are run; its θ is 1. For real weights only `grid` and `update_clip` of
            its encoding count: weights have the bits that the module says, and products are rounded
            to whole units.
        expected_loss: about the mean loss of the initial model in nats, positive, for the unit of
            the first round; a model that knows nothing of C classes has ln C.

    Raises:
        ValueError: θ is not 1, or the loss is not positive.
    """

    mean: WeightedMean
    rounds: PrivateDeltaFL
    expected_loss: float = math.log(10)

    def __post_init__(self) -> None:
        if self.rounds.theta != 1:
            raise ValueError(f"theta={self.rounds.theta} of the rounds is not 1: all take part")
        if not (math.isfinite(self.expected_loss) and self.expected_loss > 0):
            raise ValueError(f"expected_loss={self.expected_loss} is not a positive number")

    @property
    def name(self) -> str:
        """The name in configurations and tables."""
        return f"private-{self.mean.name}"

    @property
    def server_sees(self) -> Visibility:
        """Nothing but sums over the cohort."""
        return Visibility.SUMS

    def init(self, model: Vector, num_devices: int) -> ServerState:
        """As in clear."""
        return self.mean.init(model, num_devices)

    def apply(
        self, state: ServerState, devices: Sequence[Device]
    ) -> tuple[ServerState, MaskedMeanReport]:
        """Play one round with this cohort.

        Raises:
            ValueError: the cohort is empty, or too small for the threat that a session must
                withstand.
            DivergenceError: a device's loss or update is NaN or infinite.
            PeerError: the session falls short of the devices' policy.
        """
        check_cohort(devices)
        rounds, unit = self._rounds(state, len(devices))
        scaled = [
            _ScaledDevice(
                Participant(device, state.model, self.mean.objective),
                self.mean,
                state.round,
                unit,
                rounds.encoding.max_weight,
            )
            for device in devices
        ]
        played, report = rounds.apply(replace(state, memory=MappingProxyType({})), scaled)
        known = {field.name: getattr(report, field.name) for field in fields(report)}
        memory = {**state.memory, **self._learnt(report, unit, rounds.encoding.max_weight)}
        following = replace(played, memory=MappingProxyType(memory))
        return following, MaskedMeanReport(**known, weight_unit_log2=unit)

    def check(self, model: Vector, cohort_size: int) -> None:
        """Find out before the first round whether rounds of this size can run.

        Raises:
            ConfigurationError: a sum would not fit the ring, or a setting is out of its range.
            UsageError: the cohort is too small for the threat that a session must withstand.
            PeerError: the sessions fall short of the devices' policy.
        """
        rounds, _ = self._rounds(ServerState(model), cohort_size)
        rounds.check(model, cohort_size)

    def _rounds(self, state: ServerState, cohort_size: int) -> tuple[PrivateDeltaFL, int]:
        """How the next round is run, and log2 of its unit."""
        if self.mean.has_whole_weights:
            return self.rounds, 0
        if _MEAN_WEIGHT in state.memory:
            log2_mean, is_bound = state.memory[_MEAN_WEIGHT].tolist()
        else:
            expected = self.mean.share(_ExpectedDevice(self.expected_loss), state.round)
            log2_mean, is_bound = expected.log_weight / math.log(2), True
        bits = FIRST_WEIGHT_BITS if is_bound else WEIGHT_BITS
        headroom = bits // 2 if is_bound else (cohort_size - 1).bit_length() + _GROWTH_BITS
        own = self.rounds.encoding
        # bracketed: nothing is searched for, but mm's sums would have to fit such weights as well
        encoding = Encoding(
            method="bracketed",
            grid=own.grid,
            max_weight=1 << bits,
            update_clip=own.update_clip,
            update_resolution_bits=0,
        )
        return replace(self.rounds, encoding=encoding), math.ceil(log2_mean) - (bits - headroom)

    def _learnt(self, report: PrivateRoundReport, unit: int, max_weight: int) -> Memory:
        """The mean weight, unless the round was given up or the weights are whole."""
        if self.mean.has_whole_weights or not report.kept_devices:
            return {}
        # zeros are weights below a half; a clipped weight alone brings the sum to the largest
        is_bound = not 0 < report.kept_weight < max_weight
        mean = max(report.kept_weight / report.kept_devices, 0.5)
        return {_MEAN_WEIGHT: np.array([math.log2(mean) + unit, is_bound], dtype=np.float64)}


@dataclass(frozen=True, slots=True)
class _ExpectedDevice:
    """A device with one sample, the expected loss and a short update."""

    expected_loss: float

    @property
    def num_samples(self) -> int:
        return 1

    def loss(self) -> float:
        return self.expected_loss

    def squared_norm(self) -> float:
        return 0.0


class _ScaledDevice:
    """A device that weighs a_k in whole units and contributes u_k."""

    def __init__(
        self,
        participant: Participant,
        mean: WeightedMean,
        round_index: int,
        unit: int,
        max_weight: int,
    ) -> None:
        self._participant = participant
        self._mean = mean
        self._round_index = round_index
        self._log_unit = unit * math.log(2)
        self._max_weight = max_weight
        self._weighed: tuple[int, float] | None = None

    @property
    def id(self) -> int:
        return self._participant.device.id

    @property
    def weight(self) -> int:
        """Whole units, at most one more than may be: the protocol clips that and counts it."""
        return self._weigh()[0]

    def expect_loss(self, model: Vector) -> None:
        """The weight is asked for together with the loss, and both may take a training."""
        del model  # the participant has it
        if not self._mean.has_whole_weights and self._participant.num_samples:
            self._participant.expect(loss=True)
        else:
            expect_losses([self._participant.device], self._participant.model)

    def expect_update(self, model: Vector, objective: LocalObjective = PLAIN) -> None:
        del model, objective  # the participant has its own
        if self._mean.has_whole_weights and self._participant.num_samples:
            self._participant.expect(loss=False)

    def loss(self, model: Vector) -> float:
        del model  # the participant has it
        return self._participant.loss()

    def update(self, model: Vector, objective: LocalObjective = PLAIN) -> Vector:
        del objective  # the participant has its own
        weight, step = self._weigh()
        if not weight:
            return np.zeros_like(model)
        update = self._participant.take_update()
        return np.multiply(update, step, dtype=np.float64).astype(np.float32)

    def _weigh(self) -> tuple[int, float]:
        """The weight and the step, worked out once: they may take a training."""
        if self._weighed is None:
            self._weighed = (0, 0.0)
            if self._participant.num_samples:
                share = self._mean.share(self._participant, self._round_index)
                if share.log_weight - self._log_unit > math.log(self._max_weight + 1):
                    weight = self._max_weight + 1
                else:
                    weight = round(share.weight * math.exp(share.log_scale - self._log_unit))
                self._weighed = (weight, share.step)
        return self._weighed
