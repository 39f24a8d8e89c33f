"""The one place that knows algorithms by name."""

import math
from fractions import Fraction

from fl.strategies.base import Strategy
from fl.strategies.delta_fl import DeltaFL
from fl.strategies.fedavg import FedAvg
from fl.strategies.private_delta_fl import Encoding, PrivateDeltaFL
from protocol.losses import LossGrid
from protocol.quantile.registry import NOISY
from protocol.sums import IdealSum, MaskedSum, Sessions, SumBackend
from protocol.weighting import Weighting
from secagg import Adversary, DevicePolicy, GraphKind, ThreatModel
from secagg.session import Observer
from sim.config import PrivacyConfig, QuantileConfig, RunConfig
from sim.config_io import show
from sim.errors import ConfigError
from sim.faults import Dropouts
from sim.seeds import Purpose, Seeds
from sim.survivors import SurvivorsOnly


def build_strategy(
    config: RunConfig, *, seeds: Seeds, dropouts: Dropouts, observer: Observer
) -> Strategy:
    """Build the strategy that `federation.algorithm` names.

    Args:
        config: the settings of one run.
        seeds: where the public seeds of the sessions' graphs come from.
        dropouts: who vanishes when.
        observer: told everything that passes the server in a masked run; other runs have no
            messages to show.

    Raises:
        ValueError: the settings contradict each other or the protocol's requirements.
        ConfigError: the settings of the search contradict each other.
    """
    match config.federation.algorithm:
        case "fedavg":
            return SurvivorsOnly(FedAvg(), dropouts)
        case "delta-fl":
            return SurvivorsOnly(DeltaFL(config.federation.theta), dropouts)
        case "private-delta-fl":
            return _private_delta_fl(config, seeds, dropouts, observer)
        case algorithm:
            raise ConfigError(f"federation.algorithm = {algorithm!r} is not there yet")


def build_backend(privacy: PrivacyConfig, observer: Observer) -> SumBackend:
    """Build what computes the secure sums.

    A device insists on the adversary, the share of colluding devices and the smallest cohort that
    the configuration names, and takes a sparse graph from an active server only where that is what
    the configuration asks for; for the rest it insists on the protocol's own limits.
    """
    adversary = Adversary(privacy.adversary)
    graph = None if privacy.graph == "auto" else GraphKind(privacy.graph)
    sessions = Sessions(
        policy=DevicePolicy(
            adversary=adversary,
            colluding_rate=privacy.colluding,
            min_cohort=privacy.min_cohort,
            sparse_if_active=graph is GraphKind.SPARSE,
        ),
        threat=ThreatModel(privacy.colluding, privacy.expected_dropout, adversary),
        graph=graph,
        min_cohort=privacy.min_cohort,
        signed=privacy.sessions_are_signed,
    )
    if privacy.backend == "ideal":
        return IdealSum(sessions)
    return MaskedSum(sessions, observer=observer)


def _private_delta_fl(
    config: RunConfig, seeds: Seeds, dropouts: Dropouts, observer: Observer
) -> Strategy:
    quantile, privacy = config.quantile, config.privacy
    return PrivateDeltaFL(
        theta=config.federation.theta,
        backend=build_backend(privacy, observer),
        encoding=Encoding(
            method=quantile.method,
            max_queries=quantile.max_queries or None,
            grid=LossGrid(quantile.resolution_bits, quantile.loss_bound),
            max_weight=privacy.max_weight,
            update_clip=privacy.update_clip,
            update_resolution_bits=privacy.update_resolution_bits,
            weighting=Weighting(quantile.weights),
            epsilon_ticks=_epsilon_ticks(quantile),
            min_search_cohort=quantile.min_cohort,
            noise=_noise(quantile),
        ),
        graph_seed=lambda index: seeds.digest(Purpose.GRAPH, round_index=index),
        warm_start=quantile.warm_start,
        dropouts=dropouts,
    )


def _noise(quantile: QuantileConfig) -> Fraction:
    """σ, exact."""
    noise = quantile.noise
    if quantile.method == NOISY and not noise:
        raise ConfigError(f"quantile.noise = 0: must be above 0 with quantile.method = {NOISY!r}")
    if quantile.method != NOISY and noise:
        raise ConfigError(
            f"quantile.noise = {show(noise)}: must be 0 with quantile.method = "
            f"{quantile.method!r}, for only {NOISY!r} adds noise"
        )
    return noise


def _epsilon_ticks(quantile: QuantileConfig) -> int:
    """ε in ticks. What is at most half a tick never acts, and is none."""
    epsilon = quantile.epsilon
    if epsilon > 0 and quantile.method != "mm":
        raise ConfigError(
            f"quantile.epsilon = {epsilon}: must be 0 with quantile.method = "
            f"{quantile.method!r}, for only 'mm' has an ε"
        )
    if epsilon > quantile.loss_bound:
        raise ConfigError(
            f"quantile.epsilon = {epsilon}: must be at most quantile.loss_bound = "
            f"{quantile.loss_bound}"
        )
    return round(math.ldexp(epsilon, quantile.resolution_bits))
