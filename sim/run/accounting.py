"""What a run costs in privacy: ρ of a round, ε and δ of the run, where its sums have noise.

Where the search alone has noise (`privacy_of`), neighbouring runs differ in the losses (and
weights) of one device, in every round: the relation is replacement, for who takes part is public.
Such a device moves from one bin of a query to another, an L2 distance of √2. Every round is taken
to be one in which it is invited: no amplification by sampling is claimed, since the server knows
whom it invites. The sums of updates are then under no bound, and a run as a whole is not
differentially private; nor is a round that a server repeats under another index part of the account
of an honest server's run. A round that was lost counts in full, however far it had come.

Where all sums have noise (`account_of`), neighbouring runs differ in the data of one device. What
counts is every sum of every round in which the device is invited, that of the search and that of
the update, also of rounds that were lost or interrupted. The devices of a population are dealt into
cohorts that have nothing in common, and dealt again when too few are left, so that nobody is
invited more often than `participations` says. Devices on machines of their own are taken to be in
every round, and measure no models. A sum with a multiplier of z is 1/2z² of zero-concentrated
privacy.

Such a device trusts no account of the server's. It counts its own rounds, of which each costs no
more than what the least noise that its policy accepts allows (`held_to`).

The sum of h discrete Gaussians is not quite one, which costs τ, a term that is below 1e-15 for
shares of the variance that `deltafl.protocol.noise` sees to. That shares are clipped where they lie
with probability 2^-64 in all is not accounted for; nor are evaluations that the simulator makes
over all devices and which no server of the protocol sees.

Source: Kairouz, Liu, Steinke 2021 (arXiv 2102.06387), theorem 1; Bun & Steinke 2016 for zCDP and
its composition; conversion to (ε, δ) by the library dp-accounting.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, cast

from deltafl.fl.strategies.base import Strategy
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.fl.strategies.server_optimizer import without_optimizer
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import MOST_PARTICIPATIONS, RoundPolicy
from deltafl.protocol.quantile.noisy import NoisyHistogram
from deltafl.protocol.quantile.registry import NOISY
from deltafl.protocol.update_noise import FIELDS, Sizes, UpdateNoise
from deltafl.sim.cohort.sampling import participations
from deltafl.sim.errors import ConfigError, RunError
from deltafl.sim.record.events import Event
from deltafl.sim.run.algorithms import build_strategy
from deltafl.sim.settings.config import REMOTE, DPConfig, RunConfig

DELTA: Final = 1e-5
"""δ of a run's summary."""

_L1: Final = 2.0
_L2: Final = math.sqrt(2.0)
_DISTINCT_TERMS: Final = 200


@dataclass(frozen=True, slots=True)
class SearchPrivacy:
    """The privacy of the searches of a run, for a device that is in every round.

    Attributes:
        rho: ρ of one round, in zero-concentrated differential privacy; rounds add up.
        epsilon: ε of all rounds, at δ.
        delta: δ.
    """

    rho: float
    epsilon: float
    delta: float


def privacy_of(config: RunConfig, rounds: int, delta: float = DELTA) -> SearchPrivacy | None:
    """What the searches of a run cost; None where there are none, or none that are noisy.

    Args:
        config: The settings of one run.
        rounds: Rounds in which there was a search, or that many at most.
        delta: δ in (0, 1).

    Raises:
        ConfigError: the settings contradict each other.
        ConfigurationError: the settings are impossible.
    """
    if config.quantile.method != NOISY:
        return None
    strategy = without_optimizer(build_strategy(config))
    rho = _rho_of_search(strategy, config.federation.cohort_size)
    if rho is None:
        return None
    return SearchPrivacy(rho, epsilon_of(rho * rounds, delta), delta)


def _rho_of_search(strategy: Strategy, cohort_size: int) -> float | None:
    """ρ of the search of a round; None where there is none, or none that is noisy."""
    if not isinstance(strategy, PrivateDeltaFL):
        return None
    noise = strategy.search_noise(cohort_size)
    return None if noise is None else rho_of(noise, NoisyHistogram(noise).num_bins)


def rho_of(noise: Noise, num_bins: int) -> float:
    """ρ of one query, under replacement of one device's answer.

    Half of ε² of the source's theorem 1 in its form by the L1 distance.

    Args:
        noise: The noise of each bin.
        num_bins: Bins of the query.
    """
    shift = 1 / math.sqrt(noise.variance)  # by one device, in standard deviations
    tau = excess(float(noise.share_variance), noise.num_devices)
    return ((_L2 * shift) ** 2 + 2 * _L1 * shift * tau + tau**2 * num_bins) / 2


def excess(share_variance: float, num_devices: int) -> float:
    """τ: how far a sum of discrete Gaussians is from one of the same variance, at most.

    10·Σ exp(-2π²·s²·k/(k+1)), k from 1 to h - 1, of which all but the first terms are about equal.

    Args:
        share_variance: s² of one of them, in steps squared; at least 1/2 for the bound to hold.
        num_devices: h.
    """

    def term(k: int) -> float:
        return math.exp(-2 * math.pi**2 * share_variance * k / (k + 1))

    last = min(num_devices - 1, _DISTINCT_TERMS)
    rest = num_devices - 1 - last
    return 10 * (math.fsum(map(term, range(1, last + 1))) + rest * term(last))


