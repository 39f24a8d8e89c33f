"""How the time of a round divides over the stages of its session, by method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple, cast

from deltafl.sim.record.events import Event
from deltafl.sim.run.stage_seconds import STAGE_WORDS
from deltafl.sim.view.look import Method


class Named(NamedTuple):
    """What a round's time divides into.

    Attributes:
        name: of a stage, as events have it; or "rest".
        style: the class of the style sheet that has its colour.
        words: what happens.
    """

    name: str
    style: str
    words: str


REST: Final = Named("rest", "rest", "the session is set up; the server applies the update")
"""What no stage has taken of a round."""

STAGES: Final = (
    *(Named(stage.name.lower(), f"s{stage}", words) for stage, words in STAGE_WORDS.items()),
    REST,
)
"""In their order, with the rest."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one stage takes of a method's rounds.

    Attributes:
        stage: which.
        seconds: the median over the rounds that have the stage.
        x: where its part of the bar begins.
        width: how long that is; the longest bar of a page has 100.
    """

    stage: Named
    seconds: float
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The stages of a method's rounds, all seeds together.

    Attributes:
        label: of the method.
        rounds: how many rounds were measured; 0 if their stages were not recorded.
        parts: the stages that there were, and the rest.
    """

    label: str
    rounds: int
    parts: tuple[Part, ...]

    @property
    def by_name(self) -> Mapping[str, float]:
        """The seconds of each part."""
        return {part.stage.name: part.seconds for part in self.parts}

    @property
    def seconds(self) -> float:
        """What the parts add up to."""
        return sum(part.seconds for part in self.parts)


def stage_times(methods: Sequence[Method]) -> tuple[StageTimes, ...]:
    """The stages of each method whose rounds are sessions.

    Levels are trained in one session and count as one method. What sums ideally has no stages, and
    is left out.
    """
    medians: list[tuple[str, int, dict[Named, float]]] = []
    runs_before: list[object] = []
    for method in methods:
        runs = [run.path for run in method.runs]
        events = [event for run in method.runs for event in run.events]
        played = [event for event in events if event.get("stage_s") != {}]
        if not method.is_private or not played:
            continue
        if runs_before == runs:
            medians[-1] = (f"{method.algorithm}, all levels", *medians[-1][1:])
            continue
        runs_before = [*runs]
        measured = [event for event in played if event.get("stage_s")]
        medians.append((method.label, len(measured), _medians(measured)))
    longest = max((sum(one.values()) for _, _, one in medians), default=0.0)
    return tuple(StageTimes(label, rounds, _parts(one, longest)) for label, rounds, one in medians)


def _medians(events: Sequence[Event]) -> dict[Named, float]:
    found: dict[Named, list[float]] = {stage: [] for stage in STAGES}
    for event in events:
        seconds = cast("Mapping[str, float]", event["stage_s"])
        for stage in STAGES:
            if stage.name in seconds and stage is not REST:
                found[stage].append(float(seconds[stage.name]))
        wall = float(cast("float", event.get("wall_s") or 0))
        found[REST].append(max(0.0, wall - sum(map(float, seconds.values()))))
    return {stage: median(values) for stage, values in found.items() if values}


def _parts(seconds: Mapping[Named, float], longest: float) -> tuple[Part, ...]:
    scale = 100 / longest if longest else 0.0
    parts, x = [], 0.0
    for stage, value in seconds.items():
        parts.append(Part(stage, value, round(x, 2), round(value * scale, 2)))
        x += value * scale
    return tuple(parts)
