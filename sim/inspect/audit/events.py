"""What a run's events say of a round, against what its sums come to."""

import math
from collections.abc import Iterator, Mapping
from typing import Final, cast

from deltafl.fl.read.exact import shortened
from deltafl.fl.strategies.base import RoundReport
from deltafl.protocol.round import RoundOutcome
from deltafl.secagg.states import Stage
from deltafl.sim.inspect.audit.check import RoundOver
from deltafl.sim.record.events import Event, to_json
from deltafl.sim.record.transcript import INTERRUPTED
from deltafl.sim.run.engine import report_as_dict
from deltafl.sim.settings.config import RunConfig
from deltafl.sim.settings.config_io import show

UNCHECKED: Final = frozenset(
    {"train_cpu_s", "protocol_cpu_s", "wall_s", "stage_s", "dropped_by_stage", "levels"}
)
"""Keys that are not compared by value; levels are compared one by one."""

_LONGEST_S: Final = 1e9  # a generation
_STAGES: Final = frozenset(stage.name.lower() for stage in Stage)

_OF_A_SEARCH: Final = frozenset({"eta", "half_width", "num_queries", "certified", "search_ended"})
"""What the record of a round that was given up may leave open."""


def disagreements(
    over: RoundOver, event: Event, config: RunConfig | None, report: RoundReport | None
) -> list[str]:
    """Compare what the run says of a round, and of its levels, with what its sums come to.

    Args:
        over: The round.
        event: What the run says of it.
        config: The run's settings.
        report: What must have been reported of it; None where that is not known.
    """
    always = _always(over, config)
    played, is_given_up = over.played, bool(over.view.end and over.view.end.aborted)
    told = {} if report is None else _told(report, is_given_up=is_given_up)
    levels = cast("Mapping[str, Mapping[str, object]]", told.pop("levels", {}))
    is_lost = always.get("aborted") == INTERRUPTED  # whatever its sums come to
    outcomes = [None if is_lost else one.outcome for one in played]
    outcome = outcomes[0] if len(outcomes) == 1 else None
    found = list(_compare(event, {**told, **always, **_stated(outcome)}, ""))
    if len(over.view.sessions) == 1 < len(played):
        for one, ended in zip(played, outcomes, strict=True):
            level = show(one.theta)
            found += _compare_level(event, level, levels.get(level, {}), ended)
    return found


def strange_values(event: Event) -> Iterator[str]:
    """Say which times and losses of an event cannot be any; nothing else tells what they are."""
    for name in ("train_cpu_s", "protocol_cpu_s", "wall_s"):
        value = event.get(name)
        if type(value) not in (int, float) or not 0 <= cast(float, value) <= _LONGEST_S:
            yield f"{name} is {shortened(value)} in the run's events, and no time in seconds"
    yield from _strange_stages(event)
    said, cohort = event.get("levels"), event.get("cohort")
    most = len(cohort) if isinstance(cohort, list) else 0
    levels = list(said.values()) if isinstance(said, dict) else []
    for one in (event, *levels):
        yield from _strange_drops(one, most)


def _strange_stages(event: Event) -> Iterator[str]:
    """Seconds of stages that there are not, or that are no times."""
    seconds = event.get("stage_s", {})  # older runs have none
    if not isinstance(seconds, dict):
        yield "stage_s is no table in the run's events"
        return
    if strange := sorted(seconds.keys() - _STAGES):
        yield f"stage_s has {shortened(strange[0])} in the run's events, which is no stage"
    for name, value in seconds.items():
        is_time = type(value) in (int, float) and 0 <= value <= _LONGEST_S
        if name in _STAGES and not is_time:
            said = f"stage_s.{name} is {shortened(value)}"
            yield f"{said} in the run's events, and no time in seconds"


def _strange_drops(event: Event, most: int) -> Iterator[str]:
    """Losses at stages that there are not, or of more devices than there are."""
    dropped = event.get("dropped_by_stage", {})
    if not isinstance(dropped, dict):
        yield "dropped_by_stage is no table in the run's events"
        return
    if strange := sorted(dropped.keys() - _STAGES):
        yield f"dropped_by_stage has {shortened(strange[0])} in the run's events, which is no stage"
    counts = [count for count in dropped.values() if type(count) is int and count > 0]
    if len(counts) < len(dropped) or sum(counts) > most:
        yield f"dropped_by_stage counts other than up to {most} devices in the run's events"


