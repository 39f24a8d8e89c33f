"""Numbers to be drawn: curves with their spread over seeds, distributions, and pairs of methods."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.events import Event
from deltafl.sim.reproduce.comparison import compare_methods
from deltafl.sim.reproduce.methods import FEDAVG
from deltafl.sim.reproduce.statistics import Comparison, error_matrix
from deltafl.sim.view.look import Method, Trained

Numbers = npt.NDArray[np.float64]

TAIL: Final = 90
"""The percentile over devices that the pages compare."""

LEVEL: Final = 0.95
"""The coverage of intervals."""

_BOOTSTRAP_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class Curve:
    """One number by round, over seeds.

    Attributes:
        label: whose.
        number: of the method on its page, which decides how the line looks.
        rounds: ascending.
        mean: over the seeds that have a value there; None without any.
        low: the lowest of the seeds.
        high: the highest.
        has_range: whether low and high say more than the mean.
    """

    label: str
    number: int
    rounds: tuple[int, ...]
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    has_range: bool


def curve(label: str, number: int, seeds: Sequence[Iterable[tuple[int, float]]]) -> Curve | None:
    """Join the values of seeds by round; None if there is no value.

    Args:
        label: whose they are.
        number: of the method.
        seeds: of each seed, rounds and values; a later value of a round replaces an earlier one.
    """
    tables = [table for table in (dict(pairs) for pairs in seeds) if table]
    rounds = sorted(set().union(*tables))
    if not rounds:
        return None
    found = [[table[at] for table in tables if at in table] for at in rounds]
    return Curve(
        label,
        number,
        tuple(rounds),
        tuple(math.fsum(values) / len(values) for values in found),
        tuple(map(min, found)),
        tuple(map(max, found)),
        len(tables) > 1,
    )


def error_curves(methods: Sequence[Method], percentile: int | None) -> list[Curve]:
    """The test error over devices by round: a percentile, or the mean.

    Of a federation, only the mean over all test samples is known.
    """

    def values(run: Trained) -> Iterable[tuple[int, float]]:
        for one in run.tested:
            if one.errors.size:
                found = (
                    one.errors.mean()
                    if percentile is None
                    else np.percentile(one.errors, percentile)
                )
                yield one.round, float(found)
        if percentile is None:
            yield from ((one.round, one.error) for one in run.summed)

    return _curves(methods, values)


def event_curves(methods: Sequence[Method], key: str) -> list[Curve]:
    """A number of the events by round, of the methods that have it."""
    return _curves(methods, lambda run: _numbers_of(run.events, key))


def bracket_curve(method: Method, number: int) -> Curve | None:
    """The threshold of the first seed by round, with the interval that is known to contain it."""
    found = {}
    for event in method.runs[0].events:
        eta, reach = event.get("eta"), event.get("half_width")
        if isinstance(eta, int | float) and isinstance(reach, int | float):
            found[_round_of(event)] = float(eta), float(reach)
    if not found:
        return None
    rounds = sorted(found)
    return Curve(
        method.label,
        number,
        tuple(rounds),
        tuple(found[at][0] for at in rounds),
        tuple(found[at][0] - found[at][1] for at in rounds),
        tuple(found[at][0] + found[at][1] for at in rounds),
        has_range=True,
    )


def dropout_curves(methods: Sequence[Method]) -> list[Curve]:
    """Devices lost by round; of methods in clear, nothing."""

    def values(run: Trained) -> Iterable[tuple[int, float]]:
        for event in run.events:
            if (dropped := event.get("dropped_by_stage")) is not None:
                yield _round_of(event), float(sum(cast("dict[str, int]", dropped).values()))

    return _curves(methods, values)


def corrupted_curves(methods: Sequence[Method]) -> list[Curve]:
    """The attackers' share of the aggregate by round, of the methods that have any."""
    return _curves(methods, lambda run: () if run.attacked is None else run.attacked.shares.items())


def backdoor_curves(methods: Sequence[Method]) -> list[Curve]:
    """How well a backdoor works by round, of the methods that have one."""
    return _curves(
        methods, lambda run: () if run.attacked is None else run.attacked.backdoor.items()
    )


def _curves(
    methods: Sequence[Method], values: Callable[[Trained], Iterable[tuple[int, float]]]
) -> list[Curve]:
    found = (
        curve(method.label, number, [values(run) for run in method.runs])
        for number, method in enumerate(methods)
    )
    return [one for one in found if one is not None]


def _numbers_of(events: Sequence[Event], key: str) -> Iterable[tuple[int, float]]:
    for event in events:
        value = event.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield _round_of(event), float(value)


def _round_of(event: Event) -> int:
    return int(cast("float", event.get("round") or 0))


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """How the test errors of a method lie over devices, by round.

    Attributes:
        label: whose.
        number: of the method.
        rounds: ascending.
        shares: of the devices of all seeds, the share in each bin, float64 [rounds, bins]; bins
            are of equal width, from no error to all wrong.
    """

    label: str
    number: int
    rounds: tuple[int, ...]
    shares: Numbers


