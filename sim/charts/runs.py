"""Curves and figures of runs: numbers of their rounds by method, over seeds.

Methods are told apart by colour, dashes and markers together, so that figures can be read in grey
and by people with any colour vision.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias, cast

import numpy as np

from deltafl.fl.simplex import Reals
from deltafl.sim.charts.chart import Chart, Curve
from deltafl.sim.record.events import Event, dropped
from deltafl.sim.record.snapshot import Method, Trained
from deltafl.sim.writing import percent

Values: TypeAlias = Iterable[tuple[int, float]]
"""Rounds, and a number of each; a later one of a round replaces an earlier one."""

TAIL: Final = 90
"""The percentile over devices that is compared."""


def curve(label: str, number: int, seeds: Sequence[Values]) -> Curve | None:
    """Join the values of seeds by round; None if there is no value.

    Args:
        label: whose they are.
        number: of the method.
        seeds: the values of each seed.
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


def chart_of(name: str, methods: Sequence[Method]) -> Chart:
    """A chart of runs by its name in the table, over the methods that have such values."""
    chart, values = _CHARTS[name]
    found = (curve(method.label, number, values(method)) for number, method in enumerate(methods))
    return replace(chart, curves=[one for one in found if one is not None])


def error_charts(methods: Sequence[Method]) -> tuple[Chart, Chart]:
    """The test error by round: its percentile over devices, and its mean.

    Of a federation, only the mean over all test samples is known.
    """
    mean = chart_of("mean", methods)
    if any(run.summed for one in methods for run in one.runs):
        mean = replace(mean, title="Mean over all test samples")
    return chart_of("tail", methods), mean


def _bracket(method: Method) -> list[list[tuple[int, float]]]:
    """What the first seed knows of the threshold: its ends and, as their mean, its middle."""
    known = [
        (_round_of(event), eta, reach)
        for event in method.runs[0].events
        if isinstance(eta := event.get("eta"), int | float)
        and isinstance(reach := event.get("half_width"), int | float)
    ]
    return [[(at, eta + side * reach) for at, eta, reach in known] for side in (-1, 0, 1)]


def _by_seed(values: Callable[[Trained], Values]) -> Callable[[Method], list[Values]]:
    return lambda method: [values(run) for run in method.runs]


def _errors(of: Callable[[Reals], object], run: Trained) -> Values:
    """A statistic of the test errors over devices."""
    for one in run.tested:
        if one.errors.size:
            yield one.round, float(cast("float", of(one.errors)))


@_by_seed
def _mean(run: Trained) -> Values:
    yield from _errors(np.mean, run)
    yield from run.summed.items()


def _numbers(key: str, run: Trained) -> Values:
    """A number of the events."""
    for event in run.events:
        value = event.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield _round_of(event), float(value)


@_by_seed
def _kept(run: Trained) -> Values:
    return _numbers("kept_devices", run) if any(_numbers("eta", run)) else ()


@_by_seed
def _queries(run: Trained) -> Values:
    asked = tuple(_numbers("num_queries", run))
    return asked if any(value for _, value in asked) else ()


@_by_seed
def _lost(run: Trained) -> Values:
    """Devices lost; of methods in clear, nothing."""
    for event in run.events:
        if event.get("dropped_by_stage") is not None:
            yield _round_of(event), float(dropped([event]).total())


def _attacked(key: str, run: Trained) -> Values:
    """What the simulator noted of attackers."""
    return () if run.attacked is None else getattr(run.attacked, key).items()


def _round_of(event: Event) -> int:
    return int(cast("float", event.get("round") or 0))


_tail = _by_seed(partial(_errors, partial(np.percentile, q=TAIL)))

_CHARTS: Final[Mapping[str, tuple[Chart, Callable[[Method], Sequence[Values]]]]] = {
    "tail": (Chart(f"{TAIL}th percentile over devices", "test error", write=percent), _tail),
    "mean": (Chart("Mean over devices", "test error", write=percent), _mean),
    "threshold": (
        Chart("The threshold η; band: what is known of it, η ± δ", "nats", from_zero=False),
        _bracket,
    ),
    "kept": (Chart("Devices that passed the filter", "devices"), _kept),
    "queries": (Chart("Secure sums to find the threshold η", "secure sums"), _queries),
    "seconds": (Chart("Seconds of a round", "s"), _by_seed(partial(_numbers, "wall_s"))),
    "lost": (Chart("Devices lost in a round", "devices"), _lost),
    "corrupted": (
        Chart("The attackers' share of the aggregate", "share of the weight", write=percent),
        _by_seed(partial(_attacked, "shares")),
    ),
    "backdoor": (
        Chart("How often the backdoor works", "share of samples", write=percent),
        _by_seed(partial(_attacked, "backdoor")),
    ),
}
"""Charts by name, without their curves, and what is drawn of a method, by seed."""
