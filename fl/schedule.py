"""The learning rate as a function of the round.

Source: arXiv 2002.11223, Appendix C.2. The paper prints the exponent with a minus sign, with which
the rate would grow; in its experiments the rate is halved.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepDecay:
    """γ_t = initial · factor^⌊t / every_rounds⌋.

    Attributes:
        initial: the rate γ_0 of round 0, positive.
        factor: c in (0, 1]; 1 keeps the rate.
        every_rounds: how many rounds a step lasts, at least 1.

    >>> decay = StepDecay(initial=0.32, factor=0.5, every_rounds=400)
    >>> decay.rate(0), decay.rate(399), decay.rate(400), decay.rate(1200)
    (0.32, 0.32, 0.16, 0.04)
    """

    initial: float
    factor: float = 1.0
    every_rounds: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.initial) and self.initial > 0):
            raise ValueError(f"initial={self.initial} is not a positive learning rate")
        if not 0 < self.factor <= 1:
            raise ValueError(f"factor={self.factor} is not in (0, 1]")
        if self.every_rounds < 1:
            raise ValueError(f"every_rounds={self.every_rounds} is not at least 1")

    def rate(self, round_number: int) -> float:
        """Give the learning rate of a round; rounds count from 0.

        Raises:
            ValueError: the round is negative.
        """
        if round_number < 0:
            raise ValueError(f"round_number={round_number} is negative: rounds count from 0")
        return self.initial * float(self.factor ** (round_number // self.every_rounds))
