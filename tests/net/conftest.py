"""Federations train on one thread: how many a loaded machine gives decides the last bits."""

import pytest
import torch_threads


@pytest.fixture(autouse=True)
def _one_thread():
    with torch_threads.single():
        yield
