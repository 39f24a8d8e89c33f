"""Have devices added the noise that was announced, as far as their sums tell?

The numbers of devices are whole, and noise is not, where it is carried in fractions: there, how far
a sum is from a whole number follows from the noise alone. Noise of more than one is spread evenly
over the fractions, so more of it cannot be told apart. Where noise is so large that whole steps are
fine enough, its sums are whole numbers, and say nothing of it.
"""

import math
from types import MappingProxyType
from typing import Final

import numpy as np
from scipy import special

from deltafl.secagg import SecAggError
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
_ENOUGH: Final = 8.0  # standard deviations, beyond which nothing is added up


class AnalysisNoise(Check):
    """Measures how far noisy sums are from whole numbers."""

    name = "noise in the sums"
    rules = RULES
    tests = MappingProxyType({_TEST: "analysis.too-little-noise"})

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._is_noisy, self._measured, self._mute = False, 0, 0

    def on_round(self, over: RoundOver) -> tuple[()]:
        """Measure the sums; the alarms come when all tests are made."""
        asking = self._premises.source.asking
        plan = None if asking is None else plan_of(asking, len(cohort_of(over.view)))
        if not isinstance(plan, Plan) or not plan.is_noisy:
            return ()
        self._is_noisy = True
        logs, last = 0.0, Evidence(over.view.number)
        for session in over.view.sessions.values():
            for index, sums in enumerate(((HOLDERS,), plan.sums)):
                slot = session.slots.get(index)
                words = None if slot is None else _words(over, session.params.tag, slot)
                if words is None or slot is None:
                    continue
                last = Evidence(over.view.number, slot.sums[0].number, slot.sums[0].offset)
                logs += self._measure(plan, index, sums, words)
        if self._measured:
            # Fisher's sum of logarithms; under at least the noise that is due, it is no larger
            value = float(special.gammaincc(self._measured, logs))
            detail = f"{self._measured} sums are closer to whole numbers than noise leaves them"
            self._premises.budget.add(PValue(_TEST, value, detail), last)
        return ()

    def _measure(
        self, plan: Plan, index: int, sums: tuple[Sum, ...], words: np.ndarray
    ) -> float:
        """The sum of -log p over the numbers of a slot that have fractions."""
        layout, logs = plan.layouts[index], 0.0
        if len(words) != layout.length:
            return 0.0
        try:
            decoded = layout.decode(words)
        except SecAggError:
            return 0.0  # `Answers` says that it is out of range
        for one in sums:
            noise = plan.noise(one)
            if noise is None or not noise.resolution_bits:
                self._mute += one.size
                continue
            steps = 1 << noise.resolution_bits
            sigma = math.sqrt(float(noise.variance))
            for number in decoded[one.name].tolist():
                rest = int(number) % steps
                logs -= math.log(near_whole(min(rest, steps - rest), steps, sigma))
                self._measured += 1
        return logs

    def coverage(self, tally: Tally) -> Coverage:
        """An analysis without noise is covered: there is nothing to measure in it."""
        if not self._is_noisy:
            return Coverage(tally.told, "no noise was announced")
        detail = f"{self._measured} sums with fractions, {self._mute} without"
        return Coverage(tally.told if self._measured else 0, detail)

    def unchecked(self) -> tuple[str, ...]:
        """Noise hides what it is added to, and so how large it is."""
        if not self._is_noisy:
            return ()
        return (
            f"how large the noise is: {self._measured} sums show whether there is any of about one "
            f"or less, and {self._mute} show nothing of it",
        )


def near_whole(rest: int, steps: int, sigma: float) -> float:
    """Probability that Gaussian noise is at most so far from a whole number; 1 at most.

    Noise of a larger σ is farther away. Half a step is added, since noise comes in steps.

    Args:
        rest: the distance, in steps.
        steps: steps of one.
        sigma: σ of the noise, in whole numbers.

    >>> round(near_whole(0, 16, 10.0), 4), round(near_whole(1, 16, 0.05), 2), near_whole(8, 16, 1.0)
    (0.0625, 0.94, 1.0)
    """
    most = (rest + 0.5) / steps
    if most >= 0.5:
        return 1.0
    last = math.ceil(_ENOUGH * sigma) + 1
    whole = np.arange(-last, last + 1)
    within = special.ndtr((whole + most) / sigma) - special.ndtr((whole - most) / sigma)
    return min(float(within.sum()), 1.0)


def _words(over: RoundOver, tag: bytes, slot: SlotView) -> np.ndarray | None:
    """All words of a slot's sum; None where they are not known."""
    if not slot.sums:
        return None
    released = slot.sums[0]
    if len(released.words) == released.length:
        return released.words
    return over.totals.get((tag, slot.index))
