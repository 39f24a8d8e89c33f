"""A round as the server saw it, step by step: the set-up, then slot by slot.

Consecutive slots that consist of the same messages are folded into one act.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from deltafl.sim.inspect.audit.report import TimelineStep


class Scene(NamedTuple):
    """The set-up, or a slot.

    Attributes:
        slot: The slot; None for steps outside any.
        steps: What happens, in order.
    """

    slot: int | None
    steps: tuple[TimelineStep, ...]


class Act(NamedTuple):
    """Consecutive scenes that consist of the same messages.

    Attributes:
        first: The first scene.
        between: Scenes that the reader may want to skip.
        last: The last scene; None if it is the first.
    """

    first: Scene
    between: tuple[Scene, ...]
    last: Scene | None


def acts(steps: Sequence[TimelineStep]) -> tuple[Act, ...]:
    """The scenes of a round, those that are alike together."""
    slots = itertools.groupby(steps, lambda step: step.slot)
    scenes = [Scene(slot, tuple(members)) for slot, members in slots]
    alike = [list(those) for _, those in itertools.groupby(scenes, _shape)]
    return tuple(
        Act(first, tuple(others[:-1]), others[-1] if others else None) for first, *others in alike
    )


def _shape(scene: Scene) -> tuple[object, ...]:
    return (scene.slot is None, *((step.label, step.sent) for step in scene.steps))
