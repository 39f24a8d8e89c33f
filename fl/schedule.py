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
        _check(self.initial, self.factor, every_rounds=self.every_rounds)

    def rate(self, round_number: int) -> float:
        """Give the learning rate of a round; rounds count from 0.

        Raises:
            ValueError: the round is negative.
        """
        _check_round(round_number)
        return self.initial * float(self.factor ** (round_number // self.every_rounds))


@dataclass(frozen=True, slots=True)
class CosineDecay:
    """γ_t = initial · (c + (1 − c) · (1 + cos(π · min(t, over_rounds) / over_rounds)) / 2).

    Source: Loshchilov and Hutter, ICLR 2017 (SGDR), equation (5), without restarts.

    Attributes:
        initial: the rate γ_0 of round 0, positive.
        factor: c in (0, 1]; the rate ends at initial · c, and stays there.
        over_rounds: how many rounds it falls, at least 1.

    >>> decay = CosineDecay(initial=0.4, factor=0.5, over_rounds=100)
    >>> decay.rate(0), round(decay.rate(50), 9), decay.rate(100), decay.rate(1000)
    (0.4, 0.3, 0.2, 0.2)
    """

    initial: float
    factor: float
    over_rounds: int

    def __post_init__(self) -> None:
        _check(self.initial, self.factor, over_rounds=self.over_rounds)

    def rate(self, round_number: int) -> float:
        """Give the learning rate of a round; see `StepDecay`."""
        _check_round(round_number)
        done = min(round_number, self.over_rounds) / self.over_rounds
        return self.initial * (self.factor + (1 - self.factor) * (1 + math.cos(math.pi * done)) / 2)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The first rate grows over some rounds: γ_t = initial · (t + 1) / rounds; then it decays.

    Attributes:
        decay: from the end of the growth.
        rounds: how many rounds the rate grows; 0 for none.

    >>> [WarmUp(StepDecay(0.4), rounds=4).rate(t) for t in (0, 1, 3, 4)]
    [0.1, 0.2, 0.4, 0.4]
    """

    decay: StepDecay | CosineDecay
    rounds: int

    def rate(self, round_number: int) -> float:
        """Give the learning rate of a round; see `StepDecay`."""
        if 0 <= round_number < self.rounds:
            return self.decay.initial * (round_number + 1) / self.rounds
        return self.decay.rate(round_number - self.rounds)


def _check(initial: float, factor: float, **rounds: int) -> None:
    if not (math.isfinite(initial) and initial > 0):
        raise ValueError(f"initial={initial} is not a positive learning rate")
    if not 0 < factor <= 1:
        raise ValueError(f"factor={factor} is not in (0, 1]")
    for name, number in rounds.items():
        if number < 1:
            raise ValueError(f"{name}={number} is not at least 1")


def _check_round(round_number: int) -> None:
    if round_number < 0:
        raise ValueError(f"round_number={round_number} is negative: rounds count from 0")
