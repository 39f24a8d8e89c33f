"""Private Δ-FL: the same round as `delta_fl`, in which the server sees nothing but sums.

Source: arXiv 2002.11223, Algorithm 3 and appendix B.1. The devices find η together by secure sums,
filter themselves, and add up masked updates, weights and losses (`deltafl.protocol.round`). On the
loss grid the devices kept are exactly those of Algorithm 2, unless the search goes by rounded
weights or noisy ranks or is forbidden; updates agree up to fixed-point rounding.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from deltafl.fl.errors import DivergenceError
from deltafl.fl.strategies.base import (
    Device,
    RoundReport,
    ServerState,
    Visibility,
    check_cohort,
    expect_losses,
    expect_updates,
)
from deltafl.fl.superquantile import parse_theta, weighted_quantile
from deltafl.fl.vectors import Vector
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.errors import EncodingError
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.registry import quantile_method
from deltafl.protocol.quantile.search import Ended
from deltafl.protocol.round import RoundOutcome
from deltafl.protocol.sums import SumBackend
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import ClientId, Vanish

DropoutPlan: TypeAlias = Callable[[int, Sequence[int], int], Mapping[int, Vanish]]
"""(round index, device ids, number of slots) → when each vanishing device vanishes."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a round's numbers become integers, and how η is searched for.

    Attributes:
        method: the quantile method: "mm" (Algorithm 3), "bracketed", "histogram" or "noisy".
        max_queries: most sums that a search may take; None for the method's own limit.
        grid: on which losses are compared.
        max_weight: largest n_k; larger ones are clipped to it.
        update_clip: largest element of an update; larger ones are clipped to it.
        update_resolution_bits: n_k·Δ_k is summed in multiples of 2^-update_resolution_bits.
        weighting: what a device weighs in the search for η.
        epsilon_ticks: ε of "mm", in ticks of the grid; 0 changes nothing.
        min_search_cohort: fewest devices to search over; with fewer, everybody is kept.
        noise: σ of every count of "noisy", exact; 0 for the other methods.
    """

    method: str = "mm"
    max_queries: int | None = None
    grid: LossGrid = field(default_factory=LossGrid)
    max_weight: int = 8192
    update_clip: float = 2.0
    update_resolution_bits: int = 10
    weighting: Weighting = Weighting.SAMPLES
    epsilon_ticks: int = 0
    min_search_cohort: int = 0
    noise: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True)
class PrivateRoundReport(RoundReport):
    """What the server learnt in a private round.

    Attributes:
        half_width: δ of the threshold; a device takes part if F_k ≥ η − δ.
        num_queries: secure sums that the search for η took.
        certified: whether the filter is proved to be that of the exact weighted quantile.
        search_ended: why the search ended.
        dropped_by_stage: devices that were lost, by the stage at which they were.
        bytes_up_per_device: what a device of the cohort sent, on average; None without messages.
        clipped: numbers that devices had to clip.
        aborted: why the round was given up; None if it was not.
    """

    half_width: float | None
    num_queries: int
    certified: bool | None
    search_ended: str | None
    dropped_by_stage: dict[str, int]
    bytes_up_per_device: float | None
    clipped: int
    aborted: str | None


@dataclass(frozen=True, slots=True)
class PrivateDeltaFL:
    """Algorithm 3. θ = 1 is FedAvg under secure aggregation.

    Attributes:
        theta: the conformity level in (0, 1], the share of the weight that is kept at least.
        backend: runs the rounds, by the real protocol or by the ideal one.
        encoding: how numbers become integers.
        graph_seed: 32 public bytes for each round index.
        warm_start: whether a search starts from the last round's η.
        dropouts: which devices vanish, and when.

    Raises:
        ValueError: θ is not in (0, 1].
    """

    theta: Fraction
    backend: SumBackend
    encoding: Encoding
    graph_seed: Callable[[int], bytes]
    warm_start: bool = True
    dropouts: DropoutPlan = lambda _round, _ids, _slots: {}

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta", parse_theta(self.theta))

    @property
    def name(self) -> str:
        """The name in configurations and tables."""
        return "private-delta-fl"

    @property
    def server_sees(self) -> Visibility:
        """Nothing but sums over the cohort."""
        return Visibility.SUMS

    def init(self, model: Vector, num_devices: int) -> ServerState:
        """Start from `model`; there is nothing else to remember."""
        del num_devices
        return ServerState(model)

    def apply(
        self, state: ServerState, devices: Sequence[Device]
    ) -> tuple[ServerState, PrivateRoundReport]:
        """Play one round with this cohort.

        Raises:
            ValueError: the cohort is empty, or too small for the threat that a session must
                withstand.
            DivergenceError: a device's loss or update is NaN or infinite.
            PeerError: the session falls short of the devices' policy.
        """
        check_cohort(devices)
        config = self.round_config(state, len(devices))
        ids = [device.id for device in devices]
        plan = self.dropouts(state.round, ids, len(config.slots()))
        try:
            result = self.backend.run_round(
                config,
                state.model.astype("<f4").tobytes(),
                addressed_by_bytes(devices, [self.theta]),
                warm_start=self.warm_start_of(state),
                graph_seed=self.graph_seed(state.round),
                vanishing={ClientId(i): vanish for i, vanish in plan.items()},
            )
        except EncodingError as error:
            raise DivergenceError(f"{error}; training diverged, lower the learning rate") from None
        return self.follow(state, result.outcome, result.bytes_up)

    def follow(
        self, state: ServerState, outcome: RoundOutcome, bytes_up: float | None
    ) -> tuple[ServerState, PrivateRoundReport]:
        """Draw the conclusions of a round: the next state, and the report.

        Args:
            state: before the round.
            outcome: what the server has learnt.
            bytes_up: bytes that each device sent, on average; None where that is not known.
        """
        model = state.model
        if outcome.update is not None:
            model = (model + outcome.update).astype(np.float32)
        found = outcome.search
        eta = None
        if found is not None and self.theta < 1 and found.ended is not Ended.TOO_FEW:
            eta = found.eta
        report = _report(outcome, eta, bytes_up)
        following = ServerState(model, state.round + 1, state.eta if eta is None else eta)
        return following, report

    def check(self, model: Vector, cohort_size: int) -> None:
        """Find out before the first round whether rounds of this size can run.

        Raises:
            ConfigurationError: a sum would not fit the ring, or a setting is out of its range.
            UsageError: the cohort is too small for the threat that a session must withstand.
            PeerError: the sessions fall short of the devices' policy.
        """
        config = self.round_config(ServerState(model), cohort_size)
        self.backend.sessions.params(config, model.tobytes(), self.graph_seed(0))

    def search_noise(self, cohort_size: int) -> Noise | None:
        """The noise of a round's search; None where there is no search, or no noise in it.

        Raises:
            ConfigurationError: no device is certain to bring noise.
        """
        return None if self.theta == 1 else self._noise(cohort_size)

    def _noise(self, cohort_size: int) -> Noise | None:
        encoding = self.encoding
        if not encoding.noise:
            return None
        num_noisy = self.backend.sessions.num_noisy(cohort_size, encoding.min_search_cohort)
        return Noise(encoding.noise**2, num_noisy)

    def round_config(self, state: ServerState, cohort_size: int) -> RoundConfig:
        """The configuration of the next round, over a cohort of this size.

        Raises:
            ConfigurationError: a sum would not fit the ring, or a setting is out of its range.
        """
        encoding = self.encoding
        noise = self._noise(cohort_size)
        default_max_queries = quantile_method(encoding.method, noise=noise).default_max_queries
        return RoundConfig(
            round_index=state.round,
            cohort_size=cohort_size,
            theta=self.theta,
            method=encoding.method,
            num_cuts=None,
            max_queries=encoding.max_queries or default_max_queries,
            grid=encoding.grid,
            max_weight=encoding.max_weight,
            update_length=len(state.model),
            update_clip=encoding.update_clip,
            update_resolution_bits=encoding.update_resolution_bits,
            weighting=encoding.weighting,
            epsilon_ticks=encoding.epsilon_ticks,
            min_search_cohort=encoding.min_search_cohort,
            noise=noise,
        )

    def warm_start_of(self, state: ServerState) -> int | None:
        """The tick from which the next search starts; None to start afresh."""
        if not self.warm_start or state.eta is None:
            return None
        return self.encoding.grid.tick(state.eta)[0]


class Foresight:
    """Lets the devices that will pass the filter begin to train while the server still searches.

    A simulation knows all losses, so it knows whom the search will find. It is a guess all the same
    (a search may end early, or go by rounded weights) and changes no answer: who passes is for the
    devices to find out, and training that nobody asks for is dropped.

    Args:
        devices: the cohort.
        theta: the conformity level of each model in turn.
    """

    def __init__(self, devices: Sequence[Device], thetas: Sequence[Fraction]) -> None:
        self._devices = {device.id: device for device in devices}
        self._thetas = thetas
        self._losses: dict[bytes, dict[int, float]] = {}
        self._vectors: list[tuple[bytes, Vector]] = []

    def vector(self, model: bytes) -> Vector:
        """A model as learning takes it; for equal bytes the same array, not to be changed."""
        for known, vector in self._vectors:
            if known == model:
                return vector
        vector = np.frombuffer(model, dtype="<f4").astype(np.float32)
        self._vectors.append((model, vector))
        return vector

    def told(self, device: Device, model: bytes, loss: float) -> None:
        """A device has told its loss of a model. When all have, the tail is known."""
        known = self._losses.setdefault(model, {})
        known[device.id] = loss
        if len(known) < len(self._devices) or not all(map(math.isfinite, known.values())):
            return
        theta = self._thetas[list(self._losses).index(model)]
        weights = [self._devices[identity].weight for identity in known]
        if sum(weights) == 0:
            return
        eta = weighted_quantile(list(known.values()), weights, theta)
        tail = [self._devices[identity] for identity, loss in known.items() if loss >= eta]
        expect_updates(tail, self.vector(model))


@dataclass(frozen=True, slots=True)
class AddressedByBytes:
    """A device as the protocol knows it: it is shown a model's bytes."""

    device: Device
    foresight: Foresight

    @property
    def id(self) -> int:
        """Who it is."""
        return self.device.id

    @property
    def weight(self) -> int:
        """The aggregation weight n_k."""
        return self.device.weight

    def expect_loss(self, model: bytes) -> None:
        """See `WorksAhead`."""
        expect_losses([self.device], self.foresight.vector(model))

    def expect_update(self, model: bytes) -> None:
        """See `WorksAhead`."""
        expect_updates([self.device], self.foresight.vector(model))

    def loss(self, model: bytes) -> float:
        """Evaluate F_k of a model, little-endian float32."""
        loss = self.device.loss(self.foresight.vector(model))
        self.foresight.told(self.device, model, loss)
        return loss

    def update(self, model: bytes) -> Vector:
        """Train from a model, little-endian float32; the difference Δ_k."""
        return self.device.update(self.foresight.vector(model))


