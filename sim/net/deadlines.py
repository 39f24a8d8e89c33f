"""How long the server waits for the devices' answers.

A device that has not answered by the deadline counts as lost, and the round goes on without it. The
deadline of a stage follows from how long devices took for it lately: some times as long as nine in
ten of those that were in time. So a few that are slow, or that answer as late as they may, do not
make everybody wait for them. It never falls below a minimum, because a network hesitates now and
then, and never exceeds the limit that also holds before anything is known.

Everything a device does takes the same time whatever its data, as far as it can (`own_work`), so
deadlines tell the server nothing that it would not see anyway.
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from deltafl.secagg.stages import Stage, Step

_REMEMBERED: Final = 8  # trips of a stage
_COUNTED: Final = 0.9  # of the devices that were in time


@dataclass(frozen=True, slots=True)
class Waiting:
    """How deadlines are set.

    Attributes:
        most: seconds, before anything is known and at most.
        least: seconds, at least.
        factor: how many times as long as nine in ten devices took of late.
    """

    most: float = 600.0
    least: float = 10.0
    factor: float = 4.0

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.most:
            raise ValueError(f"least={self.least} is not above 0 and at most most={self.most}")
        if self.factor < 1:
            raise ValueError(f"factor={self.factor} is less than 1")


@dataclass(slots=True)
class Deadlines:
    """What is known of the stages' durations.

    Attributes:
        waiting: how deadlines are set.
    """

    waiting: Waiting
    _taken: dict[tuple[Stage, bool], deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_REMEMBERED))
    )

    def seconds(self, step: Step, *, trains: bool) -> float:
        """How long to wait for the answers of a step.

        Args:
            step: the message that is due.
            trains: whether devices may have to train first.
        """
        waiting = self.waiting
        if taken := self._taken.get((step.stage, trains)):
            expected = waiting.factor * max(taken)
        elif others := [max(known) for (_, trained), known in self._taken.items() if not trained]:
            expected = math.inf if trains else waiting.factor**2 * max(others)
        else:
            expected = math.inf
        return min(waiting.most, max(waiting.least, expected))

    def note(self, step: Step, taken: Sequence[float], *, trains: bool) -> None:
        """Devices that answered in time took so many seconds, ascending; nobody is nothing new."""
        if taken:
            self._taken[step.stage, trains].append(taken[math.ceil(_COUNTED * len(taken)) - 1])
