"""Mitigations of the leakage: settings of the protocol, each with what it changes."""

from dataclasses import dataclass
from typing import Final

from deltafl.protocol.quantile.registry import NOISY
from deltafl.protocol.weighting import Weighting


@dataclass(frozen=True, slots=True)
class Mitigation:
    """One way to search more discreetly, or several at once.

    Attributes:
        name: Its name on the command line and in tables.
        text: What it does, for help and legends.
        warm_start: Start near the last round's threshold, which is a few per cent off.
        max_queries: Most queries; None for as many as certify any search.
        epsilon: ε of `mm` in nats; 0 never acts.
        weighting: What a device weighs in the search.
        resolution_bits: Binary digits of the loss grid; None for those of the plan.
        min_cohort: Fewest devices to search over; with fewer nothing is asked.
    """

    name: str
    text: str
    warm_start: bool = False
    max_queries: int | None = None
    epsilon: float = 0.0
    weighting: Weighting = Weighting.SAMPLES
    resolution_bits: int | None = None
    min_cohort: int = 0

    def applies_to(self, method: str, cohort: int) -> bool:
        """Whether it changes anything about searches by this method over so many devices."""
        if self.name == "min-cohort" and cohort >= self.min_cohort:
            return False
        if method == "plain":
            return self.name == NONE
        if method == NOISY:
            return self.name in _ABOUT_NOISY
        return method == "mm" or not (self.epsilon and self.name.startswith("epsilon"))


NONE: Final = "none"
_ABOUT_NOISY: Final = (NONE, "warm-start", "combined")
"""Others change nothing about it, which has one query, equal weights and wide bins in any case, or
only whether it is asked at all."""

MITIGATIONS: Final = (
    Mitigation(NONE, "the protocol's defaults; a search stops as soon as its result is proved"),
    Mitigation("warm-start", "start near the last round's threshold, 3 % off", warm_start=True),
    Mitigation("early-stop", "at most 6 queries, then the nearest of their pivots", max_queries=6),
    Mitigation("epsilon-0.01", "β sees nothing nearer than 0.01 nats (mm)", epsilon=0.01),
    Mitigation("epsilon-0.05", "β sees nothing nearer than 0.05 nats (mm)", epsilon=0.05),
    Mitigation(
        "powers-of-two", "weights rounded down to powers of two", weighting=Weighting.POWERS_OF_TWO
    ),
    Mitigation("equal-weights", "every device weighs one in the search", weighting=Weighting.EQUAL),
    Mitigation("coarse-grid", "losses rounded to 1/256 nats", resolution_bits=8),
    Mitigation("min-cohort", "no search over fewer than 10 devices", min_cohort=10),
    Mitigation(
        "combined",
        "warm start, ε = 0.05 nats, equal weights, losses rounded to 1/256, at least 10 devices",
        warm_start=True,
        epsilon=0.05,
        weighting=Weighting.EQUAL,
        resolution_bits=8,
        min_cohort=10,
    ),
)
"""Every mitigation that is measured, the first of which is none."""
