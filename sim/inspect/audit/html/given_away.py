"""What the searches gave away, in figures to draw."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from deltafl.sim.charts.chart import Chart, Curve
from deltafl.sim.inspect.audit.facts import SearchFacts

Value = Callable[[SearchFacts], float | None]


def width(search: SearchFacts) -> float:
    """Length of the interval that is known to contain the threshold, in nats."""
    return search.threshold_high - search.threshold_low


_CHARTS: Final[tuple[tuple[str, str, dict[str, Value]], ...]] = (
    ("Queries of a search", "queries", {"queries": attrgetter("queries")}),
    (
        "Devices in the least crowded bucket",
        "devices",
        {"devices": attrgetter("smallest_bucket")},
    ),
    ("Bits given away per device", "bits", {"bits": attrgetter("bits")}),
    ("Width of the threshold's bracket", "nats", {"width": width}),
    (
        "Mean error of the reconstructed losses",
        "nats",
        {"with the sums": attrgetter("error"), "without them": attrgetter("prior_error")},
    ),
)
"""Title, unit, and what a search has of each curve."""


def charts(searches: Sequence[SearchFacts]) -> tuple[Chart, ...]:
    """Charts of the searches over rounds; only those that have different values."""
    ordered = sorted(searches, key=lambda search: search.round)
    rounds = tuple(search.round for search in ordered)
    drawn = []
    for title, unit, curves in _CHARTS:
        lines = []
        for number, (label, value) in enumerate(curves.items()):
            values = tuple(map(value, ordered))
            lines.append(Curve(label, number, rounds, values, values, values))
        drawn.append(Chart(title, unit, lines, is_logarithmic=curves.keys() == {"width"}))
    return tuple(one for one in drawn if len(set(one.values)) > 1)
