"""The model that a run starts from: it follows from the seed, and from the shape of the data."""

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
    seeds = Seeds(config.experiment.seed)

    def build(level: int) -> Vector:
        return to_vector(spec.build(seeds.integer(Purpose.WEIGHTS, device=level)))

    return starting_models(
        len(config.federation.thetas),
        build,
        lambda level: seeds.generator(Purpose.WEIGHTS, device=level),
    )
