"""What is random in torch, for a while and by a seed; the caller's random state stays as it is."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

_CPU: Final = torch.device("cpu")
_ALONE: Final = threading.RLock()
"""Torch has one generator for the whole process: two threads would draw each other's numbers."""


@contextmanager
def drawn_from(seed: int, device: torch.device = _CPU) -> Iterator[None]:
    """Let what a block draws from torch follow from a seed alone, also beside other threads.

    Args:
        seed: in [0, 2^64).
        device: where else than on the CPU it may draw.
    """
    is_cuda = device.type == "cuda"
    with _ALONE, torch.random.fork_rng(devices=[device] if is_cuda else []):
        # not torch.manual_seed, which would seed accelerators too, outside the fork
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            torch.cuda.manual_seed(seed)
        yield
