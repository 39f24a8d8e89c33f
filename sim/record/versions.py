"""What a run's bits depend on beside its settings: software, machine, threads, data."""

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Final, TypeAlias

import torch

from deltafl.sim.errors import RunDirectoryError

Versions: TypeAlias = dict[str, object]

_PACKAGES: Final = ("deltafl", "torch", "numpy", "scikit-learn", "cryptography", "pynacl")

NAMES_OF_VERSIONS: Final = frozenset(
    {"python", *_PACKAGES, "machine", "cpu_capability", "device", "data_sha256"}
    | {"backend", "workers", "threads"}
)
"""Every name that a run's versions.json may have."""


def versions_now(device: torch.device, choice: Mapping[str, object], data_sha256: str) -> Versions:
    """Collect the versions of this process.

    Args:
        device: where tensors live.
        choice: who does the work, and with how many workers and threads
            (`deltafl.sim.cohort.backends.choice`).
        data_sha256: digest of the data set, hex.
    """
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
        "machine": platform.machine(),
        # with and without vector instructions, torch rounds normal numbers differently
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        **choice,
        "data_sha256": data_sha256,
    }


def check_versions(recorded: Versions | None, now: Versions) -> list[str]:
    """Compare with the versions under which a run was begun; None of one that begins.

    Returns:
        One sentence per difference that may change the last bits of the results.

    Raises:
        RunDirectoryError: the data is not the same.
    """
    if recorded is None:
        return []
    if recorded.get("data_sha256") != now["data_sha256"]:
        raise RunDirectoryError(
            f"the data have changed since this run was started (sha256 {now['data_sha256']}, "
            f"originally {recorded.get('data_sha256')}): restore them, or start a new run in "
            "another --out"
        )
    return [
        f"this run was started with {key} {recorded.get(key)} and continues with {value}: "
        f"the last bits of its results may differ"
        for key, value in now.items()
        if recorded.get(key) != value
    ]
