"""CPU time and bytes of a session, by party and stage."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from deltafl.secagg import ClientId, SlotSum, Stage, Step


class Stopwatch:
    """Watches a session; see `deltafl.secagg.session.Observer`.

    CPU time is that of the whole process, all threads, while a party works.
    """

    def __init__(self) -> None:
        self.server_cpu_s: dict[Stage, float] = defaultdict(float)
        self._device_cpu_s: dict[Stage, dict[ClientId, float]] = defaultdict(dict)
        self._bytes: dict[bool, dict[Stage, int]] = {
            sent: defaultdict(int) for sent in (True, False)
        }
        self._stage = Stage.ADVERTISE
        self._step = Step(Stage.ADVERTISE)
        self._answered: set[Step] = set()

    def revealed(self, total: SlotSum) -> None:
        """Sums cost what the steps before them cost."""

    def message(self, *, sent: bool, peer: ClientId, data: bytes) -> None:
        """Count a message's bytes towards the stage that is under way."""
        del peer
        if not sent:
            self._answered.add(self._step)
        self._bytes[sent][self._stage] += len(data)

    @contextmanager
    def working(self, party: ClientId | None, step: Step) -> Iterator[None]:
        """Count the CPU time of a block towards a party (None: the server)."""
        self._stage, self._step = step.stage, step
        start = time.process_time()
        try:
            yield
        finally:
            spent = time.process_time() - start
            if party is None:
                self.server_cpu_s[step.stage] += spent
            else:
                of_stage = self._device_cpu_s[step.stage]
                of_stage[party] = of_stage.get(party, 0.0) + spent

    def median_device_cpu_s(self, stage: Stage) -> float:
        """The median over devices of the CPU time that a device spent on a stage."""
        return median(self._device_cpu_s[stage].values() or [0.0])

    def median_total_device_cpu_s(self) -> float:
        """The median over devices of the CPU time that a device spent on all stages."""
        totals: dict[ClientId, float] = defaultdict(float)
        for of_stage in self._device_cpu_s.values():
            for client, spent in of_stage.items():
                totals[client] += spent
        return median(totals.values() or [0.0])

    def total_device_cpu_s(self) -> float:
        """The CPU time of all devices together."""
        return sum(sum(of_stage.values()) for of_stage in self._device_cpu_s.values())

    @property
    def num_trips(self) -> int:
        """Steps in which the server has waited for answers."""
        return len(self._answered)

    def num_bytes(self, stage: Stage, *, sent: bool) -> int:
        """Bytes that the server sent in a stage, or received."""
        return self._bytes[sent][stage]
