"""What the tuning chose, from the label of a method to its setting.

Made by `deltafl reproduce headline-tuning --data mnist-writers=FILE`; docs/results.md has the whole
grid. A test holds that each is a point of the method's grid.
"""

from collections.abc import Mapping
from typing import Final

from deltafl.sim.reproduce.declared import Setting

CHOSEN: Final[Mapping[str, Setting]] = {
    "FedAvg": Setting(2.0, 0.6),
    "FedProx": Setting(1.0, 0.6, ("proximal", 0.01)),
    "q-FFL": Setting(1.0, 0.6, ("q", 0.1)),
    "Tilted-ERM": Setting(1.0, 0.6, ("tilt", 0.5)),
    "AFL": Setting(1.0, 0.6, ("mixture_rate", 0.1)),
    "Δ-FL θ=0.8": Setting(1.0, 0.6),
    "Δ-FL θ=0.5": Setting(0.3, 0.6),
    "Δ-FL θ=0.1": Setting(0.1, 1.0),
}

CHOSEN_BY_TASK: Final[Mapping[str, Mapping[str, Setting]]] = {
    "unipen-digits-linear": {
        "FedAvg": Setting(1.0, 1.0),
        "FedProx": Setting(1.0, 0.6, ("proximal", 0.1)),
        "q-FFL": Setting(0.3, 1.0, ("q", 0.1)),
        "Tilted-ERM": Setting(1.0, 0.6, ("tilt", 0.5)),
        "AFL": Setting(1.0, 1.0, ("mixture_rate", 0.1)),
        "Δ-FL θ=0.8": Setting(1.0, 1.0),
        "Δ-FL θ=0.5": Setting(1.0, 0.8),
        "Δ-FL θ=0.1": Setting(0.3, 0.6),
    },
    "unipen-lower-linear": {
        "FedAvg": Setting(0.3, 0.6),
        "FedProx": Setting(0.3, 0.6, ("proximal", 0.01)),
        "q-FFL": Setting(1.0, 0.6, ("q", 0.1)),
        "Tilted-ERM": Setting(0.3, 0.6, ("tilt", 0.5)),
        "AFL": Setting(0.3, 0.6, ("mixture_rate", 0.01)),
        "Δ-FL θ=0.8": Setting(0.3, 0.6),
        "Δ-FL θ=0.5": Setting(1.0, 0.8),
        "Δ-FL θ=0.1": Setting(3.0, 0.8),
    },
    "unipen-all-linear": {
        "FedAvg": Setting(1.0, 0.6),
        "FedProx": Setting(1.0, 0.6, ("proximal", 0.01)),
        "q-FFL": Setting(1.0, 0.6, ("q", 0.1)),
        "Tilted-ERM": Setting(1.0, 0.6, ("tilt", 0.5)),
        "AFL": Setting(1.0, 0.6, ("mixture_rate", 0.1)),
        "Δ-FL θ=0.8": Setting(1.0, 0.6),
        "Δ-FL θ=0.5": Setting(1.0, 0.6),
        "Δ-FL θ=0.1": Setting(1.0, 0.6),
    },
    "schools-logistic": {
        "FedAvg": Setting(0.3, 0.6),
        "FedProx": Setting(0.3, 0.6, ("proximal", 0.01)),
        "q-FFL": Setting(1.0, 0.6, ("q", 0.1)),
        "Tilted-ERM": Setting(1.0, 0.6, ("tilt", 0.5)),
        "AFL": Setting(0.1, 1.0, ("mixture_rate", 0.1)),
        "Δ-FL θ=0.8": Setting(0.3, 0.6),
        "Δ-FL θ=0.5": Setting(0.3, 1.0),
        "Δ-FL θ=0.1": Setting(1.0, 1.0),
    },
    "mnist-convnet": {
        "FedAvg": Setting(0.15, 1.0),
        "Δ-FL θ=0.8": Setting(0.15, 1.0),
        "Δ-FL θ=0.5": Setting(0.15, 1.0),
    },
    "plays-gru": {
        "FedAvg": Setting(2.0, 0.6),
        "Δ-FL θ=0.8": Setting(1.0, 1.0),
        "Δ-FL θ=0.5": Setting(1.0, 1.0),
    },
}
"""The same of the other studies, from the name of the task."""
