"""Devices with quadratic losses: what a strategy does to them is known in closed form."""

from dataclasses import dataclass

import numpy as np

from deltafl.fl.objectives import PLAIN

GAMMA = 0.25
"""The learning rate of `constant_rate`."""


def constant_rate(round_index):
    """A schedule: every round has the rate GAMMA."""
    del round_index
    return GAMMA


@dataclass
class Drawn:
    """A device with a loss and an update that are given."""

    id: int
    weight: int
    given_loss: float
    given_update: tuple

    def loss(self, model):
        del model
        return self.given_loss

    def update(self, model, objective=PLAIN):
        del model, objective
        return np.array(self.given_update, dtype=np.float32)


@dataclass
class Quadratic:
    """F(w) = ½‖w − centre‖², one full gradient step of size `rate`."""

    id: int
    centre: float
    weight: int = 1
    rate: float = 0.5
    num_updates: int = 0

    def loss(self, model):
        return float(0.5 * np.sum((model.astype(np.float64) - self.centre) ** 2))

    def update(self, model, objective=PLAIN):
        del objective
        self.num_updates += 1
        return (self.rate * (self.centre - model)).astype(np.float32)


def cohort(*pairs):
    """Devices 0, 1, … with these weights and centres."""
    return [Quadratic(k, centre, weight) for k, (weight, centre) in enumerate(pairs)]


def population(*centres, rate=0.5):
    """Devices 0, 1, … of weight 1 with these centres."""
    return [Quadratic(k, centre, rate=rate) for k, centre in enumerate(centres)]


def begin(strategy, devices, value=0.0):
    """The strategy's state before its first round, with a model of one number."""
    return strategy.init(np.full(1, value, dtype=np.float32), len(devices))


def drawn_devices(seed, num_devices=9):
    """Devices with weights, losses and updates of a seed."""
    rng = np.random.default_rng(seed)
    return [
        Drawn(k, int(rng.integers(1, 90)), float(rng.uniform(0, 4)), tuple(rng.normal(0, 0.6, 3)))
        for k in range(num_devices)
    ]
