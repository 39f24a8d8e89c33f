"""Private Δ-FL inside Flower: what an app imports. See `deltafl.sim.net.flower`."""

from deltafl.sim.net.certificates import Tls
from deltafl.sim.net.flower.mod import DeltaFLMod, OwnLoss
from deltafl.sim.net.flower.strategy import Enrolled, Listening, PrivateDeltaFL

__all__ = ["DeltaFLMod", "Enrolled", "Listening", "OwnLoss", "PrivateDeltaFL", "Tls"]