def addressed_by_bytes(
    devices: Sequence[Device], thetas: Sequence[Fraction]
) -> list[AddressedByBytes]:
    """A cohort as the protocol knows it.

    Args:
        devices: the cohort.
        thetas: the conformity level of each of the models that it will be shown.
    """
    foresight = Foresight(devices, thetas)
    return [AddressedByBytes(device, foresight) for device in devices]


def _report(outcome: RoundOutcome, eta: float | None, bytes_up: float | None) -> PrivateRoundReport:
    found = outcome.search
    dropped = Counter(drop.step.stage.name.lower() for drop in outcome.drops.values())
    return PrivateRoundReport(
        eta=eta,
        kept_devices=outcome.kept_devices,
        kept_weight=outcome.kept_weight,
        train_loss=outcome.train_loss,
        empty=outcome.aborted is None and outcome.kept_weight == 0,
        secure_sums=outcome.secure_sums,
        half_width=None if found is None or eta is None else found.half_width,
        num_queries=0 if found is None else found.num_queries,
        certified=None if found is None else found.certified,
        search_ended=None if found is None else str(found.ended),
        dropped_by_stage=dict(dropped),
        bytes_up_per_device=bytes_up,
        clipped=outcome.clipped,
        aborted=outcome.aborted,
    )
