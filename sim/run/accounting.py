"""What the noisy search of a run costs in privacy: ρ of a round, ε and δ of the run.

Neighbouring runs differ in the losses (and weights) of one device, in every round: the relation is
replacement, for who takes part is public. Such a device moves from one bin of a query to another,
an L2 distance of √2. Every round is taken to be one in which it is invited: no amplification by
sampling is claimed, since the server knows whom it invites.

Only the answers to queries of the search are accounted for here. Unless updates have noise
(`deltafl.sim.run.spending`), their sums are under no bound, and a run as a whole is not
differentially private; nor is a round
that a server repeats under another index part of the account of an honest server's run. A round
that was lost counts in full, however far it had come.

The sum of h discrete Gaussians is not quite one, which costs τ, a term that is below 1e-15 for
shares of the variance that `deltafl.protocol.noise` sees to. That shares are clipped where they lie
with probability 2^-64 in all is not accounted for.

Source: Kairouz, Liu, Steinke 2021 (arXiv 2102.06387), theorem 1; Bun & Steinke 2016 for zCDP and
its composition; conversion to (ε, δ) by the library dp-accounting.
"""

import math
from dataclasses import dataclass
from typing import Final

from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.noisy import NoisyHistogram
from deltafl.protocol.quantile.registry import NOISY
from deltafl.sim.run.algorithms import build_strategy
from deltafl.sim.settings.config import RunConfig

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
    strategy = build_strategy(config)
    if not isinstance(strategy, PrivateDeltaFL):
        return None
    noise = strategy.search_noise(config.federation.cohort_size)
    if noise is None:
        return None
    rho = rho_of(noise, NoisyHistogram(noise).num_bins)
    return SearchPrivacy(rho, epsilon_of(rho * rounds, delta), delta)


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
