"""Which backend a run takes, and how it is opened."""

from dataclasses import dataclass
from typing import Final

import torch

from deltafl.sim.cohort.backends.base import Backend, ModelSpec
from deltafl.sim.cohort.backends.in_process import open_in_process
from deltafl.sim.cohort.backends.pool import Pool
from deltafl.sim.cohort.backends.processes import Crew
from deltafl.sim.cohort.hardware import choose_device, choose_threads, usable_cores
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.settings.config import CUDA, PROCESSES, REFERENCE, TrainingConfig

WORTH_PROCESSES_S: Final = 20.0
"""Seconds of training, on one core, from which "auto" starts workers: each takes two to begin."""

MOST_PER_CORE: Final = 8
"""Workers of "processes" for each core: enough to go on with a run from a larger machine."""

_SECONDS_PER_SAMPLE: Final = {"linear": 1.3e-5, "logistic": 1.3e-5, "logistic-bias": 1.3e-5}
_SECONDS_PER_SAMPLE_ELSE: Final = 3e-4  # about: of the ConvNet and the GRU


@dataclass(frozen=True, slots=True)
class Choice:
    """Who does the devices' work.

    Attributes:
        backend: one of `deltafl.sim.settings.config.BACKENDS` but "auto".
        workers: how many workers; 0 without any.
        threads: torch's threads in this process.
    """

    backend: str
    workers: int
    threads: int


def choose(training: TrainingConfig, model: str, num_samples: float) -> Choice:
    """Settle what the settings leave open.

    Args:
        training: the settings.
        model: the model's name.
        num_samples: how many samples will be trained on, each as often as it is.

    Raises:
        ConfigError: the settings contradict each other.
        UserError: more workers are asked for than this machine has use for.
        UserError: there is no GPU where one is asked for.
    """
    name = training.backend
    on_gpu = choose_device(CUDA if name == CUDA else training.device).type == "cuda"
    if name == CUDA and training.device == "cpu":
        raise ConfigError("training.backend = 'cuda' and training.device = 'cpu' contradict")
    if name == PROCESSES and training.device == "cuda":
        raise ConfigError(
            "training.backend = 'processes' and training.device = 'cuda' contradict: its workers "
            "train on the CPU; use 'cuda', or --device cpu"
        )
    cores = usable_cores()
    if name == "auto":
        seconds = num_samples * _SECONDS_PER_SAMPLE.get(model, _SECONDS_PER_SAMPLE_ELSE)
        spread = cores > 1 and seconds >= WORTH_PROCESSES_S
        name = CUDA if on_gpu else PROCESSES if spread else REFERENCE
    if name == PROCESSES:
        if training.workers > MOST_PER_CORE * cores:
            raise UserError(
                f"training.workers = {training.workers}: each is a process of its own, and this "
                f"machine has {cores} cores; take at most {MOST_PER_CORE * cores}, or 0 for one "
                "per core"
            )
        return Choice(name, training.workers or cores, threads=1)
    return Choice(name, 0, choose_threads(model))


def open_backend(choice: Choice, spec: ModelSpec, *, device: torch.device | None = None) -> Backend:
    """Open the backend that was chosen; close it after use.

    Args:
        choice: of `choose`.
        spec: what is trained.
        device: where tensors live in this process; the CPU by default.
    """
    if choice.backend == PROCESSES:
        return Pool(Crew(spec, choice.workers))
    return open_in_process(choice.backend, spec, device or torch.device("cpu"))
