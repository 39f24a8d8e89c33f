"""The model that a run must have started from, built again from what its directory says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from deltafl.fl.bundle import Architecture, read_stored
from deltafl.fl.errors import DataError
from deltafl.fl.parameters import num_parameters
from deltafl.fl.registry import OWN
from deltafl.fl.vectors import Vector
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.record.record import VERSIONS
from deltafl.sim.record.versions import decide_first_model
from deltafl.sim.run.simulated import first_model

TAKES: Final = "the architecture of the run's settings takes no data of the shape in bundle.npz"


@dataclass(frozen=True, slots=True, eq=False)
class Initial:
    """What is known of a run's first model.

    Attributes:
        model: All levels' joined, float32; None where it cannot be built.
        why: Why it cannot be built; "" if it can.
        problem: What cannot be, whatever model was announced; "" if nothing.
    """

    model: Vector | None = None
    why: str = ""
    problem: str = ""


def initial_of(source: Source, size: int) -> Initial:
    """Build the first model again.

    Args:
        source: The run.
        size: How many numbers were announced, of all levels; no more are ever built.
    """
    if source.config is None or source.directory is None:
        return Initial(why="a transcript alone does not say from which seed it was made")
    if source.config.model.name == OWN:
        return Initial(why="the model is of the user's own making, and not in the directory")
    if not source.directory.bundle.exists():
        return Initial(why="there is no bundle.npz, which has the shape of the data")
    try:
        with source.directory.read() as record:
            recorded = record.json(VERSIONS) or {}
        stored = read_stored(source.directory.bundle)
    except (UserError, DataError) as error:
        return Initial(why=str(error))
    if other := _other_platform(recorded):
        return Initial(why=other)
    architecture = stored.architecture
    if architecture.embedding_sha256 is not None:
        return Initial(why="the word vectors that its architecture reads are not in the directory")
    config = source.config
    spec = ModelSpec(config.model.name, architecture.input_shape, architecture.num_classes)
    try:
        with torch.device("meta"):  # counts parameters without allocating them
            built = num_parameters(spec.build()) * len(config.federation.thetas)
    except (ValueError, RuntimeError, OverflowError):
        return Initial(problem=f"{TAKES}: {_shape(architecture)}")
    if built != size or sum(map(len, stored.models.values())) != size:
        return Initial(
            problem=f"{built} numbers follow from the run's settings and {_shape(architecture)} in "
            f"bundle.npz, and {size} were announced"
        )
    return Initial(first_model(config, spec))


def _other_platform(recorded: Mapping[str, object]) -> str:
    """How this process differs from the run's in what decides the initial weights."""
    for key, here in decide_first_model().items():
        if (there := recorded.get(key)) != here:
            said = "nothing" if there is None else repr(there)
            return f"the run says {said} of {key}, and this is {here!r}"
    return ""


def _shape(architecture: Architecture) -> str:
    return f"inputs of {architecture.input_shape} in {architecture.num_classes} classes"
