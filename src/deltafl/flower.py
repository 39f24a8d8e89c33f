"""Private Δ-FL inside Flower: what an app imports. See `deltafl.sim.net.flower`."""

from deltafl.sim.net.app import Tls
from deltafl.sim.net.flower.mod import DeltaFLMod, OwnLoss
from deltafl.sim.net.flower.strategy import Listening, PrivateDeltaFL

__all__ = ["DeltaFLMod", "Listening", "OwnLoss", "PrivateDeltaFL", "Tls"]
