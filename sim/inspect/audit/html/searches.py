"""What the searches for the threshold gave away: figures to list, and figures to draw."""

import math
from collections.abc import Callable, Sequence

from deltafl.sim.charts.chart import Chart, Curve
from deltafl.sim.inspect.audit.facts import SearchFacts
from deltafl.sim.writing import count, number, quantity, span

Values = tuple[str, Callable[[SearchFacts], float | None]]
"""What a curve shows of a search, after its name."""


def width(search: SearchFacts) -> float:
    """Length of the interval that is known to contain the threshold, in nats."""
    return search.threshold_high - search.threshold_low


def _middle(search: SearchFacts) -> float | None:
    """Where the threshold is, if its interval is bounded."""
    return (
        (search.threshold_low + search.threshold_high) / 2 if math.isfinite(width(search)) else None
    )


def highlights(searches: Sequence[SearchFacts]) -> tuple[tuple[str, str], ...]:
    """Names and values of the notable figures over all searches; empty without searches."""
    if not searches:
        return ()
    queries = [search.queries for search in searches]
    facts = [
        ("Searches", number(len(searches))),
        ("Methods", ", ".join(dict.fromkeys(search.method for search in searches))),
        ("Queries per search", span(min(queries), max(queries))),
        ("Sums that answered them", number(sum(queries))),
        ("Numbers in these sums", number(sum(search.numbers for search in searches))),
    ]
    bounded = [search for search in searches if math.isfinite(width(search))]
    if bounded:
        narrowest = min(bounded, key=width)
        bracket = f"{quantity(width(narrowest))} nats, {_in(narrowest)}"
        facts.append(("Narrowest bracket of a threshold", bracket))
    counted = [search for search in searches if search.smallest_bucket is not None]
    if counted:
        least = min(counted, key=lambda search: search.smallest_bucket or 0)
        held = count(least.smallest_bucket or 0, "device")
        facts.append(("Least crowded bucket", f"{held}, {_in(least)}"))
    measured = [search for search in searches if search.bits is not None]
    if measured:
        most = max(measured, key=lambda search: search.bits or 0.0)
        facts.append(("Most given away per device", f"{quantity(most.bits)} bits, {_in(most)}"))
    return tuple(facts)


def charts(searches: Sequence[SearchFacts]) -> tuple[Chart, ...]:
    """Charts of the searches over rounds; only those that have different values."""
    ordered = sorted(searches, key=lambda search: search.round)

    def chart(title: str, unit: str, *values: Values, is_logarithmic: bool = False) -> Chart:
        curves = [_curve(number, ordered, *one) for number, one in enumerate(values)]
        return Chart(title, unit, curves, is_logarithmic=is_logarithmic)

    drawn = (
        chart("Threshold that was found", "nats", ("threshold", _middle)),
        chart("Queries of a search", "queries", ("queries", lambda one: one.queries)),
        chart(
            "Devices in the least crowded bucket",
            "devices",
            ("devices", lambda one: one.smallest_bucket),
        ),
        chart("Bits given away per device", "bits", ("bits", lambda one: one.bits)),
        chart("Width of the threshold's bracket", "nats", ("width", width), is_logarithmic=True),
        chart(
            "Mean error of the reconstructed losses",
            "nats",
            ("with the sums", lambda one: one.error),
            ("without them", lambda one: one.prior_error),
        ),
    )
    return tuple(one for one in drawn if len(set(one.values)) > 1)


def _curve(
    number: int,
    searches: Sequence[SearchFacts],
    label: str,
    value: Callable[[SearchFacts], float | None],
) -> Curve:
    values = tuple(map(value, searches))
    rounds = tuple(search.round for search in searches)
    return Curve(label, number, rounds, values, values, values)


def _in(search: SearchFacts) -> str:
    return f"round {number(search.round)}"
