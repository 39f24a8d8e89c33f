"""Memory that was freed stays with the process, for the next step to take.

The tensors of a training step are megabytes, freed at its end. glibc then gives the end of its heap
back to the system, and the next step pays for fresh pages, one fault each: up to a third of the
time of training a small convolutional network. How much it keeps is twice the largest mapped block
that was freed so far (mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD), often too little.
"""

from typing import Final

import torch

_BLOCK: Final = 1 << 24  # bytes; glibc learns from blocks of up to 32 MiB


def keep_freed_memory() -> None:
    """Teach glibc to keep up to 32 MiB of freed memory; with another allocator, nothing happens."""
    torch.empty(_BLOCK, dtype=torch.uint8)  # mapped, never touched, freed at once
