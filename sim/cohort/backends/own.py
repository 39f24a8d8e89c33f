"""A module of the caller's own, and its loss, as bytes for workers in other processes.

They are sent by value, as cloudpickle writes them: the classes of a notebook are in no file that a
worker could import. Nothing of this comes from outside. The bytes go from the process that has the
module to workers that it has started, through a pipe that nobody else has, or through Ray, which
serialises in the same way.
"""

from collections.abc import Callable
from typing import TypeAlias

import cloudpickle
from torch import nn

from deltafl.fl.criterion import Criterion
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.errors import ConfigError

Own: TypeAlias = tuple[Callable[[], nn.Module], Criterion]
"""What makes a module, and what it is trained for."""


def own_as_bytes(spec: ModelSpec, backend: str) -> bytes:
    """Write what makes a module, and its criterion.

    Args:
        spec: what is trained.
        backend: whose workers are to train it, for the message.

    Raises:
        ConfigError: they refer to something that is of this process alone.
    """
    try:
        written: bytes = cloudpickle.dumps((spec.own, spec.criterion))
    except Exception as error:
        raise ConfigError(
            f"training.backend = {backend!r}: the model, or its loss, cannot be sent to other "
            f"processes ({error}): pass a function that makes the module and opens what it needs, "
            "or take 'reference' or 'batched'"
        ) from error
    return written


def own_of(written: bytes) -> Own:
    """Read what `own_as_bytes` wrote; only for bytes of the process that has started this one."""
    read: Own = cloudpickle.loads(written)
    return read