def unknown_keys(event: Event, report: RoundReport | None) -> list[str]:
    """The keys of an event, and of its levels, that its report has not."""
    if report is None:
        return []
    told = report_as_dict(report)
    known = {"round", "cohort", "learning_rate", *UNCHECKED, *told}
    levels = cast("Mapping[str, Mapping[str, object]]", told.get("levels", {}))
    by_level = {level: set(one) for level, one in levels.items()}
    said = event.get("levels")
    below = said.items() if isinstance(said, dict) else ()
    if not by_level:
        known.discard("levels")
    strange = {f"levels.{level}" for level, _ in below if level not in by_level}
    for level, one in below:
        if isinstance(one, dict):
            strange |= {f"levels.{level}.{key}" for key in one.keys() - by_level.get(level, set())}
    return sorted((event.keys() - known) | strange)


def _always(over: RoundOver, config: RunConfig | None) -> dict[str, object]:
    """What must be in an event whatever the round came to."""
    round_ = over.view
    stated: dict[str, object] = {"secure_sums": len(round_.sums)}
    announced = {seen.record.peer for one in round_.sessions.values() for seen in one.announcements}
    if round_.cohort is not None:
        stated["cohort"] = list(round_.cohort)
    elif announced:
        stated["cohort"] = sorted(announced)
    if round_.end is not None:
        stated["aborted"] = round_.end.aborted or None
    if config is not None:
        stated["learning_rate"] = config.training.schedule.rate(round_.number - 1)
    return stated


def _told(report: RoundReport, *, is_given_up: bool) -> dict[str, object]:
    """What a report says, as an event does; without what is open where a round was given up."""
    told = {key: to_json(value) for key, value in report_as_dict(report).items()}
    levels = cast("dict[str, dict[str, object]]", told.get("levels", {}))
    for one in (told, *levels.values()):
        for key in [key for key in one if key in UNCHECKED and key != "levels"]:
            del one[key]
        for key in [key for key in one if is_given_up and key in _OF_A_SEARCH - {"eta"}]:
            del one[key]
    return told


def _compare_level(
    event: Event, level: str, wanted: Mapping[str, object], outcome: RoundOutcome | None
) -> Iterator[str]:
    levels = event.get("levels")
    told = levels.get(level) if isinstance(levels, dict) else None
    if isinstance(told, dict):
        yield from _compare(told, {**wanted, **_stated(outcome)}, f" at θ = {level}")
    else:
        yield f"the run's events do not mention the level θ = {level}"


def _stated(outcome: RoundOutcome | None) -> dict[str, object]:
    """What an event must say of a round of this outcome, whatever the run's settings are."""
    stated: dict[str, object] = {}
    if outcome is not None and outcome.aborted is None:
        search = outcome.search
        stated |= {
            "kept_devices": outcome.kept_devices,
            "kept_weight": outcome.kept_weight,
            "train_loss": outcome.train_loss,
            "clipped": outcome.clipped,
        }
        if search is not None:
            stated |= {"num_queries": search.num_queries, "certified": search.certified}
    return stated


def _compare(event: Event, stated: Mapping[str, object], where: str) -> Iterator[str]:
    for key, value in stated.items():
        if not same(event.get(key), value):
            said = f"{key}{where} is {event.get(key)!r} in the run's events"
            yield f"{said}, but {value!r} by its sums"


def same(first: object, second: object) -> bool:
    """Whether two JSON values are equal; floats, in their first nine digits."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, float) or isinstance(second, float):
        numbers = isinstance(first, float | int) and isinstance(second, float | int)
        booleans = isinstance(first, bool) or isinstance(second, bool)
        if numbers and not booleans:
            return math.isclose(cast(float, first), cast(float, second), rel_tol=1e-9)
    return type(first) is type(second) and first == second
