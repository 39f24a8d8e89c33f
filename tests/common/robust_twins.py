"""Norm clipping in clear and by secure sums, of the same few devices."""

from fractions import Fraction

import lenient
import numpy as np

from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.fedavg import FedAvg
from deltafl.fl.strategies.masked import MaskedMean
from deltafl.fl.strategies.private_delta_fl import Encoding, PrivateDeltaFL
from deltafl.fl.strategies.robust_mean import RobustMean
from deltafl.protocol.configuration import UpdateParams
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import ThreatModel

HALF, WHOLE = Fraction(1, 2), Fraction(1)
SESSIONS = Sessions(RoundPolicy(**lenient.ROUNDS), ThreatModel(0.1, 0.2), min_cohort=5)
START = np.array([0.5, -1.0, 0.0], dtype=np.float32)
RESOLUTION_BITS = 12


def private(theta, clipping):
    """By secure sums."""
    encoding = Encoding(update=UpdateParams(clip=4.0, resolution_bits=RESOLUTION_BITS))
    rounds = PrivateDeltaFL(theta, encoding, clipping=clipping)
    return MaskedMean(FedAvg(), rounds) if theta == 1 else rounds


def in_clear(theta, robustly):
    """By the updates themselves."""
    return RobustMean(FedAvg(), robustly) if theta == 1 else DeltaFL(theta, robustly=robustly)
