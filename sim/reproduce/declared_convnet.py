"""The study of MNIST by writer with a ConvNet; its rates and grids are not declared yet."""

from typing import Final

from deltafl.sim.reproduce.declared import SMALL_STEPS, TUNED, Setting
from deltafl.sim.reproduce.methods import DELTA_FL, FEDAVG
from deltafl.sim.reproduce.study import Study

MNIST_CONVNET: Final = Study(
    "mnist-convnet",
    users="writers",
    seeds=10,
    tuning_seeds=1,
    small_rate=0.1,
    families={SMALL_STEPS: (FEDAVG, *DELTA_FL), TUNED: (FEDAVG, *DELTA_FL[:2])},
    grids={method.label: (Setting(0.1, 1.0),) for method in (FEDAVG, *DELTA_FL[:2])},
    rounds=25,
    curve=25,
    every=25,
    max_samples=50,
    only_if_named=True,
)
