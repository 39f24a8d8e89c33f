"""What this machine has for the devices' work: cores, threads, a GPU."""

import os
import platform
from pathlib import Path

import torch

from deltafl.sim.errors import UserError


def usable_cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name, as Linux has it; else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def choose_threads(model: str) -> int:
    """The number of threads for torch on the CPU: all usable cores for convolutions, else one.

    A step of a linear model is so short that sharing it among threads takes longer than doing it on
    one: 4 to 10 times longer on the embedded digits, with two threads.
    """
    return usable_cores() if model == "convnet" else 1


def choose_device(name: str) -> torch.device:
    """Resolve "auto", "cpu" or "cuda".

    Raises:
        UserError: cuda is requested but not available.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError(
            "training.device = 'cuda': this machine or this torch has no CUDA device; "
            "use --device cpu"
        )
    if not available or name == "cpu":
        return torch.device("cpu")
    # else convolutions round their inputs to 10 bits, and backends would differ by that
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda")
