"""What a run begins with at its conformity levels: their strategy, and their first models.

The first models follow from seed and nonce, and from the shape of the data. With a nonce, a model
that its architecture begins at zeros is drawn too, as PyTorch draws a linear layer. A device that
answered for the same first model in two runs, or for nearly the same, among other devices each
time, would give itself away by the difference.
"""

import math
from dataclasses import replace

import numpy as np

from deltafl.fl.parameters import to_vector
from deltafl.fl.strategies.base import Strategy
from deltafl.fl.strategies.levels import LevelsInClear, PrivateLevels, starting_models
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.cohort.seeds import Purpose, Seeds
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
    if not federation.is_private:
        return LevelsInClear(federation.thetas, tuple(built))
    return PrivateLevels(tuple(level for level in built if isinstance(level, PrivateDeltaFL)))


def first_model(config: RunConfig, spec: ModelSpec) -> Vector:
    """The initial weights of all conformity levels, joined; each level uses its own seed.

    Args:
        config: Settings of one run.
        spec: The model of the settings, with the shapes of the data.

    Raises:
        ValueError: the model cannot take such shapes.
    """
    seeds = Seeds(config.experiment.seed, config.experiment.nonce)

    def build(level: int) -> Vector:
        model = to_vector(spec.build(seeds.integer(Purpose.WEIGHTS, device=level)))
        if model.any() or not seeds.nonce:
            return model
        most = 1 / math.sqrt(math.prod(spec.input_shape))
        generator = seeds.generator(Purpose.WEIGHTS, device=level)
        return generator.uniform(-most, most, model.size).astype(np.float32)

    return starting_models(
        len(config.federation.thetas),
        build,
        lambda level: seeds.generator(Purpose.WEIGHTS, device=level),
    )
