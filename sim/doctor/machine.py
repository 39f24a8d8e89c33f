"""What this machine has: cores, memory, a GPU, and the libraries that compute on them."""

import os
import platform
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from deltafl.sim.doctor.findings import Finding, State, good

_LITTLE_MEMORY: Final = 1e9
"""The quickstart takes up to a gigabyte with the CUDA build of torch."""


def machine() -> Iterator[Finding]:
    """System, cores and memory."""
    yield good("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    there = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    yield good("cores", f"{usable} usable of {there}")
    yield memory(Path("/proc/meminfo"))


def memory(source: Path) -> Finding:
    """All memory and what is free, as Linux tells it in a file."""
    text = source.read_text() if source.exists() else ""
    known = {name: int(kb) * 1024 for name, kb in re.findall(r"(?m)^(\w+):\s+(\d+) kB", text)}
    if not {"MemTotal", "MemAvailable"} <= set(known):
        return good("memory", "unknown")
    free = known["MemAvailable"]
    text = f"{known['MemTotal'] / 1e9:.1f} GB, {free / 1e9:.1f} GB of it free"
    if free < _LITTLE_MEMORY:
        mend = "the quickstart needs up to 1 GB: end other programs"
        return Finding("memory", State.WARNING, text, mend)
    return good("memory", text)


def libraries() -> Iterator[Finding]:
    """What computes; the last bits of results depend on its vector instructions."""
    numpy, torch = import_module("numpy"), import_module("torch")
    yield good("torch", f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    blas = numpy.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    text = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
    yield good("numpy", f"{numpy.__version__}, BLAS: {text}")


def gpu(device: Path = Path("/dev/nvidiactl")) -> Iterator[Finding]:
    """The GPU and what uses it.

    Args:
        device: there where there is a driver.
    """
    torch = import_module("torch")
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        size = f"{about.total_memory / 1e9:.0f} GB"
        yield good("GPU", f"{about.name}, {size}, CUDA {torch.version.cuda}")
    elif device.exists():
        text = f"there is an NVIDIA GPU that torch {torch.__version__} cannot use"
        mend = (
            "check the driver with nvidia-smi; a torch without CUDA has to be replaced: "
            "https://pytorch.org/get-started/locally/"
        )
        yield Finding("GPU", State.WARNING, text, mend)
    else:
        yield Finding("GPU", State.ABSENT, "none that CUDA can use; everything works without")
