"""What methods have cost, and how the time of a round divides over the stages of its session."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Final, NamedTuple, cast

from deltafl.sim.record.events import Event, dropped, values_of
from deltafl.sim.record.labels import name_of
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
    up = values_of(events, "bytes_up_per_device")
    return Cost(
        method.label,
        number,
        len(events),
        int(sum(values_of(events, "secure_sums"))) if method.config.federation.is_private else 0,
        sum(values_of(events, "train_cpu_s")),
        sum(values_of(events, "protocol_cpu_s")),
        sum(values_of(events, "wall_s")),
        fmean(up) if up else None,
        sum(bool(event.get("aborted")) for event in events),
        dropped(events),
    )


REST: Final = "rest"
"""What no stage has taken of a round."""

STAGES: Final = {
    **{stage.name.lower(): words for stage, words in STAGE_WORDS.items()},
    REST: "the session is set up; the server applies the update",
}
"""What happens, by the name of a stage as events have it; in their order, with the rest."""


class StageTimes(NamedTuple):
    """The stages of a method's rounds, all seeds together.

    Attributes:
        label: of the method.
        rounds: how many rounds were measured.
        seconds: of the stages that there were, and of the rest; medians over the rounds that have
            the stage.
    """

    label: str
    rounds: int
    seconds: Mapping[str, float]


def stage_times(methods: Sequence[Method]) -> tuple[StageTimes, ...]:
    """The stages of each method whose rounds are sessions.

    Levels are trained in one session and count as one method. What sums ideally has no stages, and
    is left out.
    """
    found: list[StageTimes] = []
    runs_before: list[object] = []
    for method in methods:
        runs, federation = [run.path for run in method.runs], method.config.federation
        events = [event for run in method.runs for event in run.events if event.get("stage_s")]
        if not federation.is_private or not events:
            continue
        if runs_before == runs:
            all_levels = f"{federation.algorithm}, all levels"
            label = method.label.replace(name_of(method.config), all_levels)
            found[-1] = found[-1]._replace(label=label)
            continue
        runs_before = [*runs]
        found.append(StageTimes(method.label, len(events), _medians(events)))
    return tuple(found)


def _medians(events: Sequence[Event]) -> dict[str, float]:
    taken = [cast("Mapping[str, float]", event["stage_s"]) for event in events]
    found = {stage: [float(one[stage]) for one in taken if stage in one] for stage in STAGES}
    found[REST] = [
        max(0.0, sum(values_of([event], "wall_s")) - sum(map(float, one.values())))
        for event, one in zip(events, taken, strict=True)
    ]
    return {stage: median(values) for stage, values in found.items() if values}
