"""The privacy that a run spends where all of its sums have noise: ε and δ of a device.

Neighbouring runs differ in the data of one device: the relation is replacement, for who takes part
is public. What counts is every sum of every round in which the device is invited, that of the
search and that of the update, also of rounds that were lost or interrupted, however far they came.
The devices of a population are dealt into cohorts that have nothing in common, and dealt again when
too few are left, so that nobody is invited more often than `participations` says. The server knows
whom it invites, so sampling amplifies nothing.

The sums are discrete Gaussian with a multiplier of z, which is 1/2z² of zero-concentrated privacy,
and τ of `deltafl.sim.run.accounting` beside it. That shares are clipped where they lie with
probability 2^-64 in all is not accounted for; nor are evaluations, which the simulator makes over
all devices and which no server of the protocol sees.

Source: Kairouz, Liu, Steinke 2021 (arXiv 2102.06387), theorem 1; Bun & Steinke 2016 for zCDP and
its composition; conversion to (ε, δ) by the library dp-accounting.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from deltafl.fl.strategies.base import Strategy
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.fl.strategies.server_optimizer import WithServerOptimizer
from deltafl.protocol.quantile.noisy import NoisyHistogram
from deltafl.protocol.update_noise import FIELDS, Sizes, UpdateNoise
from deltafl.sim.cohort.sampling import participations
from deltafl.sim.errors import RunError
from deltafl.sim.record.events import Event
from deltafl.sim.run.accounting import epsilon_of, excess, rho_of
from deltafl.sim.run.algorithms import build_strategy
from deltafl.sim.run.bound import rounded_up
from deltafl.sim.settings.config import RunConfig

SPENT: Final = ("epsilon", "delta")
"""Keys of a round's event that say what was spent after it."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has cost a device that was invited as often as any.

    Attributes:
        epsilon: ε, at δ.
        delta: δ.
        rho_search: ρ of the search of one round, in zero-concentrated differential privacy.
        rho_update: ρ of the sum of updates of one round.
        participations: Rounds in which a device was invited, at most.
    """

    epsilon: float
    delta: float
    rho_search: float
    rho_update: float
    participations: int

    @property
    def event(self) -> Event:
        """What the event of a round says of it."""
        return dict(zip(SPENT, (self.epsilon, self.delta), strict=True))


@dataclass(frozen=True, slots=True)
class Account:
    """What rounds cost; the same for all rounds of a run.

    Attributes:
        rho_search: As in `Spent`.
        rho_update: As in `Spent`.
        delta: δ.
        budget: Largest ε; 0 for no limit.
        num_devices: Devices that cohorts are drawn from.
        cohort_size: Devices of a cohort.
    """

    rho_search: float
    rho_update: float
    delta: float
    budget: float
    num_devices: int
    cohort_size: int

    def after(self, rounds: int) -> Spent:
        """What so many rounds cost, those that were lost included."""
        times = participations(rounds, self.num_devices, self.cohort_size)
        epsilon = _epsilon((self.rho_search + self.rho_update) * times, self.delta)
        return Spent(epsilon, self.delta, self.rho_search, self.rho_update, times)

    def check(self, rounds: int) -> None:
        """Check that the budget is enough for so many rounds.

        Raises:
            RunError: it is not.
        """
        if not self.budget or (needed := self.after(rounds).epsilon) <= self.budget:
            return
        fitting = self._affordable(rounds)
        instead = f"for {fitting} rounds: set federation.rounds = {fitting}, or raise"
        asked = f"{rounds} {'rounds' if rounds > 1 else 'round'}"
        raise RunError(
            f"{asked} would spend ε = {rounded_up(needed)} at δ = {self.delta:g}, and "
            f"dp.epsilon_budget is {self.budget:g}, which is "
            f"{f'enough {instead}' if fitting else 'not enough for a single round: raise'} "
            "dp.noise or dp.epsilon_budget"
        )

    def _affordable(self, rounds: int) -> int:
        """The most rounds that the budget is enough for, of fewer than `rounds`."""
        low, high = 0, rounds
        while high - low > 1:
            middle = (low + high) // 2
            if self.after(middle).epsilon <= self.budget:
                low = middle
            else:
                high = middle
        return low


def account_of(
    config: RunConfig, num_devices: int, update_length: int, own: Strategy | None = None
) -> Account | None:
    """The account of a run; None where its sums of updates have no noise.

    Args:
        config: The settings of one run.
        num_devices: Devices that cohorts are drawn from.
        update_length: Parameters of the model.
        own: The strategy, if it is one of the caller's own.

    Raises:
        ConfigError: the settings contradict each other.
        ConfigurationError: the settings are impossible.
    """
    if not config.dp.noise:
        return None
    strategy = build_strategy(config, own=own)
    if isinstance(strategy, WithServerOptimizer):  # what a server does with a sum costs nothing
        strategy = strategy.strategy
    if not isinstance(strategy, PrivateDeltaFL):
        raise TypeError(f"{type(strategy).__name__} has no noise: this is a bug")
    size = config.federation.cohort_size
    search, update = strategy.search_noise(size), strategy.update_noise(size, update_length)
    if update is None:
        raise TypeError("the sum of updates has no noise: this is a bug")
    return Account(
        rho_search=0.0 if search is None else rho_of(search, NoisyHistogram(search).num_bins),
        # A smaller cohort rounds its noise otherwise, up to what the multiplier alone gives.
        rho_update=max(
            rho_of_update(update, Sizes.of(update_length, size)),
            1 / (2 * float(config.dp.noise) ** 2),
        ),
        delta=config.dp.delta,
        budget=config.dp.epsilon_budget,
        num_devices=num_devices,
        cohort_size=size,
    )


def rho_of_update(noise: UpdateNoise, sizes: Sizes) -> float:
    """ρ of one sum of updates, under replacement of one device's contribution.

    Args:
        noise: The noise.
        sizes: Of the round.
    """
    shift = 1 / math.sqrt(noise.square_multiplier(sizes))  # in standard deviations, by L2
    num_numbers = sizes.length + len(FIELDS) - 1
    tau = excess(float(noise.deviation**2), noise.num_devices)
    # Half of ε² of theorem 1; the L1 distance is at most √d times the L2 distance.
    return (shift**2 + 2 * math.sqrt(num_numbers) * shift * tau + tau**2 * num_numbers) / 2


@lru_cache(maxsize=1024)
def _epsilon(rho: float, delta: float) -> float:
    return epsilon_of(rho, delta) if rho else 0.0
