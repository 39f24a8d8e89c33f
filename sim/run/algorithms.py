"""Build the algorithm that the settings name, and the object that runs its secure rounds."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from deltafl.fl.cohort import Weighing
from deltafl.fl.registry import DELTA_FL, OTHER_STRATEGIES, OWN, SERVER_OPTIMIZERS, WEIGHTED_MEANS
from deltafl.fl.strategies.base import Strategy, TrainingState
from deltafl.fl.strategies.choices import DeviceWeights, Response
from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.geometric_median import Robustly
from deltafl.fl.strategies.levels import LevelsInClear, PrivateLevels
from deltafl.fl.strategies.masked import FIRST_WEIGHT_BITS, InUnits, MaskedMean
from deltafl.fl.strategies.norm_clipping import NormClipping
from deltafl.fl.strategies.private_delta_fl import Encoding, PrivateDeltaFL
from deltafl.fl.strategies.robust_mean import Robust, RobustMean
from deltafl.fl.strategies.server_optimizer import (
    ServerOptimizer,
    Sgd,
    WithServerOptimizer,
    without_optimizer,
)
from deltafl.fl.strategies.weighted_mean import WeightedMean
from deltafl.protocol.anonymity import expected_tail
from deltafl.protocol.configuration import UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.mm import MajoriseMinimise
from deltafl.protocol.quantile.registry import NOISY, default_max_queries, quantile_method
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.sessions import Sessions
from deltafl.protocol.update_noise import Sizes, UpdateNoise
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import Adversary, GraphKind, SessionParams, ThreatModel
from deltafl.secagg.session import Observer
from deltafl.sim.cohort.dropouts import Dropouts, WithDropouts, nobody, seeded_dropouts
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.errors import ConfigError
from deltafl.sim.settings.config import (
    ALGORITHMS,
    PRIVATE,
    REMOTE,
    Aggregation,
    PrivacyConfig,
    QuantileConfig,
    RunConfig,
    Search,
    Sums,
    Votes,
)

_NONE_AT_0: Final = {"max_participations", "max_rounds_per_day"}  # limits that are none at 0

if TYPE_CHECKING:  # loads torch, which reading the settings does not need
    from deltafl.sim.cohort.simulated import SecureRounds


def build_strategy(
    config: RunConfig, dropouts: Dropouts = nobody, own: Strategy | None = None
) -> Strategy:
    """Build the strategy that `federation.algorithm` names.

    Args:
        config: the settings of one run.
        dropouts: which devices drop out when, for algorithms without secure aggregation.
        own: the strategy, if it is one of the caller's own; to be masked, a `WeightedMean`.

    Raises:
        ValueError: the settings contradict each other or the protocol's requirements.
        ConfigError: the settings of the search contradict each other.
    """
    strategy = _strategy(config, dropouts, own)
    optimizer = server_optimizer_of(config)
    return strategy if optimizer is None else WithServerOptimizer(strategy, optimizer)


def strategy_of(config: RunConfig, own: Strategy | None = None) -> Strategy:
    """Build the strategy of a run: its algorithm at every conformity level.

    Args:
        config: settings of one run.
        own: the strategy, if it is one of the caller's own.

    Raises:
        ValueError: the settings contradict each other or the protocol's requirements.
        ConfigError: the strategy that was passed does not fit the settings.
    """
    federation = config.federation
    built = [
        build_strategy(
            replace(config, federation=replace(federation, theta=theta, levels=())),
            dropouts_of(config),
            own,
        )
        for theta in federation.thetas
    ]
    if len(built) == 1:
        return built[0]
    kind: type[LevelsInClear] = PrivateLevels if federation.is_private else LevelsInClear
    return kind(federation.thetas, tuple(built))


def _strategy(config: RunConfig, dropouts: Dropouts, own: Strategy | None) -> Strategy:
    algorithm, theta = config.federation.algorithm, config.federation.theta
    if algorithm == PRIVATE + DELTA_FL:
        return _private_rounds(config, theta, verified=_is_verified(config))
    if config.federation.is_private:
        mean = _mean(algorithm.removeprefix(PRIVATE), config, own)
        return MaskedMean(mean, _private_rounds(config, Fraction(1), verified=False))
    return WithDropouts(_in_clear(algorithm, config, own), dropouts)


def _in_clear(algorithm: str, config: RunConfig, own: Strategy | None) -> Strategy:
    if algorithm == OWN:
        return _passed(own)
    robustly = _robustly(config)
    if algorithm in OTHER_STRATEGIES:
        strategy = OTHER_STRATEGIES[algorithm].build(_constants(config))
        return replace(strategy, robustly=robustly) if isinstance(strategy, DeltaFL) else strategy
    mean = _weighted_mean(algorithm, config)
    return mean if robustly is None else RobustMean(mean, robustly)


def _robustly(config: RunConfig) -> Robust | None:
    """How updates are aggregated robustly; None if their mean is taken."""
    strategy = config.strategy
    if strategy.aggregation == Aggregation.RFA:
        return Robustly(strategy.rfa_passes, strategy.rfa_smoothing)
    return _clipping(config)


def _clipping(config: RunConfig) -> NormClipping | None:
    """How updates are clipped, in clear or by secure sums; None if they are not."""
    strategy = config.strategy
    if strategy.aggregation != Aggregation.CLIPPED:
        return None
    return NormClipping(strategy.clipped_quantile, strategy.clipped_rate, strategy.clipped_radius)


def _passed(own: Strategy | None) -> Strategy:
    """The caller's own strategy.

    Raises:
        ConfigError: there is none.
    """
    if own is None:
        raise ConfigError(
            f"federation.algorithm = {OWN!r}: the strategy is one that a program has passed to "
            "`deltafl.train`; pass it again, or name it (own.strategy = 'package.module:name')"
        )
    return own


def _mean(name: str, config: RunConfig, own: Strategy | None) -> WeightedMean:
    """What is masked.

    Raises:
        ConfigError: it is a strategy that cannot be.
    """
    if name != OWN:
        return _weighted_mean(name, config)
    strategy = _passed(own)
    if not isinstance(strategy, WeightedMean):
        raise ConfigError(
            f"strategy {type(strategy).__name__!r} is no WeightedMean, and only these can be by "
            "secure sums: a device must be able to say by itself what it contributes to a mean"
        )
    return strategy


def _weighted_mean(algorithm: str, config: RunConfig) -> WeightedMean:
    if algorithm not in WEIGHTED_MEANS:
        raise ValueError(f"federation.algorithm = {algorithm!r}: must be one of {ALGORITHMS}")
    return WEIGHTED_MEANS[algorithm].build(_constants(config))


def _constants(config: RunConfig) -> Mapping[str, object]:
    """The constants that strategies are built from, by their names in `deltafl.fl.registry`."""
    return {
        **_of_section(config.strategy),
        "weighting": DeviceWeights(config.strategy.weighting),
        "response": Response(config.strategy.response),
        "theta": config.federation.theta,
        "learning_rate": config.training.schedule.rate,
    }


def _of_section(section: Any) -> dict[str, Any]:  # noqa: ANN401 (of the settings)
    return {field.name: getattr(section, field.name) for field in fields(section)}


def server_optimizer_of(config: RunConfig) -> ServerOptimizer | None:
    """The server's optimizer; None if the server uses the algorithm's model unchanged."""
    strategy = config.strategy
    optimizer = SERVER_OPTIMIZERS[strategy.server_optimizer].build(_of_section(strategy))
    return None if optimizer == Sgd(1.0) else optimizer


def sessions_of(config: RunConfig) -> Sessions:
    """How the sessions of secure rounds are set up.

    A device insists on what the settings say: on the adversary, the share of colluding devices, the
    smallest cohort and the smallest tail, and on the limits of `policy_of`. In everything else it
    insists on the protocol's own limits.
    """
    privacy = config.privacy
    return Sessions(
        policy=policy_of(config),
        threat=ThreatModel(
            privacy.colluding, privacy.expected_dropout, Adversary(privacy.adversary)
        ),
        graph=_graph(config),
        min_cohort=privacy.min_cohort,
        signed=privacy.sessions_are_signed,
    )


def of_few(devices: int) -> dict[str, dict[str, Any]]:
    """What settings are by default where there are few devices: a sum is over all of them.

    Nothing is lowered below the number of devices, nor below the two that a sum takes.

    Args:
        devices: how many there are, by whoever's settings they are: the server's list, the device's
            own copy of it, or the data. Nobody takes another's word for it.
    """
    return {"privacy": {"min_cohort": max(2, min(devices, PrivacyConfig().min_cohort))}}


def policy_of(config: RunConfig, *, own: bool = False) -> RoundPolicy:
    """The limits of a run's devices, by its settings; see `sessions_of`.

    Simulated devices accept what the other settings ask for, unless the section `policy` says
    otherwise. Devices on machines of their own do not: a server may ask for anything. What the
    section `policy` leaves out is then as the protocol has it.
    With ideal sums, which hide nothing, θ may keep fewer than `privacy.min_honest_tail`.

    Args:
        config: the settings of a run, or of a device's owner.
        own: whether they are those of a device's owner.
    """
    if own or config.federation.devices == REMOTE:
        return _policy(config, {})
    policy, federation = _policy(config, _asked_limits(config)), config.federation
    size, least = federation.cohort_size, policy.min_tail(federation.cohort_size)
    if config.privacy.sums == Sums.IDEAL and expected_tail(min(federation.thetas), size) < least:
        return replace(policy, min_honest_tail=0)
    return policy


def _policy(config: RunConfig, asked: Mapping[str, float | Fraction]) -> RoundPolicy:
    """The limits of devices that accept so much, even if it is more than usual."""
    privacy, usual = config.privacy, RoundPolicy()
    limits: dict[str, Any] = {}
    for name, value in asked.items():
        looser = max if name.startswith("max_") else min
        limits[name] = looser(value, getattr(usual, name))
    given = _of_section(config.policy)
    limits |= {name: limit for name, limit in given.items() if limit is not None}
    name = config.federation.algorithm.removeprefix(PRIVATE)
    is_real = name in WEIGHTED_MEANS and not _weighted_mean(name, config).has_whole_weights
    # of a strategy of the caller's own, the settings do not say what its weights are
    if is_real or name == OWN:
        limits |= {"min_update_resolution_bits": 0, "max_weight": 1 << FIRST_WEIGHT_BITS}
    return RoundPolicy(
        adversary=Adversary(privacy.adversary),
        colluding_rate=privacy.colluding,
        dropout_rate=privacy.expected_dropout,
        min_cohort=privacy.min_cohort,
        min_honest_tail=privacy.min_honest_tail,
        **limits,
    )


def _asked_limits(config: RunConfig) -> dict[str, float | Fraction]:
    """The limits that the rounds of a run come up to, by its settings."""
    quantile, privacy = config.quantile, config.privacy
    asked: dict[str, float | Fraction] = {
        "max_levels": len(config.federation.thetas),
        "max_loss_resolution_bits": quantile.resolution_bits,
        "max_loss_bound": quantile.loss_bound,
        "max_weight": privacy.max_weight,
        "min_update_resolution_bits": privacy.update_resolution_bits,
        "min_update_clip": privacy.update_clip,
        "max_update_clip": privacy.update_clip,
    }
    if _searches(config):
        noise = Noise(Fraction(1), 1) if quantile.method == NOISY else None  # however much
        method = quantile_method(quantile.method, noise=noise)
        queries = (quantile.max_queries or method.default_max_queries) * asked["max_levels"]
        pivots = queries * method.num_pivots
        is_equal = quantile.weights == Weighting.EQUAL
        asked["max_pivots_if_equal" if is_equal else "max_pivots"] = pivots
        if isinstance(method, MajoriseMinimise):
            fewest = max(privacy.min_cohort, quantile.min_cohort)
            asked["max_mm_pivots_per_device"] = Fraction(pivots) / fewest
    if config.dp.noise:
        asked["max_update_norm"] = config.dp.clip
    return asked


def looser_limits(policy: RoundPolicy) -> tuple[str, ...]:
    """The limits of a policy that are looser than the usual ones, each with the usual value."""
    usual = RoundPolicy()
    values = {
        one.name: (getattr(policy, one.name), getattr(usual, one.name)) for one in fields(usual)
    }
    return tuple(
        f"{name}={value} (usually {known})"
        for name, (value, known) in values.items()
        if _looseness(name, value) > _looseness(name, known)
    )


def _looseness(name: str, value: object) -> float | Fraction:
    """The more a limit allows, the larger; the same for all values of what is no limit."""
    if not isinstance(value, int | float | Fraction):
        return 0
    if name in _NONE_AT_0 and value == 0:
        return math.inf
    if name.startswith("min_") or name == "colluding_rate":
        return -value
    return value if name.startswith("max_") or isinstance(value, bool) else 0


def keeps_enough(config: RunConfig) -> bool:
    """Whether θ keeps enough of a cohort to hide a device, at least if nobody colludes."""
    federation, privacy = config.federation, config.privacy
    if federation.algorithm != PRIVATE + DELTA_FL or privacy.sums == Sums.IDEAL:
        return True
    kept = expected_tail(min(federation.thetas), federation.cohort_size)
    return kept >= privacy.min_honest_tail


def _is_verified(config: RunConfig) -> bool:
    """Whether devices check a search, if there is one."""
    search = config.quantile.search
    return search == Search.VERIFIED or (
        search == Search.AUTO and config.privacy.adversary == "active"
    )


def _graph(config: RunConfig) -> GraphKind | None:
    """The graph of sessions that the settings ask for; None if the threat model decides."""
    if config.privacy.graph in tuple(GraphKind):
        return GraphKind(config.privacy.graph)
    checked = _searches(config) and config.quantile.search == Search.VERIFIED
    return GraphKind.COMPLETE if checked else None


def _searches(config: RunConfig) -> bool:
    """Whether the algorithm of a run searches for a threshold."""
    federation = config.federation
    return federation.algorithm == PRIVATE + DELTA_FL and min(federation.thetas) < 1


def weighing_of(
    config: RunConfig, round_index: int, unit: int, max_weight: int, own: Strategy | None = None
) -> Weighing | None:
    """What a device contributes in a private round; None for n_k and Δ_k.

    Args:
        config: the settings of one run.
        round_index: the round, counted from 0.
        unit: log2 of the unit of weights.
        max_weight: the largest weight that counts in full.
        own: the strategy, if it is one of the caller's own.

    Raises:
        ConfigError: the algorithm is not private.
        ValueError: the settings contradict each other.
    """
    algorithm = config.federation.algorithm
    if not config.federation.is_private:
        raise ConfigError(f"federation.algorithm = {algorithm!r}: must be a private one")
    if algorithm == PRIVATE + DELTA_FL:
        return None
    mean = _mean(algorithm.removeprefix(PRIVATE), config, own)
    return InUnits(mean, round_index, unit, max_weight)


def dropouts_of(config: RunConfig) -> Dropouts:
    """Which devices drop out when, in a run."""
    return seeded_dropouts(
        Seeds(config.experiment.seed),
        config.faults.dropout,
        signed=config.privacy.sessions_are_signed,
    )


def build_rounds(config: RunConfig, observer: Observer) -> "SecureRounds":
    """Build the object that runs secure rounds.

    Args:
        config: the settings of one run.
        observer: receives everything that passes through the server; ideal rounds have no messages.
    """
    # imported here: they load torch, which takes longer than `deltafl plan`
    from deltafl.sim.cohort.ideal import IdealRounds
    from deltafl.sim.cohort.masked import MaskedRounds
    from deltafl.sim.cohort.masks import masks_of_this_machine
    from deltafl.sim.cohort.shared import simulated

    sessions = sessions_of(config)
    if config.privacy.sums == Sums.IDEAL:
        return IdealRounds(sessions)
    masks = masks_of_this_machine()
    return MaskedRounds(
        sessions, observer=observer, primitives=lambda: simulated(masks.add, masks.share_up_to)
    )


def check_session(
    config: RunConfig, strategy: Strategy, state: TrainingState, cohort_size: int
) -> SessionParams | None:
    """Check that the strategy can play its next round over a cohort of this size.

    Returns:
        The parameters of its session; None for strategies in clear, which always can.

    Raises:
        ProtocolError: a sum would not fit the ring, or a setting is out of its range.
        SecAggError: no session withstands the threat with so few devices, or falls short of the
            devices' policy.
    """
    levels = levels_of(strategy, state, cohort_size)
    if levels is None:
        return None
    seed = Seeds(config.experiment.seed).digest(Purpose.GRAPH, round_index=state.round)
    return sessions_of(config).params_of_levels(levels, state.model.tobytes(), seed)


def levels_of(strategy: Strategy, state: TrainingState, cohort_size: int) -> Levels | None:
    """What a strategy announces in its next round, over a cohort of this size; None in clear.

    Raises:
        ProtocolError: as `check_session`.
    """
    strategy = without_optimizer(strategy)
    if isinstance(strategy, PrivateDeltaFL | PrivateLevels | MaskedMean):
        return strategy.levels_for(state, cohort_size)
    return None


def _private_rounds(config: RunConfig, theta: Fraction, *, verified: bool) -> PrivateDeltaFL:
    quantile, privacy = config.quantile, config.privacy
    sigma, sessions = quantile.noise, sessions_of(config)

    def noise(cohort_size: int) -> Noise | None:
        if not sigma:
            return None
        return Noise(sigma**2, sessions.num_noisy(cohort_size, quantile.min_cohort))

    update = UpdateParams(privacy.update_clip, privacy.update_resolution_bits, privacy.max_weight)
    search = _search_params(quantile, verified=verified)
    encoding = Encoding(quantile.method, search, update)
    update_noise, clipping = _update_noise(config, sessions), _clipping(config)
    return PrivateDeltaFL(
        theta, encoding, noise, quantile.warm_start, clipping, update_noise, sessions.min_tail
    )


def _search_params(quantile: QuantileConfig, *, verified: bool) -> SearchParams:
    return SearchParams(
        max_queries=quantile.max_queries or default_max_queries(quantile.method),
        grid=LossGrid(quantile.resolution_bits, quantile.loss_bound),
        weighting=Weighting(quantile.weights),
        epsilon_ticks=round(math.ldexp(quantile.epsilon, quantile.resolution_bits)),
        min_cohort=quantile.min_cohort,
        verified=verified,
        proved=quantile.votes == Votes.PROVED,
    )


def _update_noise(
    config: RunConfig, sessions: Sessions
) -> Callable[[int, int], UpdateNoise | None]:
    """From the cohort size and the number of parameters to the noise of a sum of updates."""
    dp = config.dp

    def noise(cohort_size: int, update_length: int) -> UpdateNoise | None:
        if not dp.noise:
            return None
        # A sum of updates may be over fewer devices than the search was.
        num_devices = sessions.num_noisy(cohort_size, 0)
        sizes = Sizes.of(update_length, cohort_size)
        return UpdateNoise.at_least(dp.noise, dp.clip, num_devices, sizes)

    return noise
