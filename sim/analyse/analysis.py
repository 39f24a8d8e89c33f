"""Ask devices one question about their tables, and learn nothing but secure sums."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.bracketed import Bracketed
from deltafl.protocol.quantile.noisy import nearest_counts
from deltafl.protocol.quantile.search import Query, SearchConfig, SearchParams
from deltafl.protocol.sessions import preferred_graph
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import (
    ClientId,
    DevicePolicy,
    GraphKind,
    SecAggError,
    SessionParams,
    SlotSpec,
    SlotSum,
    ThreatModel,
)
from deltafl.secagg.labels import digest
from deltafl.secagg.layout import Field, Layout
from deltafl.secagg.params import DIGEST_SIZE
from deltafl.secagg.randomness import system_randomness
from deltafl.secagg.ring import Vector, reduce, zeros
from deltafl.secagg.session import Observer
from deltafl.secagg.stages import Vanishing
from deltafl.sim.analyse.privacy import noise_of, rho_of_sums
from deltafl.sim.analyse.question import (
    HOLDERS,
    Part,
    Question,
    Sum,
    Values,
    check_whole,
    notes_of,
    sums_of,
)
from deltafl.sim.analyse.session import AnalysisSession
from deltafl.sim.errors import UserError
from deltafl.sim.run.accounting import DELTA, epsilon_of
from deltafl.sim.run.bound import rounded_up

Result: TypeAlias = int | float | list[int] | list[float] | None

_LABEL: Final = b"deltafl analyse"
_SLOT: Final = "analyse"
_MOST_DEVICES: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may be summed, and what a session must withstand.

    Attributes:
        min_cohort: fewest devices to sum over, and fewest that have a row that counts; at least 2.
        threat: shares of colluding and vanishing devices, and the adversary.
        graph: who shares masks with whom; None chooses by the number of devices.

    Raises:
        UserError: min_cohort is not a whole number of at least 2.
    """

    min_cohort: int = 10
    threat: ThreatModel = field(default_factory=ThreatModel)
    graph: GraphKind | None = None

    def __post_init__(self) -> None:
        check_whole("min_cohort", self.min_cohort, 2, _MOST_DEVICES)


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


def analyse_tables(
    tables: Mapping[int, Values],
    question: Question,
    guard: Guard | None = None,
    *,
    vanishing: Vanishing | None = None,
    observer: Observer | None = None,
) -> Answer:
    """Ask the devices, in a session with real keys, masks and messages.

    First, one secure sum counts the devices that have anything to contribute; if they are too few,
    nothing more is asked.

    Args:
        tables: for each device, its values of the column, finite, in the order of its rows; empty
            if it has none.
        question: what is asked.
        guard: the fewest devices, and the threat.
        vanishing: which devices vanish, and when.
        observer: watches the session.

    Raises:
        UserError: too few devices, or no session with so many of them withstands the threat, or the
            range, the cap or the noise are too large for sums that fit.
    """
    guard = guard or Guard()
    if len(tables) < guard.min_cohort:
        raise UserError(
            f"{len(tables)} devices are fewer than --min-cohort {guard.min_cohort}: a sum over few "
            "says much of each"
        )
    try:
        return _Analysis(tables, question, guard, vanishing or {}, observer).answer()
    except (SecAggError, ConfigurationError) as error:
        raise UserError(f"the {question.statistic} cannot be found: {error}") from error


