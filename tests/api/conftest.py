"""Federations that several files train on."""

import numpy as np
import pytest

import deltafl as dfl


def made(seed, answer, **options):
    rng = np.random.default_rng(seed)
    devices = {}
    for number in range(40):
        x = rng.normal(size=(12, 4)).astype(np.float32)
        devices[f"p{number:02}"] = x, answer(x, rng.normal())
    return dfl.Federation.from_devices(devices, **options)


@pytest.fixture(scope="session")
def federation():
    """Forty devices with a shift of their own; what is asked is a sign."""
    return made(0, lambda x, shift: (x[:, 0] + shift > 0).astype(int))


@pytest.fixture(scope="session")
def numbers():
    """The same with numbers."""
    return made(1, lambda x, shift: x @ [1.0, -1.0, 0.5, 0.0] + shift, targets="numbers")
