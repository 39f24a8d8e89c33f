"""How many threads torch may take."""

from contextlib import contextmanager

import torch


@contextmanager
def single():
    """One: small tensors on many threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