class _Analysis:
    def __init__(
        self,
        tables: Mapping[int, Values],
        question: Question,
        guard: Guard,
        vanishing: Vanishing,
        observer: Observer | None,
    ) -> None:
        self._question, self._guard = question, guard
        self._parts = {ClientId(i): question.of_device(rows) for i, rows in tables.items()}
        threat, num = guard.threat, len(tables)
        self._sums = sums_of(question)
        self._search = self._search_config() if self._searches else None
        if self._search is not None:
            self._sums = tuple(notes_of(question))
        shaped = self._params((SlotSpec(_SLOT, 1, 1),))
        self._num_noisy = shaped.min_cohort - threat.num_colluding(num)
        self._layouts = [self._layout((HOLDERS,)), self._layout(self._sums)]
        if self._search is not None:
            ranks = Bracketed().layout(self._search)
            self._layouts += [ranks] * self._search.search.max_queries
        slots = tuple(
            SlotSpec(_SLOT, layout.length, layout.ring_bits, whole=index > 1)
            for index, layout in enumerate(self._layouts)
        )
        params = self._params(slots)
        policy = DevicePolicy(
            threat.adversary,
            threat.colluding_rate,
            threat.dropout_rate,
            min_cohort=guard.min_cohort,
            min_threshold=2,
            max_slots=len(slots),
        )
        self._session = AnalysisSession(params, list(self._parts), policy, vanishing, observer)

    def _params(self, slots: tuple[SlotSpec, ...]) -> SessionParams:
        num, guard = len(self._parts), self._guard
        return SessionParams.for_threat(
            num,
            slots,
            threat=guard.threat,
            graph=guard.graph or preferred_graph(num, guard.threat),
            min_cohort=guard.min_cohort,
            graph_seed=system_randomness(DIGEST_SIZE),
            context=system_randomness(DIGEST_SIZE),
        )

    @property
    def _searches(self) -> bool:
        return self._question.statistic == "quantile" and not self._question.noise

    def answer(self) -> Answer:
        holders = self._count_holders()
        sums, devices = self._sum_all(1, self._sums, repr(self._question).encode())
        value, plus_minus = self._found(sums) if self._search is None else self._searched(sums)
        question = self._question
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
            invited=len(self._parts),
            holders=holders,
            secure_sums=self._session.num_sums,
            epsilon=self._epsilon(HOLDERS, *self._sums) if noisy else None,
            delta=DELTA if noisy else None,
        )

    def _count_holders(self) -> int | float:
        """How many devices have anything to say; the end, if they are too few."""
        sums, devices = self._sum_all(0, (HOLDERS,), b"holders")
        holders = _plain(min(max(sums["holders"][0], Fraction(0)), Fraction(devices)))
        if holders < self._guard.min_cohort:
            spent = ""
            if self._question.noise:
                epsilon = rounded_up(self._epsilon(HOLDERS))
                spent = f"; this has spent ε = {epsilon} at δ = {DELTA:g}, as asking again would"
            raise UserError(
                f"{holders:g} devices have a row that counts, fewer than min_cohort = "
                f"{self._guard.min_cohort}: nothing more was asked{spent}; ask about more of them"
            )
        return holders

    def _epsilon(self, *sums: Sum) -> float:
        """ε of these sums, which have noise."""
        return epsilon_of(rho_of_sums(sums, self._question.noise, self._num_noisy), DELTA)

    def _deviation(self, name: str) -> float:
        """σ of the noise in each number of a sum, if the fewest devices bring it; 0 without."""
        (one,) = (one for one in self._sums if one.name == name)
        return float(self._question.noise * one.most)

    def _noise(self, one: Sum) -> Noise | None:
        sigma = self._question.noise
        return noise_of(one, sigma, self._num_noisy) if sigma else None

    def _layout(self, sums: Sequence[Sum]) -> Layout:
        num, fields = len(self._parts), []
        for one in sums:
            noise = self._noise(one)
            if noise is None:
                fields.append(Field(one.name, one.size, 0, one.most, 0))
                continue
            most = _bound(noise, one, num) / (1 << noise.resolution_bits)
            fields.append(Field(one.name, one.size, -most, one.most + most, noise.resolution_bits))
        return Layout(tuple(fields), num)

    def _sum_all(
        self, slot: int, sums: Sequence[Sum], asked: bytes
    ) -> tuple[dict[str, list[Fraction]], int]:
        """Sums by name, in one slot that tolerates drop-outs; and over how many devices."""
        layout = self._layouts[slot]

        def contribution(part: Part) -> Vector:
            return layout.encode({one.name: self._told(one, part) for one in sums})[0]

        taken = self._taken(slot, contribution, asked)
        if taken is None:
            raise RuntimeError("a tolerant slot has no sum: this is a bug")
        decoded = layout.decode(taken.vector)
        units = {one.name: 1 << one.resolution_bits for one in layout.fields}
        return {
            name: [Fraction(int(number), units[name]) for number in numbers]
            for name, numbers in decoded.items()
        }, len(taken.contributors)

    def _told(self, one: Sum, part: Part) -> Values:
        """A device's numbers, with its share of the noise."""
        numbers = one.of(part).astype(np.float64)
        noise = self._noise(one)
        if noise is None:
            return numbers
        bound = _bound(noise, one, len(self._parts))
        return numbers + noise.share(one.size, bound, system_randomness) / (
            1 << noise.resolution_bits
        )

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
        ranks = np.clip([wanted, wanted - off, wanted + off], 0, total)
        rising = np.flatnonzero(np.diff(ends)) + 1  # empty bins hold no quantile
        at = rising[np.searchsorted(ends[rising], ranks)]
        parts = (ranks - ends[at - 1]) / (ends[at] - ends[at - 1])
        value, low, high = (edges[at - 1] + parts * (edges[at] - edges[at - 1])).tolist()
        return value, (high - low + float(edges[1] - edges[0])) / 2

    def _search_config(self) -> SearchConfig:
        """The private search, in which every value is a device of weight 1."""
        question = self._question
        params = SearchParams(
            max_queries=Bracketed().default_max_queries,
            grid=LossGrid(0, question.num_steps),
            weighting=Weighting.EQUAL,
        )
        theta, num_values = 1 - question.level, len(self._parts) * question.cap
        return SearchConfig(theta, params, max_weight=1, cohort_size=num_values)

    def _searched(self, sums: dict[str, list[Fraction]]) -> tuple[Result, float]:
        """The quantile by the private search; the number of values goes into `sums`."""
        config = self._search
        if config is None:
            raise RuntimeError("there is no search: this is a bug")
        method, layout, slot = Bracketed(), self._layouts[2], 2
        search, count, shrank = method.start(config), 0, False
        while (query := search.query) is not None:
            taken = self._taken(slot, self._ranks(method, config, query), query.canonical())
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

    def _ranks(
        self, method: Bracketed, config: SearchConfig, query: Query
    ) -> Callable[[Part], Vector]:
        layout = self._layouts[2]

        def answer(part: Part) -> Vector:
            """The sum of what devices with one value each would answer."""
            total = zeros(layout.length, layout.ring_bits)
            ticks, counts = np.unique(self._question.ticks(part.values), return_counts=True)
            for tick, number in zip(ticks.tolist(), counts.tolist(), strict=True):
                one = layout.encode(method.contribution(config, query, tick, 1))[0]
                np.add(total, one * one.dtype.type(number), out=total)
            reduce(total, layout.ring_bits)
            return total

        return answer

    def _taken(self, slot: int, answers: Callable[[Part], Vector], asked: bytes) -> SlotSum | None:
        def answer(device: ClientId) -> Vector:
            return answers(self._parts[device])

        return self._session.sum(slot, answer, digest(_LABEL, asked))


def _bound(noise: Noise, one: Sum, num_devices: int) -> int:
    return noise.bound(one.size * num_devices)


def _plain(number: Fraction | int) -> int | float:
    return int(number) if number == int(number) else float(number)
