"""Keep freed memory in the process, so that the next training step can reuse it.

The tensors of a training step take megabytes and are freed at its end. glibc then returns the end
of its heap to the system, and the next step pays one page fault for each new page: up to a third of
the training time of a small convolutional network. glibc keeps twice the size of the largest mapped
block freed so far (mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD), which is often too little.
"""

from typing import Final

import torch

_BLOCK: Final = 1 << 24  # bytes; glibc learns from blocks of up to 32 MiB


def keep_freed_memory() -> None:
    """Make glibc keep up to 32 MiB of freed memory; other allocators are not affected."""
    torch.empty(_BLOCK, dtype=torch.uint8)  # mapped, never touched, freed at once
