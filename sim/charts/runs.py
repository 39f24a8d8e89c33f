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

from deltafl.sim.charts.chart import Chart, Curve
from deltafl.sim.record.events import Event
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
    found = (
        curve(method.label, number, [values(run) for run in method.runs])
        for number, method in enumerate(methods)
    )
    return replace(chart, curves=[one for one in found if one is not None])


def error_charts(methods: Sequence[Method]) -> tuple[Chart, Chart]:
    """The test error by round: its percentile over devices, and its mean.

    Of a federation, only the mean over all test samples is known.
    """
    mean = chart_of("mean", methods)
    if any(run.summed for one in methods for run in one.runs):
        mean = replace(mean, title="Mean over all test samples")
    return chart_of("tail", methods), mean


def threshold_chart(methods: Sequence[Method]) -> Chart:
    """The threshold by round, of the methods that search for one."""
    found = [bracket_curve(method, number) for number, method in enumerate(methods)]
    return Chart(
        "The threshold η; band: what is known of it, η ± δ",
        "nats",
        [one for one in found if one is not None],
        from_zero=False,
    )


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


def _tail(run: Trained) -> Values:
    for one in run.tested:
        if one.errors.size:
            yield one.round, float(np.percentile(one.errors, TAIL))


def _mean(run: Trained) -> Values:
    for one in run.tested:
        if one.errors.size:
            yield one.round, float(one.errors.mean())
    for summed in run.summed:
        yield summed.round, summed.error


def _numbers(key: str, run: Trained) -> Values:
    """A number of the events."""
    for event in run.events:
        value = event.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield _round_of(event), float(value)


def _kept(run: Trained) -> Values:
    return _numbers("kept_devices", run) if any(_numbers("eta", run)) else ()


def _queries(run: Trained) -> Values:
    asked = tuple(_numbers("num_queries", run))
    return asked if any(value for _, value in asked) else ()


def _lost(run: Trained) -> Values:
    """Devices lost; of methods in clear, nothing."""
    for event in run.events:
        if (dropped := event.get("dropped_by_stage")) is not None:
            yield _round_of(event), float(sum(cast("dict[str, int]", dropped).values()))


def _corrupted(run: Trained) -> Values:
    return () if run.attacked is None else run.attacked.shares.items()


def _backdoor(run: Trained) -> Values:
    return () if run.attacked is None else run.attacked.backdoor.items()


def _round_of(event: Event) -> int:
    return int(cast("float", event.get("round") or 0))


_CHARTS: Final[Mapping[str, tuple[Chart, Callable[[Trained], Values]]]] = {
    "tail": (Chart(f"{TAIL}th percentile over devices", "test error", write=percent), _tail),
    "mean": (Chart("Mean over devices", "test error", write=percent), _mean),
    "kept": (Chart("Devices that passed the filter", "devices"), _kept),
    "queries": (Chart("Secure sums to find the threshold η", "secure sums"), _queries),
    "seconds": (Chart("Seconds of a round", "s"), partial(_numbers, "wall_s")),
    "lost": (Chart("Devices lost in a round", "devices"), _lost),
    "corrupted": (
        Chart("The attackers' share of the aggregate", "share of the weight", write=percent),
        _corrupted,
    ),
    "backdoor": (
        Chart("How often the backdoor works", "share of samples", write=percent),
        _backdoor,
    ),
}
"""Charts by name, without their curves, and what is drawn of a run."""
