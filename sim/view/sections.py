"""What a page shows of runs: the numbers and charts of each of its sections."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar, cast

from deltafl.protocol.losses import LossGrid
from deltafl.sim.inspect.audit.html.writing import count, number, quantity
from deltafl.sim.record.events import Event
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.accounting import DELTA
from deltafl.sim.run.bound import rounded_up
from deltafl.sim.run.spending import SPENT
from deltafl.sim.run.summary import search_privacy
from deltafl.sim.settings.config_io import show, to_toml
from deltafl.sim.view import charts, device_charts, series
from deltafl.sim.view.attackers import attackers_of
from deltafl.sim.view.charts import Chart
from deltafl.sim.view.device_charts import PairChart
from deltafl.sim.view.look import Look, Method, Trained
from deltafl.sim.view.shown import AuditShown, Compared, Cost, Shown, State
from deltafl.sim.view.stages import stage_times
from deltafl.sim.view.wire import Wire

T = TypeVar("T")

MAX_METHODS: Final = 12
"""The most methods of which a page draws distributions and pairs."""

BINS: Final = 20
"""Bins of a distribution of test errors."""

QUIET_S: Final = 60.0
"""After so many seconds without a new round, or five times the longest round, a run may be dead."""


_MOST_VERSIONS: Final = 40
_LONGEST: Final = 200  # of what files say

_SOFTWARE: Final = ("deltafl", "python", "torch", "numpy", "scikit-learn")
_MACHINE: Final = ("machine", "device", "backend", "cpu_capability")


def wire_of(look: Look) -> Wire | None:
    """A reader of the transcript of a run; None where there is none."""
    if look.config is None or not look.config.has_masked_sums:
        return None
    quantile = look.config.quantile
    grid = LossGrid(quantile.resolution_bits, quantile.loss_bound)
    return Wire(RunDirectory(look.path).transcript, grid)


def methods_of(looks: Sequence[Look]) -> list[Method]:
    """The methods of several runs that have begun, each with a label of its own."""
    labels = Counter(method.label for look in looks for method in look.methods)
    names = Counter(look.path.name for look in looks)
    found = []
    for look in looks:
        name = look.path.name if names[look.path.name] == 1 else str(look.path)
        for method in look.methods:
            if not any(run.events or run.tested or run.summed for run in method.runs):
                continue
            label = method.label
            found.append(replace(method, label=f"{label} ({name})" if labels[label] > 1 else label))
    return found


def shown(
    looks: Sequence[Look],
    wire: Wire | None = None,
    audit: AuditShown | None = None,
    *,
    wanted: str | None = None,
    now: float | None = None,
) -> Shown:
    """What a page shows.

    Args:
        looks: the runs.
        wire: of the first of them.
        audit: of the first of them.
        wanted: the label of what others are compared with; by default FedAvg, or the last.
        now: seconds since the epoch; by default, those of the clock.

    Raises:
        ValueError: there is no method of the label `wanted`.
    """
    methods = methods_of(looks)
    baseline = series.baseline_of(methods, wanted)
    tested = [one for method in methods for run in method.runs for one in run.tested]
    costs = tuple(_cost(method, at) for at, method in enumerate(methods))
    stages = sorted({stage for one in costs for stage in one.dropped})[:MAX_METHODS]
    pairs, problem = _pairs(methods, baseline)
    problems = [sentence for look in looks for sentence in look.problems]
    problems += [wire.problem] if wire is not None and wire.problem else []
    dropouts = charts.line_chart(
        "Devices lost in a round", "devices", series.dropout_curves(methods)
    )
    return Shown(
        name=", ".join(str(look.path) for look in looks),
        state=_state(looks, time.time() if now is None else now),
        glance=_glance(looks, costs, max((len(one.devices) for one in tested), default=0)),
        problems=tuple(problems),
        legend=tuple(charts.look_of(one.label, at) for at, one in enumerate(methods)),
        errors=_known(
            charts.line_chart(
                f"{series.TAIL}th percentile over devices",
                "test error",
                series.error_curves(methods, series.TAIL),
                is_share=True,
            ),
            charts.line_chart(
                "Mean over all test samples"
                if any(run.summed for one in methods for run in one.runs)
                else "Mean over devices",
                "test error",
                series.error_curves(methods, None),
                is_share=True,
            ),
        ),
        is_several=any(len(method.runs) > 1 for method in methods),
        heats=_known(
            *(
                device_charts.heat(found)
                for at, method in enumerate(methods[:MAX_METHODS])
                if (found := series.spread(method, at, BINS)) is not None
            )
        ),
        pairs=pairs,
        pair_problem=problem,
        baseline="" if baseline is None else baseline.label,
        labels=tuple(method.label for method in methods),
        searches=_searches(methods, wire),
        costs=costs,
        seconds=charts.line_chart(
            "Seconds of a round", "s", series.event_curves(methods, "wall_s")
        ),
        stage_times=stage_times(methods[:MAX_METHODS]),
        carried=tuple(wire.carried) if wire is not None else (),
        carried_share=wire.share if wire is not None else 1.0,
        dropouts=dropouts if stages else None,
        stages=tuple(stages),
        privacy=tuple(_privacy(looks)),
        audit=audit or AuditShown("none", sentence=_no_audit(methods)),
        runs=tuple(_settings(look) for look in looks),
        about=tuple(_about(look) for look in looks if look.config is not None),
        attackers=attackers_of(looks, methods),
    )


def compare(found: Shown, looks: Sequence[Look]) -> Shown:
    """Add tables of paired differences, which take seconds."""
    methods = methods_of(looks)
    if not found.baseline:
        return replace(
            found, compared_problem="There is one method, and nothing to compare it with."
        )
    baseline = series.baseline_of(methods, found.baseline)
    assert baseline is not None  # noqa: S101 - it is that of the page
    tables = []
    for title, percentile in (
        (f"{series.TAIL}th percentile over devices", series.TAIL),
        ("Mean over devices", None),
    ):
        try:
            rows = series.comparisons(methods, baseline, percentile)
        except ValueError as error:
            return replace(found, compared_problem=f"There are no paired differences: {error}.")
        tables.append(Compared(title, baseline.label, rows))
    return replace(found, compared=tuple(tables))


def _known(*found: T | None) -> tuple[T, ...]:
    return tuple(one for one in found if one is not None)


def _has(method: Method, key: str) -> bool:
    return any(event.get(key) is not None for run in method.runs for event in run.events)


def _state(looks: Sequence[Look], now: float) -> State:
    without = [look for look in looks if look.config is None]
    if any(look.problems for look in without):
        return State("high", "Cannot be read", "The settings of the run cannot be read.")
    if without:
        return State("info", "Not begun", "There is no run here yet.")
    if all(look.is_finished for look in looks):
        return State("clean", "Finished", _progress(looks))
    written = max(look.written for look in looks)
    quiet = max(0.0, now - written)
    longest = max(
        (_seconds(event, "wall_s") for look in looks for run in look.runs for event in run.events),
        default=0.0,
    )
    if quiet > max(QUIET_S, 5 * longest):
        return State(
            "medium",
            "Not finished",
            f"{_progress(looks)} Nothing has been written for {_duration(quiet)}: it may have "
            "stopped. `deltafl run --resume` continues a run.",
        )
    return State("info", "In progress", _progress(looks))


def _progress(looks: Sequence[Look]) -> str:
    runs = [run for look in looks for run in look.runs]
    done, wanted = sum(len(run.events) for run in runs), sum(run.rounds for run in runs)
    text = f"{number(done)} of {count(wanted, 'round')} of {count(len(runs), 'run')}."
    for look in looks:
        going_on = [(m, r) for m in look.methods for r in m.runs if len(r.events) < r.rounds]
        if going_on and not look.is_finished:
            method, run = going_on[0]
            text += (
                f" Now: {method.label}, seed {run.seed}, after round "
                f"{number(len(run.events))} of {number(run.rounds)}."
            )
            break
    return text


def _glance(
    looks: Sequence[Look], costs: Sequence[Cost], devices: int
) -> tuple[tuple[str, str, str], ...]:
    runs = [run for look in looks for run in look.runs]  # levels are trained in the same rounds
    events = [event for run in runs for event in run.events]
    dropped, lost = _dropped(events).total(), sum(bool(event.get("aborted")) for event in events)
    found = [
        ("Rounds", number(len(events)), f"of {number(sum(run.rounds for run in runs))}"),
        ("Secure sums", number(sum(one.sums for one in costs)), "over all runs"),
        ("Time in rounds", _duration(_total(events, "wall_s")), "over all runs"),
        ("Lost rounds", number(lost), f"{count(dropped, 'device')} dropped out"),
    ]
    if devices:
        found.append(("Test devices", number(devices), count(len(costs), "method")))
    return tuple(found)


def _cost(method: Method, at: int) -> Cost:
    events = [event for run in method.runs for event in run.events]
    up = [_seconds(e, "bytes_up_per_device") for e in events if e.get("bytes_up_per_device")]
    return Cost(
        charts.look_of(method.label, at),
        len(events),
        int(_total(events, "secure_sums")) if method.is_private else 0,
        _total(events, "train_cpu_s"),
        _total(events, "protocol_cpu_s"),
        _total(events, "wall_s"),
        sum(up) / len(up) if up else None,
        sum(bool(event.get("aborted")) for event in events),
        dict(_dropped(events)),
    )


def _pairs(methods: Sequence[Method], baseline: Method | None) -> tuple[tuple[PairChart, ...], str]:
    if baseline is None:
        return (), "There is one method, and nothing to compare it with."
    found = []
    for at, method in enumerate(methods[:MAX_METHODS]):
        if method is not baseline and (paired := series.pairs(method, baseline)) is not None:
            found.append(device_charts.pair_chart(paired, at, methods.index(baseline)))
    if not found:
        return (), (
            f"No method has been evaluated on the same devices and seed as {baseline.label} yet."
        )
    return tuple(found), ""


def _searches(methods: Sequence[Method], wire: Wire | None) -> tuple[Chart, ...]:
    thresholds = [series.bracket_curve(method, at) for at, method in enumerate(methods)]
    filtering = {method.label for method in methods if _has(method, "eta")}
    kept = series.event_curves(methods, "kept_devices")
    steps = [charts.search_chart(one) for one in wire.searches] if wire is not None else []
    return (
        *_known(
            charts.line_chart(
                "Questions (secure sums) to find the threshold",
                "questions",
                [c for c in series.event_curves(methods, "num_queries") if any(c.mean)],
            ),
            charts.line_chart(
                "The threshold η; band: what is known of it, η ± δ",
                "nats",
                [one for one in thresholds if one is not None],
                from_zero=False,
            ),
            charts.line_chart(
                "Devices that passed the filter",
                "devices",
                [one for one in kept if one.label in filtering],
            ),
        ),
        *steps,
    )


def _privacy(looks: Sequence[Look]) -> list[str]:
    """What sums with noise have cost so far: all of them, or the searches of every round."""
    found = []
    for look in looks:
        if look.config is None or not look.methods or not look.methods[0].runs:
            continue
        first: Trained = look.methods[0].runs[0]
        arm = look.config.arms()[0]
        rounds = len(first.events)
        if arm.dp.noise and rounds:
            epsilon, delta = (first.events[-1].get(key) for key in SPENT)
            if isinstance(epsilon, float) and isinstance(delta, float):
                found.append(
                    f"{first.path}: all sums of {count(rounds, 'round')} cost a device at most "
                    f"ε = {rounded_up(epsilon)} at δ = {quantity(delta)}."
                )
            continue
        spent = search_privacy(arm, rounds) if rounds else None
        if spent is not None:
            found.append(
                f"{first.path}: the searches of {count(rounds, 'round')} cost a device that is in "
                f"every round ε = {rounded_up(cast('float', spent['epsilon']))} at δ = "
                f"{quantity(DELTA)}. This is not the privacy of the run as a whole."
            )
    return found


def _no_audit(methods: Sequence[Method]) -> str:
    if any(method.is_private for method in methods):
        return "No audit was asked for. `deltafl audit` makes one."
    return "Nothing was summed securely, so there is nothing to audit."


def _settings(look: Look) -> tuple[str, str, Mapping[str, object]]:
    text = "" if look.config is None else to_toml(look.config)
    several = list(look.versions.items())[:_MOST_VERSIONS]
    return str(look.path), text, {_short(name): _short(value) for name, value in several}


def _short(value: object) -> str:
    """What a file says, as far as a page repeats it."""
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _about(look: Look) -> tuple[tuple[str, str], ...]:
    """What a run was."""
    config = look.config
    assert config is not None  # noqa: S101 - of such runs it is asked
    federation, experiment = config.federation, config.experiment
    ended = time.gmtime(look.written)
    known = look.summary
    sizes = [known.get(key) for key in ("train_devices", "test_devices")]
    software = [
        f"{name} {_short(look.versions[name])}" for name in _SOFTWARE if name in look.versions
    ]
    machine = [_short(look.versions[name]) for name in _MACHINE if name in look.versions]
    facts = (
        ("Run", str(look.path)),
        ("Written last", time.strftime("%Y-%m-%d %H:%M UTC", ended) if look.written else ""),
        ("Data", _short(known.get("data") or config.data.source)),
        ("SHA-256 of the data", _short(look.versions.get("data_sha256") or "")),
        ("Devices", "" if None in sizes else f"{_short(sizes[0])} train, {_short(sizes[1])} test"),
        ("Cohort", count(federation.cohort_size, "device")),
        ("Model", config.model.name),
        ("θ", ", ".join(show(theta) for theta in federation.thetas)),
        ("Rounds", number(federation.rounds)),
        ("Seeds", f"{count(experiment.num_seeds, 'seed')}, from {experiment.seed}"),
        ("Methods", ", ".join(method.label for method in look.methods)),
        ("Sums", config.privacy.sums if federation.is_private else "in clear"),
        ("Software", ", ".join(software)),
        ("Machine", ", ".join(machine)),
    )
    return tuple((name, value) for name, value in facts if value)


def _total(events: Sequence[Event], key: str) -> float:
    return sum(_seconds(event, key) for event in events)


def _seconds(event: Event, key: str) -> float:
    return float(cast("float", event.get(key) or 0))


def _dropped(events: Sequence[Event]) -> Counter[str]:
    total: Counter[str] = Counter()
    for event in events:
        total.update(cast("dict[str, int]", event.get("dropped_by_stage") or {}))
    return total


def _duration(seconds: float) -> str:
    """A time in words.

    >>> _duration(7.2), _duration(200), _duration(9000)
    ('7 s', '3 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60} min"
