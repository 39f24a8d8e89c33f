"""How long each stage of a round's session takes, by the wall clock.

The protocol has no clock. Who carries its messages tells an observer of each step that begins, in a
simulation and in a federation alike, and this observer looks at the clock.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from deltafl.secagg import ClientId, SlotSum, Stage, Step
from deltafl.secagg.session import Observer

STAGE_WORDS: Final = {
    Stage.ADVERTISE: "devices measure their losses and send a key",
    Stage.SHARE: "devices share their secrets",
    Stage.RECEIPT: "devices derive their links",
    Stage.MASK: "devices send masked vectors",
    Stage.CONFIRM: "devices sign who is left",
    Stage.UNMASK: "devices help to unmask the sum",
}
"""What happens in each stage."""


class StageSeconds:
    """Measures stages, and hands on to another observer all that it sees.

    A stage lasts from the first work on it until the first work on another: what devices compute
    and send, the waiting for them, and what the server makes of it. Several slots add up.

    Args:
        observer: the other one.
        clock: tells the time in seconds.
    """

    def __init__(self, observer: Observer, clock: Callable[[], float] = time.perf_counter) -> None:
        self._observer = observer
        self._clock = clock
        self._stage: Stage | None = None
        self._began = 0.0
        self._seconds: dict[Stage, float] = {}

    def message(self, *, sent: bool, peer: ClientId, data: bytes) -> None:
        """Hand a message on."""
        self._observer.message(sent=sent, peer=peer, data=data)

    def closed(self) -> None:
        """Hand the end of a trip on."""
        self._observer.closed()

    def revealed(self, total: SlotSum) -> None:
        """Hand a sum on."""
        self._observer.revealed(total)

    def working(self, party: ClientId | None, step: Step) -> AbstractContextManager[None]:
        """Note that a stage is under way; the context of the other observer."""
        if step.stage is not self._stage:
            self._turn_to(step.stage)
        return self._observer.working(party, step)

    def taken(self) -> dict[str, float]:
        """The seconds of each stage since the last call, by its name; ends the last stage."""
        self._turn_to(None)
        seconds, self._seconds = self._seconds, {}
        return {stage.name.lower(): seconds[stage] for stage in sorted(seconds)}

    def _turn_to(self, stage: Stage | None) -> None:
        now = self._clock()
        if self._stage is not None:
            known = self._seconds.get(self._stage, 0.0)
            self._seconds[self._stage] = known + now - self._began
        self._stage, self._began = stage, now