def epsilon_of(rho: float, delta: float) -> float:
    """ε at δ of a mechanism of ρ-zCDP.

    Args:
        rho: ρ ≥ 0, of all rounds together.
        delta: δ in (0, 1).
    """
    # Imported here: it takes longer to import than most commands take, and few need it.
    from dp_accounting import ZCDpEvent  # type: ignore[import-untyped]
    from dp_accounting.rdp import RdpAccountant  # type: ignore[import-untyped]

    accountant = RdpAccountant()
    accountant.compose(ZCDpEvent(rho=rho))
    return float(accountant.get_epsilon(delta))


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


def spent_by(runs: Sequence[Spent]) -> float:
    """ε of several runs over the same devices together, at the δ of the first."""
    if len(runs) == 1:
        return runs[0].epsilon
    rho = sum(one.participations * (one.rho_search + one.rho_update) for one in runs)
    return _epsilon(rho, runs[0].delta)


@dataclass(frozen=True, slots=True)
class Account:
    """What rounds cost; the same for all rounds of a run.

    Attributes:
        rho_search: As in `Spent`.
        rho_update: As in `Spent`.
        delta: δ.
        budget: Largest ε; 0 for no limit.
        num_devices: Devices that are dealt into cohorts; as many as a cohort if all may be in each.
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
        fitting = self.affordable(rounds)
        instead = f"for {fitting} rounds: set federation.rounds = {fitting}, or raise"
        asked = f"{rounds} {'rounds' if rounds > 1 else 'round'}"
        raise RunError(
            f"{asked} would spend ε = {rounded_up(needed)} at δ = {self.delta:g}, and "
            f"dp.epsilon_budget is {self.budget:g}, which is "
            f"{f'enough {instead}' if fitting else 'not enough for a single round: raise'} "
            "dp.noise or dp.epsilon_budget"
        )

    def affordable(self, rounds: int) -> int:
        """The most rounds that the budget is enough for, of fewer than `rounds`."""
        return bisect_right(range(1, rounds), self.budget, key=lambda n: self.after(n).epsilon)


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
    # no other strategy is accepted with noise
    strategy = cast("PrivateDeltaFL", without_optimizer(build_strategy(config, own=own)))
    size, is_remote = config.federation.cohort_size, config.federation.devices == REMOTE
    update = cast("UpdateNoise", strategy.update_noise(size, update_length))
    return Account(
        rho_search=_rho_of_search(strategy, size) or 0.0,
        # A smaller cohort rounds its noise otherwise, up to what the multiplier alone gives.
        rho_update=max(
            rho_of_update(update, Sizes.of(update_length, size)),
            1 / (2 * float(config.dp.noise) ** 2),
        ),
        delta=config.dp.delta,
        budget=config.dp.epsilon_budget,
        num_devices=size if is_remote else num_devices,
        cohort_size=size,
    )


def held_to(policy: RoundPolicy, config: RunConfig) -> tuple[RoundPolicy, Account | None]:
    """What a device on a machine of its own accepts where its owner's settings ask for noise.

    It accepts no sum with less noise than they say, no search if their θ is 1, and no more rounds
    than `dp.epsilon_budget` is enough for.

    Args:
        policy: without regard to noise.
        config: the owner's settings.

    Returns:
        The policy, and what a round costs at the least noise; the same policy and None without
        noise.

    Raises:
        ConfigError: the budget is not enough for a single round.
    """
    dp, sigma = config.dp, config.quantile.noise
    if not dp.noise:
        return policy, None
    searches = min(config.federation.thetas) < 1
    rho_search = float(1 / sigma**2) if searches else 0.0
    rho_update = float(1 / (2 * dp.noise**2))
    account = Account(rho_search, rho_update, dp.delta, dp.epsilon_budget, 1, 1)
    most = policy.max_participations or MOST_PARTICIPATIONS
    if dp.epsilon_budget:
        most = account.affordable(most + 1)
    if not most:
        raise ConfigError(
            f"dp.epsilon_budget = {dp.epsilon_budget:g}: a single round costs ε = "
            f"{rounded_up(account.after(1).epsilon)} at δ = {dp.delta:g}; raise it, or dp.noise"
        )
    held = replace(
        policy,
        max_participations=most,
        min_noise=max(policy.min_noise, sigma),
        min_update_noise=max(policy.min_update_noise, dp.noise),
    )
    if not searches:
        held = replace(held, max_pivots=0, max_pivots_if_equal=0)
    return held, account


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


def note_on_delta(dp: DPConfig, num_devices: int) -> str | None:
    """What to say of a δ that promises next to nothing; None if it does not, or nothing is noisy.

    Args:
        dp: the settings.
        num_devices: how many train, or that many at least.

    Returns:
        A sentence that names a δ below which there is nothing to say.
    """
    if not dp.noise or dp.delta * num_devices < 1:
        return None
    return (
        f"dp.delta = {dp.delta:g}: should be far below 1/{num_devices} ({1 / num_devices:.1g}), "
        "one over the number of training devices; a run that shows each device's data with "
        "probability δ would keep the same promise"
    )


def rounded_up(epsilon: float) -> str:
    """An upper bound to two decimals, never too low.

    >>> rounded_up(2.981), rounded_up(2.5), rounded_up(1234.5), rounded_up(math.inf)
    ('2.99', '2.50', '1,234.50', 'inf')
    """
    return _rounded(epsilon, math.ceil)


def rounded_down(epsilon: float) -> str:
    """A lower bound to two decimals, never too high.

    >>> rounded_down(0.567), rounded_down(5.0)
    ('0.56', '5.00')
    """
    return _rounded(epsilon, math.floor)


def _rounded(epsilon: float, towards: Callable[[float], int]) -> str:
    return f"{towards(epsilon * 100) / 100:,.2f}" if math.isfinite(epsilon) else str(epsilon)
