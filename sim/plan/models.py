"""How many numbers a model has, for the models and data of the presets; without building it.

A model is built from the shape of the data, which takes torch and the files. The few that are known
here are those whose shape is published; a test builds each and counts.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from deltafl.sim.errors import ConfigError
from deltafl.sim.settings.config import RunConfig

_SHAPES: Final[Mapping[str, tuple[int, int]]] = {
    "digits": (64, 10),
    "digits-by-writer": (64, 10),
    "femnist": (784, 62),
    "unipen62": (784, 62),
    "qmnist": (784, 10),
    "synthetic-emnist": (784, 10),
    "synthetic-sent140": (50, 2),
}
"""Numbers of an input, and classes, by format or by the name of the file."""

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
    data, name = config.data, config.model.name
    keys = (data.format, data.source, Path(data.source).name.partition(".")[0])
    shape = next((_SHAPES[key] for key in keys if key in _SHAPES), None)
    count = _COUNTS.get(name)
    if shape is not None and count is not None and data.features == "mean":
        inputs, classes = shape
        if found := count(inputs, data.num_classes or classes):
            return found
    raise ConfigError(
        f"how many parameters the model {name!r} has on {data.source!r} is not known before the "
        "data are read: say it with --parameters N (a run prints it, and summary.json has it as "
        "model_parameters)"
    )
