"""Devices whose losses and updates are given, and two ways to play a round over a few of them."""

from dataclasses import dataclass

import numpy as np
from round_parties import POLICY

from deltafl.protocol.sessions import Sessions
from deltafl.secagg import Enrolment, GraphKind, ThreatModel
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.masked import MaskedRounds

SIZE = 6
SESSIONS = Sessions(
    policy=POLICY,
    threat=ThreatModel(0.1, 0.2),
    graph=GraphKind.COMPLETE,
    min_cohort=3,
)


@dataclass(frozen=True, eq=False)
class Device:
    id: int
    weight: int
    value: float
    vector: np.ndarray

    def loss(self, model) -> float:
        del model
        return self.value

    def update(self, model) -> np.ndarray:
        del model
        return self.vector


def devices_of(vectors, weights=None, losses=None):
    return [
        Device(
            3 + 7 * k,
            10 + k if weights is None else weights[k],
            0.5 + k if losses is None else losses[k],
            np.asarray(vector, dtype=np.float32),
        )
        for k, vector in enumerate(vectors)
    ]


def random_devices(seed=0, size=SIZE):
    """The last device is far from the others."""
    generator = np.random.default_rng(seed)
    vectors = generator.normal(0, 0.3, (size, 4))
    vectors[-1] += 3
    return devices_of(vectors)


def masked():
    enrolment = Enrolment(SeededRandomness(b"i" * 32))
    return MaskedRounds(SESSIONS, SeededRandomness(b"s" * 32), enrolment=enrolment)


def ideal():
    return IdealRounds(SESSIONS)
