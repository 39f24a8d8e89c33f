"""What is planted, by whom, and what the auditor has to say about it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from planted_runs import Edit, Stage, played


@dataclass(frozen=True)
class Plant:
    """Something that is wrong in a run.

    Attributes:
        name: What.
        rules: Of these, one must be found.
        lie: Changes what the record says, or points at what is wrong in it (`Edit.touched`).
        stage: The run in which it is planted.
        twin: The run without it.
        options: Of the audit, in both.
        round: Where it is; None where it is in all rounds, or in none.
        modes: The transcripts in which it shows.
        with_truth: Whether it takes the truth file to see it.
    """

    name: str
    rules: tuple[str, ...]
    lie: Callable[[Edit], None]
    stage: type[Stage] = Stage
    twin: type[Stage] = Stage
    options: dict[str, object] = field(default_factory=dict)
    round: int | None = 1
    modes: tuple[str, ...] = ("full",)
    with_truth: bool = False

    def edited(self) -> Edit:
        """What the record says."""
        edit = Edit(played(self.stage))
        self.lie(edit)
        return edit


PLANTS: list[Plant] = []


def plant(*rules: str, stage: type[Stage] = Stage, twin: type[Stage] | None = None, **more):
    """Put a lie on the list.

    Args:
        rules: See `Plant`.
        stage: See `Plant`; where it misbehaves by itself, the twin is what it derives from.
        twin: See `Plant`.
        more: See `Plant`.
    """
    if twin is None:
        twin = stage.honest()

    def put(lie):
        PLANTS.append(Plant(lie.__name__, rules, lie, stage, twin, **more))
        return lie

    return put
