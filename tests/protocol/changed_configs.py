"""A small round, and all that differ from it in one of the settings that are announced."""

from fractions import Fraction

from round_parties import make_config

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.radius import Clipped
from deltafl.protocol.update_noise import UpdateNoise
from deltafl.protocol.weighting import Weighting

CONFIG = make_config()

# For every field other values than those of `make_config`; all of them differ.
CHANGES = {
    "round_index": (0, 4, 2**63 - 1),
    "cohort_size": (1, 4, 259),
    "theta": (Fraction(1), Fraction(1, 3), Fraction(2, 3), Fraction(2**31, 2**31 + 1)),
    "method": ("bracketed", "histogram"),
    "num_pivots": (1, 2, 64),
    "max_queries": (0, 2, 256),
    "grid": (LossGrid(8, 9), LossGrid(9, 8), LossGrid(9, 4), LossGrid(7, 16)),
    "max_weight": (1, 499, 501),
    "update_length": (1, 5, 260),
    "update_clip": (4.000000000000001, 3.999, 2.0, 8.0, 1e-300, 2e-300),
    "update_resolution_bits": (0, 11, 13),
    "weighting": (Weighting.POWERS_OF_TWO, Weighting.EQUAL),
    "epsilon_ticks": (1, 2, 2048),
    "min_search_cohort": (1, 3, 4, 2**32 - 1),
    "warm_start": (0, 1, 8 * 2**8),
    "min_tail": (1, 2, 3),
    "verified": (True,),
    "proved": (True,),
    "noise": (
        Noise(Fraction(4), 3),
        Noise(Fraction(8, 3), 2),  # the same share, hence the same layout
        Noise(Fraction(4), 2),
        Noise(Fraction(4, 3), 3),
    ),
    "aggregation": (
        *map(Clipped, (0.5, 0.5000000000000001, 64.0, 1e300)),
        UpdateNoise(1.0, 40, 3),
        UpdateNoise(1.0, 40, 2),  # the same share, hence the same layout
        UpdateNoise(1.5, 40, 3),
        UpdateNoise(1.0, 41, 3),
    ),
}

# What some values come with: options of one method only.
WITH = {
    "num_pivots": {"method": "histogram"},
    "proved": {"method": "bracketed", "verified": True},
    "noise": {"method": "noisy", "weighting": Weighting.EQUAL},
    "aggregation": {"max_weight": 1},
}


def neighbours(name: str) -> list[RoundConfig]:
    """Everything that differs from `CONFIG` in one field."""
    return [make_config(**{name: value} | WITH.get(name, {})) for value in CHANGES[name]]
