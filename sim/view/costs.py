"""What methods have cost, and how the time of a round divides over the stages of its session."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple, cast

from deltafl.sim.record.events import Event
from deltafl.sim.record.snapshot import Method
from deltafl.sim.run.stage_seconds import STAGE_WORDS


class Cost(NamedTuple):
    """What a method has cost so far, over all its seeds.

    Attributes:
        label: of the method.
        number: of the method on its page.
        rounds: how many were played.
        sums: secure sums.
        train_s: CPU seconds in which devices measured and trained.
        protocol_s: the other CPU seconds of rounds.
        wall_s: seconds that passed.
        up: bytes that a device sent in a round, on average; None without messages.
        lost: rounds that were given up.
        dropped: devices lost, by the stage at which they were.
    """

    label: str
    number: int
    rounds: int
    sums: int
    train_s: float
    protocol_s: float
    wall_s: float
    up: float | None
    lost: int
    dropped: Mapping[str, int]


def cost_of(method: Method, number: int) -> Cost:
    """What a method has cost."""
    events = [event for run in method.runs for event in run.events]
    up = [seconds(e, "bytes_up_per_device") for e in events if e.get("bytes_up_per_device")]
    return Cost(
        method.label,
        number,
        len(events),
        int(total(events, "secure_sums")) if method.is_private else 0,
        total(events, "train_cpu_s"),
        total(events, "protocol_cpu_s"),
        total(events, "wall_s"),
        sum(up) / len(up) if up else None,
        sum(bool(event.get("aborted")) for event in events),
        dropped(events),
    )


def total(events: Sequence[Event], key: str) -> float:
    """A number of the events, added up."""
    return sum(seconds(event, key) for event in events)


def seconds(event: Event, key: str) -> float:
    """A number of an event; 0 where it has none."""
    return float(cast("float", event.get(key) or 0))


def dropped(events: Sequence[Event]) -> Counter[str]:
    """Devices lost, by stage."""
    lost: Counter[str] = Counter()
    for event in events:
        lost.update(cast("dict[str, int]", event.get("dropped_by_stage") or {}))
    return lost


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
        rounds: how many rounds were measured.
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
        measured = [event for event in events if event.get("stage_s")]
        if not method.is_private or not measured:
            continue
        if runs_before == runs:
            medians[-1] = (f"{method.algorithm}, all levels", *medians[-1][1:])
            continue
        runs_before = [*runs]
        medians.append((method.label, len(measured), _medians(measured)))
    longest = max((sum(one.values()) for _, _, one in medians), default=0.0)
    return tuple(StageTimes(label, rounds, _parts(one, longest)) for label, rounds, one in medians)


def _medians(events: Sequence[Event]) -> dict[Named, float]:
    found: dict[Named, list[float]] = {stage: [] for stage in STAGES}
    for event in events:
        taken = cast("Mapping[str, float]", event["stage_s"])
        for stage in STAGES:
            if stage.name in taken and stage is not REST:
                found[stage].append(float(taken[stage.name]))
        found[REST].append(max(0.0, seconds(event, "wall_s") - sum(map(float, taken.values()))))
    return {stage: median(values) for stage, values in found.items() if values}


def _parts(medians: Mapping[Named, float], longest: float) -> tuple[Part, ...]:
    scale = 100 / longest if longest else 0.0
    parts, x = [], 0.0
    for stage, value in medians.items():
        parts.append(Part(stage, value, round(x, 2), round(value * scale, 2)))
        x += value * scale
    return tuple(parts)
