"""The model that a run starts from: it follows from seed and nonce, and from the shape of the data.

With a nonce, a model that its architecture begins at zeros is drawn too, as PyTorch draws a linear
layer. A device that answered for the same first model in two runs, or for nearly the same, among
other devices each time, would give itself away by the difference.
"""

import math

import numpy as np

from deltafl.fl.parameters import to_vector
from deltafl.fl.strategies.levels import starting_models
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.settings.config import RunConfig


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
