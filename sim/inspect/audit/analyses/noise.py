"""Have devices added the noise that was announced, as far as their sums tell?

The numbers of devices are whole, and noise is not, where it is carried in fractions: there, how far
a sum is from a whole number follows from the noise alone. Noise of more than one is spread evenly
over the fractions, so more of it cannot be told apart. Where noise is so large that whole steps are
fine enough, its sums are whole numbers, and say nothing of it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np

from deltafl.secagg import SecAggError
from deltafl.secagg.ring import Vector
from deltafl.sim.analyse.plan import Plan
from deltafl.sim.analyse.question import HOLDERS, Sum
from deltafl.sim.inspect.audit.analyses.terms import cohort_of, plan_of
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.rules import A18, Rule, Rules
from deltafl.sim.inspect.audit.tails import PValue
from deltafl.sim.inspect.audit.views import SlotView

RULES: Final = Rules(
    {
        "analysis.too-little-noise": Rule(
            Severity.HIGH,
            "sums of an analysis have less noise than was announced",
            "Devices left their noise out, or added less. The ε of the answer is not what it says.",
            "Update the devices' software, and take what was summed for known.",
            A18,
        ),
    }
)

_TEST: Final = "noise of an analysis"
_ENOUGH: Final = 9.0  # standard deviations, beyond which nothing is added up
_RATES: Final = tuple(2.0**k for k in range(-2, 24))  # of Chernoff's bound; each gives a bound

Distance: TypeAlias = tuple[int, int, float]
"""Of a number of a sum: to the nearest whole number, in steps; steps of one; variance in steps²."""


class AnalysisNoise(Check):
    """Measures how far noisy sums are from whole numbers."""

    name = "noise in the sums"
    rules = RULES
    tests = MappingProxyType({_TEST: "analysis.too-little-noise"})

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._is_noisy, self._mute = False, 0
        self._distances: list[Distance] = []

    def on_round(self, over: RoundOver) -> tuple[()]:
        """Measure the sums; the alarms come when all tests are made."""
        asking = self._premises.source.asking
        plan = None if asking is None else plan_of(asking, len(cohort_of(over.view)))
        if not isinstance(plan, Plan) or not plan.is_noisy:
            return ()
        self._is_noisy = True
        last = Evidence(over.view.number)
        for session in over.view.sessions.values():
            for index, sums in enumerate(((HOLDERS,), plan.sums)):
                slot = session.slots.get(index)
                words = None if slot is None else _words(over, session.params.tag, slot)
                if words is None or slot is None:
                    continue
                last = Evidence(over.view.number, slot.sums[0].number, slot.sums[0].offset)
                self._measure(plan, index, sums, words)
        if self._distances:
            value = closer(self._distances)
            total = sum(rest / steps for rest, steps, _ in self._distances)
            mean = total / len(self._distances)
            detail = (
                f"{len(self._distances)} sums are {mean:.3g} away from whole numbers on average"
            )
            self._premises.budget.add(PValue(_TEST, value, detail), last)
        return ()

    def _measure(self, plan: Plan, index: int, sums: Sequence[Sum], words: Vector) -> None:
        """Take the numbers of a slot that have fractions."""
        layout = plan.layouts[index]
        if len(words) != layout.length:
            return
        try:
            decoded = layout.decode(words.astype(np.uint64))
        except SecAggError:
            return  # `Answers` says that it is out of range
        for one in sums:
            noise = plan.noise(one)
            if noise is None or not noise.resolution_bits:
                self._mute += one.size
                continue
            steps = 1 << noise.resolution_bits
            variance = float(noise.share_variance * noise.num_devices)
            for number in decoded[one.name].tolist():
                rest = int(number) % steps
                self._distances.append((min(rest, steps - rest), steps, variance))

    def coverage(self, tally: Tally) -> Coverage:
        """An analysis without noise is covered: there is nothing to measure in it."""
        if not self._is_noisy:
            return Coverage(tally.told, "no noise was announced")
        detail = f"{len(self._distances)} sums with fractions, {self._mute} without"
        if not self._is_able:
            return Coverage(0, f"{detail}: too few to tell whether there is noise")
        return Coverage(tally.told, detail)

    @property
    def _is_able(self) -> bool:
        """Whether sums without any noise would be found."""
        budget = self._premises.budget
        silent = [(0, steps, variance) for _, steps, variance in self._distances]
        return closer(silent) <= budget.rate / max(budget.num_tests, 1)

    def unchecked(self) -> tuple[str, ...]:
        """Noise hides what it is added to, and so how large it is."""
        if not self._is_noisy:
            return ()
        return ("how large the noise is: sums show at most whether there is any, up to about one",)


def closer(distances: Sequence[Distance]) -> float:
    """A bound on the probability that noise is as close to whole numbers as this, all together.

    Chernoff's bound, of the sum of the distances in whole numbers. Noise of a larger variance is
    farther away, so it is a bound for more devices than are certain to bring noise, too.

    Args:
        distances: each in steps; with the steps of one, and the variance of the noise in steps².

    >>> closer([(0, 8, 13.0)] * 40) < 1e-30, closer([(4, 8, 13.0), (2, 8, 13.0)])
    (True, 1.0)
    """
    total = sum(rest / steps for rest, steps, _ in distances)
    counts = Counter((steps, variance) for _, steps, variance in distances)
    least = 0.0
    for rate in _RATES:
        logs = sum(
            count * math.log(_moment(rate, steps, variance))
            for (steps, variance), count in counts.items()
        )
        least = min(least, rate * total + logs)
    return math.exp(least)


def _moment(rate: float, steps: int, variance: float) -> float:
    """Mean of exp(-rate·d), where d is the distance of discrete Gaussian noise to whole numbers."""
    last = math.ceil(_ENOUGH * math.sqrt(variance))
    drawn = np.arange(-last, last + 1)
    weights = np.exp(-(drawn**2) / (2 * variance))
    rest = drawn % steps
    distance = np.minimum(rest, steps - rest) / steps
    return float((weights * np.exp(-rate * distance)).sum() / weights.sum())


def _words(over: RoundOver, tag: bytes, slot: SlotView) -> Vector | None:
    """All words of a slot's sum; None where they are not known."""
    if not slot.sums:
        return None
    released = slot.sums[0]
    if len(released.words) == released.length:
        return released.words
    return over.totals.get((tag, slot.index))
