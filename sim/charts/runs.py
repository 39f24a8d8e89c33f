"""Curves and figures of runs: numbers of their rounds by method, over seeds.

Methods are told apart by colour, dashes and markers together, so that figures can be read in grey
and by people with any colour vision.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

import numpy as np

from deltafl.sim.charts.chart import Chart, Curve, Numbers
from deltafl.sim.record.events import Event
from deltafl.sim.record.snapshot import Method, Trained
from deltafl.sim.writing import percent

TAIL: Final = 90
"""The percentile over devices that is compared."""


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


def error_charts(methods: Sequence[Method]) -> tuple[Chart, Chart]:
    """The test error by round: its percentile over devices, and its mean."""
    together = any(run.summed for one in methods for run in one.runs)
    return (
        Chart(
            f"{TAIL}th percentile over devices",
            "test error",
            error_curves(methods, TAIL),
            write=percent,
        ),
        Chart(
            "Mean over all test samples" if together else "Mean over devices",
            "test error",
            error_curves(methods, None),
            write=percent,
        ),
    )


def kept_chart(methods: Sequence[Method]) -> Chart:
    """Devices that passed the filter, of the methods that have one."""
    filtering = {one.number for one in event_curves(methods, "eta")}
    kept = [one for one in event_curves(methods, "kept_devices") if one.number in filtering]
    return Chart("Devices that passed the filter", "devices", kept)


def query_chart(methods: Sequence[Method]) -> Chart:
    """Secure sums of the search, of the methods that search."""
    asked = [one for one in event_curves(methods, "num_queries") if any(one.mean)]
    return Chart("Secure sums to find the threshold η", "secure sums", asked)


def final_errors(methods: Sequence[Method]) -> list[tuple[str, int, Numbers]]:
    """The final test errors of devices, sorted, by label and number of the method.

    They are means over seeds at each rank, of methods that were tested on as many devices by each.
    """
    found = []
    for number, method in enumerate(methods):
        rows = [run.tested[-1].errors for run in method.runs if run.tested]
        if rows and len({row.size for row in rows}) == 1 and rows[0].size:
            found.append((method.label, number, np.sort(np.array(rows), axis=1).mean(axis=0)))
    return found
