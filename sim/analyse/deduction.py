"""What follows from the sums of an analysis: what is asked next, and the answer.

This is the server's side. It has no choices: everything follows from the plan and the sums, so an
auditor who has the sums comes to the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeAlias

import numpy as np

from deltafl.protocol.quantile.bracketed import Bracketed
from deltafl.protocol.quantile.noisy import nearest_counts
from deltafl.secagg.ring import Vector
from deltafl.sim.analyse.plan import FIRST_QUERY, Plan, What
from deltafl.sim.analyse.question import HOLDERS, Sum
from deltafl.sim.errors import UserError
from deltafl.sim.run.accounting import DELTA
from deltafl.sim.run.bound import rounded_up

Result: TypeAlias = int | float | list[int] | list[float] | None


class Taken(NamedTuple):
    """A sum that the server has learnt.

    Attributes:
        vector: its words.
        devices: over how many devices it is.
    """

    vector: Vector
    devices: int


Ask: TypeAlias = Callable[[int, What], Taken | None]
"""From a slot, and what is asked in it, to the sum; None if a device of a whole slot is gone."""


class TooFewError(UserError):
    """Too few devices have a row that counts: nothing more was asked."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an analysis has revealed.

    Attributes:
        statistic: that was asked for.
        value: the statistic: a whole number (count), a number (mean, variance, quantile), counts
            by bin (histogram); None if nothing counted. With noise, counts are not whole and may be
            below 0, and what must lie in a range is moved into it.
        plus_minus: how far `value` may be off, besides rounding: without noise, of a quantile,
            else 0; with noise, about one standard deviation of what noise does to it, or to each
            count of a histogram. Of a quantile with noise, half a bin is added.
        edges: the ends of a histogram's bins; empty of others.
        count: values that counted; an estimate with noise.
        outside: of these, how many were outside of the range; None with noise.
        left_out: rows beyond the cap; None with noise.
        step: to a multiple of which, above the low end of the range, values were rounded.
        devices: devices in the last sum.
        invited: devices that were asked.
        holders: devices that have a row that counts; an estimate with noise.
        secure_sums: all that the server has learnt.
        epsilon: ε of everything above but `devices` and `invited`; None without noise.
        delta: its δ; None without noise.
    """

    statistic: str
    value: Result
    plus_minus: float
    edges: list[float]
    count: float
    outside: int | None
    left_out: int | None
    step: float
    devices: int
    invited: int
    holders: float
    secure_sums: int
    epsilon: float | None
    delta: float | None


class Deduction:
    """Asks for the sums of a plan, and draws its conclusions.

    Args:
        plan: the sums of the question.
        ask: has a slot summed.

    Attributes:
        holders: devices that have a row that counts; None before they are summed.
    """

    def __init__(self, plan: Plan, ask: Ask) -> None:
        self.holders: int | float | None = None
        self._plan, self._question, self._ask = plan, plan.question, ask
        self._num_sums = 0

    def answer(self) -> Answer:
        """The answer.

        Raises:
            TooFewError: too few devices have a row that counts.
            EncodingError: a sum lies outside of its range.
        """
        plan, question = self._plan, self._question
        holders = self._count_holders()
        sums, devices = self._sum_all(1, plan.sums)
        value, plus_minus = self._found(sums) if plan.search is None else self._searched(sums)
        noisy = bool(question.noise)
        binned = question.statistic == "histogram"
        return Answer(
            statistic=question.statistic,
            value=value,
            plus_minus=plus_minus,
            edges=question.edges.tolist() if binned else [],
            count=_plain(sums["count"][0] if "count" in sums else sum(sums["bins"])),
            outside=None if noisy else int(sums["outside"][0]),
            left_out=None if noisy else int(sums["left_out"][0]),
            step=float(question.step),
            devices=devices,
            invited=plan.num_devices,
            holders=holders,
            secure_sums=self._num_sums,
            epsilon=plan.epsilon(HOLDERS, *plan.sums) if noisy else None,
            delta=DELTA if noisy else None,
        )

    def _taken(self, slot: int, what: What) -> Taken | None:
        taken = self._ask(slot, what)
        self._num_sums += taken is not None
        return taken

    def _count_holders(self) -> int | float:
        """How many devices have anything to say; the end, if they are too few."""
        sums, devices = self._sum_all(0, (HOLDERS,))
        holders = _plain(min(max(sums["holders"][0], Fraction(0)), Fraction(devices)))
        self.holders = holders
        if holders < self._plan.guard.min_cohort:
            spent = ""
            if self._question.noise:
                epsilon = rounded_up(self._plan.epsilon(HOLDERS))
                spent = f"; this has spent ε = {epsilon} at δ = {DELTA:g}, as asking again would"
            raise TooFewError(
                f"{holders:g} devices have a row that counts, fewer than min_cohort = "
                f"{self._plan.guard.min_cohort}: nothing more was asked{spent}; ask about more of "
                "them"
            )
        return holders

    def _deviation(self, name: str) -> float:
        """σ of the noise in each number of a sum, if the fewest devices bring it; 0 without."""
        (one,) = (one for one in self._plan.sums if one.name == name)
        return float(self._question.noise * one.most)

    def _sum_all(self, slot: int, sums: Sequence[Sum]) -> tuple[dict[str, list[Fraction]], int]:
        """Sums by name, in one slot that tolerates drop-outs; and over how many devices."""
        layout = self._plan.layouts[slot]
        taken = self._taken(slot, sums)
        if taken is None:
            raise RuntimeError("a tolerant slot has no sum: this is a bug")
        decoded = layout.decode(taken.vector)
        units = {one.name: 1 << one.resolution_bits for one in layout.fields}
        return {
            name: [Fraction(int(number), units[name]) for number in numbers]
            for name, numbers in decoded.items()
        }, taken.devices

    def _found(self, sums: Mapping[str, Sequence[Fraction]]) -> tuple[Result, float]:
        """The statistic that follows from its sums."""
        question = self._question
        if question.statistic == "histogram":
            return [_plain(number) for number in sums["bins"]], self._deviation("bins")
        if question.statistic == "quantile":
            return self._of_bins(sums["bins"])
        count = sums["count"][0]
        if question.statistic == "count":
            return _plain(count), self._deviation("count")
        if count < 1:
            return None, 0.0
        most, of_count = question.num_steps, self._deviation("count")
        mean = min(max(sums["sum"][0] / count, Fraction(0)), Fraction(most))
        off_mean = math.hypot(self._deviation("sum"), float(mean) * of_count) / float(count)
        if question.statistic == "mean":
            value = min(question.value(mean), float(question.high))
            return value, min(off_mean, most) * float(question.step)
        squares = sums["squares"][0] / count
        variance = min(max(squares - mean**2, Fraction(0)), Fraction(most**2, 4))
        off_squares = math.hypot(self._deviation("squares"), float(squares) * of_count)
        off = math.hypot(off_squares / float(count), 2 * float(mean) * off_mean)
        unit = question.step**2
        return float(unit * variance), min(off, most**2 / 4) * float(unit)

    def _of_bins(self, bins: Sequence[Fraction]) -> tuple[Result, float]:
        """The quantile by noisy bins, as if each were evenly filled."""
        total, edges = round(sum(bins)), self._question.edges
        if total < 1:
            return None, 0.0
        counts = np.array(nearest_counts(list(bins), total), dtype=np.float64)
        ends = np.concatenate([[0.0], np.cumsum(counts)])
        wanted = float(self._question.level) * total
        # a sum of half of the bins has the most noise that a rank can have
        off = self._deviation("bins") * math.sqrt(len(bins) / 2)
        # the last of the ends is the total but for rounding, and no rank is beyond it
        ranks = np.clip([wanted, wanted - off, wanted + off], 0, ends[-1])
        rising = np.flatnonzero(np.diff(ends)) + 1  # empty bins hold no quantile
        at = rising[np.searchsorted(ends[rising], ranks)]
        parts = (ranks - ends[at - 1]) / (ends[at] - ends[at - 1])
        value, low, high = (edges[at - 1] + parts * (edges[at] - edges[at - 1])).tolist()
        return value, (high - low + float(edges[1] - edges[0])) / 2

    def _searched(self, sums: dict[str, list[Fraction]]) -> tuple[Result, float]:
        """The quantile by the private search; the number of values goes into `sums`."""
        config = self._plan.search
        if config is None:
            raise RuntimeError("there is no search: this is a bug")
        method, layout, slot = Bracketed(), self._plan.layouts[FIRST_QUERY], FIRST_QUERY
        search, count, shrank = method.start(config), 0, False
        while (query := search.query) is not None:
            taken = self._taken(slot, query)
            if taken is None:
                shrank = True
                break
            answer = layout.decode(taken.vector)
            count = int(answer["count"][0])
            search, slot = search.update(answer), slot + 1
        sums["count"] = [Fraction(count)]
        found = search.result(shrank=shrank)
        if not count:
            return None, 0.0
        half_width = float(self._question.step * Fraction(found.half_width_half_ticks, 2))
        return self._question.value(Fraction(found.eta_half_ticks, 2)), half_width


def _plain(number: Fraction | int) -> int | float:
    return int(number) if number == int(number) else float(number)