def spread(method: Method, number: int, bins: int) -> Spread | None:
    """The distribution of a method's test errors by round; None without evaluations."""
    by_round: dict[int, list[Numbers]] = {}
    for run in method.runs:
        for one in run.tested:
            if one.errors.size:
                by_round.setdefault(one.round, []).append(one.errors)
    if not by_round:
        return None
    rounds = sorted(by_round)
    rows = []
    for at in rounds:
        errors = np.concatenate(by_round[at])
        counts, _ = np.histogram(errors, bins, range=(0.0, 1.0))
        rows.append(counts / errors.size)
    return Spread(method.label, number, tuple(rounds), np.array(rows))


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """The final test errors of devices under two methods, averaged over the seeds of both.

    Attributes:
        method: the label of the one.
        baseline: the label of the other.
        devices: ids; the best-served by the baseline first.
        ours: errors under the method, float64 [devices].
        theirs: errors under the baseline, float64 [devices].
        round: the round that both have reached, of which these errors are.
        seeds: how many seeds both have.
    """

    method: str
    baseline: str
    devices: tuple[str, ...]
    ours: Numbers
    theirs: Numbers
    round: int
    seeds: int

    @property
    def helped(self) -> int:
        """Devices with a lower error than under the baseline."""
        return int((self.ours < self.theirs).sum())

    @property
    def hurt(self) -> int:
        """Devices with a higher one."""
        return int((self.ours > self.theirs).sum())


def pairs(ours: Method, theirs: Method) -> Pairs | None:
    """Pair two methods by seed and device, at the latest round that both have evaluated.

    Returns:
        None where no seed has been evaluated under both on the same devices.
    """
    found = _common(ours, theirs)
    if not found:
        return None
    number = max(at for at, _, _ in found)
    chosen = [(mine, his) for at, mine, his in found if at == number]
    ids, mine = error_matrix([one for one, _ in chosen])
    _, his = error_matrix([one for _, one in chosen])
    mean, base = mine.mean(axis=0), his.mean(axis=0)
    order = np.lexsort((mean, base))
    return Pairs(
        ours.label,
        theirs.label,
        tuple(ids[at] for at in order),
        mean[order],
        base[order],
        number,
        len(chosen),
    )


def _common(ours: Method, theirs: Method) -> list[tuple[int, Evaluation, Evaluation]]:
    """Of each seed: the latest round that both have evaluated, and these evaluations."""
    by_seed = {run.seed: run for run in theirs.runs}
    found: list[tuple[int, Evaluation, Evaluation]] = []
    for run in ours.runs:
        if (other := by_seed.get(run.seed)) is None:
            continue
        mine = {one.round: one for one in run.tested if one.devices}
        his = {one.round: one for one in other.tested if one.devices}
        shared = [
            at
            for at in mine.keys() & his.keys()
            if set(mine[at].devices) == set(his[at].devices)
            and len(set(mine[at].devices)) == len(mine[at].devices) == len(his[at].devices)
        ]
        if shared:
            at = max(shared)
            pair = (
                _evaluation(mine[at].devices, mine[at].errors, at),
                _evaluation(his[at].devices, his[at].errors, at),
            )
            if found and {one.id for one in found[0][1].test} != {one.id for one in pair[0].test}:
                continue
            found.append((at, *pair))
    return found


def _evaluation(devices: Sequence[str], errors: Numbers, number: int) -> Evaluation:
    """What the statistics need of an evaluation."""
    test = [DeviceMetrics(one, 1, 0.0, float(e)) for one, e in zip(devices, errors, strict=True)]
    return Evaluation(number, (), test)


def baseline_of(methods: Sequence[Method], wanted: str | None = None) -> Method | None:
    """What the others are compared with: the wanted one, or FedAvg, or the last.

    Raises:
        ValueError: there is no method of this label.
    """
    if wanted is not None:
        found = next((one for one in methods if one.label == wanted), None)
        if found is None:
            known = ", ".join(one.label for one in methods)
            raise ValueError(f"{wanted!r} is not one of the methods: {known}")
        return found
    if len(methods) < 2:
        return None
    return next((one for one in methods if one.algorithm == FEDAVG.key), methods[-1])


def comparisons(
    methods: Sequence[Method], baseline: Method, percentile: int | None
) -> tuple[Comparison, ...]:
    """Compare the final models of all methods with the baseline, as `compare_methods`.

    Raises:
        ValueError: the methods do not have the same seeds, last rounds and test devices.
    """
    finals: dict[str, list[Evaluation]] = {}
    of_baseline = [(run.seed, run.tested[-1].round) for run in baseline.runs if run.tested]
    for method in methods:
        runs = [run for run in method.runs if run.tested and run.tested[-1].devices]
        if [(run.seed, run.tested[-1].round) for run in runs] != of_baseline:
            raise ValueError(
                f"{method.label} and {baseline.label} do not have the same seeds and last rounds"
            )
        finals[method.label] = [
            _evaluation(run.tested[-1].devices, run.tested[-1].errors, run.tested[-1].round)
            for run in runs
        ]
    return compare_methods(
        finals,
        baseline=baseline.label,
        rng=np.random.default_rng(_BOOTSTRAP_SEED),
        percentile=percentile,
        level=LEVEL,
    )
