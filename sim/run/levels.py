"""Build the strategy of a run at every conformity level that its settings name."""

from dataclasses import replace

from deltafl.fl.strategies.base import Strategy
from deltafl.fl.strategies.levels import LevelsInClear, PrivateLevels
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.sim.errors import ConfigError
from deltafl.sim.run.algorithms import build_strategy, dropouts_of
from deltafl.sim.settings.config import WITH_LEVELS, RunConfig
from deltafl.sim.settings.config_io import show


def strategy_of(config: RunConfig, own: Strategy | None = None) -> Strategy:
    """Build the strategy of a run: its algorithm at every conformity level.

    Args:
        config: settings of one run.
        own: the strategy, if it is one of the caller's own.

    Raises:
        ValueError: the settings contradict each other or the protocol's requirements.
        ConfigError: the settings contradict each other.
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
    if federation.levels and federation.algorithm not in WITH_LEVELS:
        raise ConfigError(
            f"federation.levels = {show(federation.levels)}: must be [] with federation.algorithm "
            f"= {federation.algorithm!r}, because only {' and '.join(WITH_LEVELS)} train levels"
        )
    if len(built) == 1:
        return built[0]
    if config.privacy.truth:
        raise ConfigError(
            "privacy.truth = true: must be false with federation.levels, because truth.bin stores "
            "only one loss and one update per device and round"
        )
    if not federation.is_private:
        return LevelsInClear(federation.thetas, tuple(built))
    private = tuple(level for level in built if isinstance(level, PrivateDeltaFL))
    if len(private) != len(built):
        raise ConfigError(
            f"federation.levels = {show(federation.levels)}: must be [] with "
            f"strategy.server_optimizer = {config.strategy.server_optimizer!r}"
        )
    return PrivateLevels(private)
