"""What a run's settings say that its server must announce in every round."""

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np

from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.fl.strategies.server_optimizer import WithServerOptimizer
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.levels import Levels
from deltafl.sim.errors import ConfigError
from deltafl.sim.run.algorithms import build_strategy
from deltafl.sim.settings.config import RunConfig


def departures(
    config: RunConfig, round_number: int, announced: Levels, signed: bool
) -> Iterator[str]:
    """Say where an announcement is not what the settings say; only of Algorithm 3.

    The size of the cohort is not compared, nor where a search starts if it may start warm.

    Args:
        config: The run's settings.
        round_number: The round, counted from 1.
        announced: What was announced for it.
        signed: Whether its session is signed.
    """
    if config.privacy.sessions_are_signed and not signed:
        yield "the session is not signed, and the run's settings say that all are"
    settled = _settled(config, round_number, announced.common)
    if settled is None:
        return
    said, meant = (
        ", ".join(str(one.theta) for one in levels.rounds) for levels in (announced, settled)
    )
    if said != meant:
        yield f"θ = {said} was announced, and the run's settings say {meant}"
        return
    for one, wanted in zip(announced.rounds, settled.rounds, strict=True):
        if one.warm_start is not None and not config.quantile.warm_start:
            yield "a search starts warm, and the run's settings say that none does"
            return
        if replace(one, warm_start=None) != wanted:
            yield f"other settings were announced than the run's: {_named(one, wanted)}"
            return


def _settled(config: RunConfig, round_number: int, common: RoundConfig) -> Levels | None:
    """What the settings announce; None if they are of another algorithm, or of none."""
    federation, rounds = config.federation, []
    for theta in federation.thetas:
        alone = replace(config, federation=replace(federation, theta=theta, levels=()))
        try:
            strategy = build_strategy(alone)
            if isinstance(strategy, WithServerOptimizer):
                strategy = strategy.strategy
            if not isinstance(strategy, PrivateDeltaFL):
                return None
            # an announcement may be of any length, and no model needs to be made for it
            unmade = np.broadcast_to(np.float32(0), common.update_length)
            state = TrainingState(unmade, round_number - 1)
            rounds.append(strategy.round_config(state, common.cohort_size))
        except (
            ValueError,
            ConfigError,
            ProtocolError,
        ):  # no run can have these settings with such a cohort
            return None
    return Levels(tuple(rounds))


def _named(first: RoundConfig, second: RoundConfig) -> str:
    """The fields in which two configurations differ."""
    names = []
    for field in fields(RoundConfig):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if field.compare and field.name != "warm_start" and one != other:
            names.append(f"{field.name} = {one}, not {other}")
    return "; ".join(names)
