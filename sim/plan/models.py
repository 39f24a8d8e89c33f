"""How many numbers a model has, for the models and data of the presets; without building it.

A model is built from the shape of the data, which takes torch and the files. The few that are known
here are those whose shape is published; a test builds each and counts.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from deltafl.sim.errors import ConfigError
from deltafl.sim.run.arms import KnownData
from deltafl.sim.settings.config import RunConfig

_SHAPES: Final[Mapping[str, tuple[tuple[int, ...], int]]] = {
    "digits": ((8, 8), 10),
    "digits-by-writer": ((8, 8), 10),
    "femnist": ((28, 28), 62),
    "unipen62": ((28, 28), 62),
    "qmnist": ((28, 28), 10),
    "synthetic-emnist": ((28, 28), 62),
    "synthetic-sent140": ((50,), 2),
}
"""The shape of an input, and classes, by format or by the name of the file."""

_COUNTS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "linear": lambda inputs, classes: inputs * classes,
    "logistic": lambda inputs, classes: inputs * (1 if classes == 2 else classes),
    "logistic-bias": lambda inputs, classes: (inputs + 1) * (1 if classes == 2 else classes),
    "convnet": lambda inputs, classes: 52_096 + (1024 + 1) * classes if inputs == 784 else 0,
}


def known_parameters(config: RunConfig) -> int:
    """Parameters of the model of one conformity level.

    Raises:
        ConfigError: they are not known before the data are read.
    """
    data, name = known_data(config), config.model.name
    count = _COUNTS.get(name)
    if data.input_shape is None or not data.num_classes or count is None:
        found = 0
    else:
        found = count(math.prod(data.input_shape), data.num_classes)
    if found:
        return found
    raise ConfigError(
        f"how many parameters the model {name!r} has on {data.name!r} is not known before the "
        "data are read: say it with --parameters N (a run prints it, and summary.json has it as "
        "model_parameters)"
    )


def known_data(config: RunConfig, num_devices: int | None = None) -> KnownData:
    """What is known of the data before they are read.

    Args:
        config: settings.
        num_devices: how many train, if somebody knows it.
    """
    data = config.data
    keys = (data.format, data.source, Path(data.source).name.partition(".")[0])
    found = next((_SHAPES[key] for key in keys if key in _SHAPES), None)
    if found is None or data.features != "mean":
        return KnownData(data.source, num_devices, data.num_classes or None)
    shape, classes = found
    return KnownData(data.source, num_devices, data.num_classes or classes, shape, is_tokens=False)
