"""What a run's bits depend on beside its settings: software, machine, threads, data."""

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Final, TypeAlias

import torch

from deltafl.sim.errors import RunDirectoryError, UserError

Versions: TypeAlias = dict[str, object]

_PACKAGES: Final = ("deltafl", "torch", "numpy", "scikit-learn", "cryptography", "pynacl")


def usable_cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_threads(model: str) -> int:
    """The number of threads for torch on the CPU: all usable cores for convolutions, else one.

    A step of a linear model is so short that sharing it among threads takes longer than doing it:
    4 to 10 times on the embedded digits, with two threads.
    """
    return usable_cores() if model == "convnet" else 1


def choose_device(name: str) -> torch.device:
    """Resolve "auto", "cpu" or "cuda".

    Raises:
        UserError: cuda is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError(
            "training.device = 'cuda': this machine or this torch has no CUDA device; "
            "use --device cpu"
        )
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def versions_now(device: torch.device, choice: Mapping[str, object], data_sha256: str) -> Versions:
    """Collect the versions of this process.

    Args:
        device: where tensors live.
        choice: who does the work, and with how many workers and threads
            (`deltafl.sim.backends.choice`).
        data_sha256: digest of the data set, hex.
    """
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        **choice,
        "data_sha256": data_sha256,
    }


def check_versions(recorded: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Compare with the versions under which a run was begun.

    Returns:
        One sentence per difference that may change the last bits of the results.

    Raises:
        RunDirectoryError: the data is not the same.
    """
    if recorded.get("data_sha256") != now["data_sha256"]:
        raise RunDirectoryError(
            f"the data has changed since this run was begun (sha256 {now['data_sha256']}, then "
            f"{recorded.get('data_sha256')}): restore it, or start again in another --out"
        )
    return [
        f"this run was begun with {key} {recorded.get(key)} and goes on with {value}: "
        f"the last bits may differ"
        for key, value in now.items()
        if recorded.get(key) != value
    ]
