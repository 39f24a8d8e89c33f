"""Build the strategy of a run at every conformity level that its settings name."""

from dataclasses import replace

from deltafl.fl.strategies.base import Strategy
from deltafl.fl.strategies.levels import LevelsInClear, PrivateLevels
from deltafl.sim.run.algorithms import build_strategy, dropouts_of
from deltafl.sim.settings.config import RunConfig


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
