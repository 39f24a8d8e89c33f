"""One session, played by real parties in this process: what it costs each of them, by stage."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from deltafl.secagg import (
    ClientId,
    SessionParams,
    SlotSum,
    Stage,
    Step,
)
from deltafl.secagg.session import NoObserver
from deltafl.sim.bench.harness import Report, Timed
from deltafl.sim.record.memory import peak_memory_mb


class Stopwatch(NoObserver):
    """Watches a session; see `deltafl.secagg.session.Observer`.

    Args:
        clock: gives CPU seconds; by default those of the whole process, all threads.

    Attributes:
        cpu_s: by stage and party (None: the server).
        sums: that the server has learnt.
    """

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self.cpu_s: dict[Stage, dict[ClientId | None, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        self.sums = 0
        self._clock = clock
        self._bytes: dict[tuple[bool, Stage], int] = defaultdict(int)
        self._step = Step(Stage.ADVERTISE)
        self._answered: set[Step] = set()

    def revealed(self, total: SlotSum) -> None:
        """Count a sum."""
        del total
        self.sums += 1

    def message(self, *, sent: bool, peer: ClientId, data: bytes) -> None:
        """Count a message's bytes towards the stage that is under way."""
        del peer
        if not sent:
            self._answered.add(self._step)
        self._bytes[sent, self._step.stage] += len(data)

    @contextmanager
    def working(self, party: ClientId | None, step: Step) -> Iterator[None]:
        """Count the CPU time of a block towards a party (None: the server)."""
        self._step = step
        start = self._clock()
        try:
            yield
        finally:
            self.cpu_s[step.stage][party] += self._clock() - start

    def device_cpu_s(self, stage: Stage) -> float:
        """The median over devices of the CPU time that a device spent on a stage."""
        spent = self.cpu_s[stage].items()
        return median([one for party, one in spent if party is not None] or [0.0])

    def totals(self) -> tuple[float, list[float]]:
        """The CPU time of all stages: the server's, and that of each device."""
        each: dict[ClientId | None, float] = defaultdict(float)
        for of_stage in self.cpu_s.values():
            for party, spent in of_stage.items():
                each[party] += spent
        return each.pop(None, 0.0), list(each.values())

    @property
    def num_trips(self) -> int:
        """Steps in which the server has waited for answers."""
        return len(self._answered)

    def bytes_up(self, devices: int) -> float:
        """Bytes that a device sent, on the average."""
        return sum(size for (sent, _), size in self._bytes.items() if not sent) / devices

    def by_stage(self, devices: int) -> dict[str, dict[str, float]]:
        """A table of the stages that there were; a device's CPU time is the median of all."""
        return {
            stage.name.lower(): {
                "device_cpu_ms": round(1e3 * self.device_cpu_s(stage), 3),
                "server_cpu_ms": round(1e3 * self.cpu_s[stage][None], 3),
                **self.traffic(stage, devices),
            }
            for stage in Stage
            if self._bytes[True, stage]
        }

    def traffic(self, stage: Stage, devices: int) -> dict[str, float]:
        """What a stage sent, for each device."""
        return {
            "kb_up_per_device": round(self._bytes[False, stage] / devices / 1e3, 6),
            "kb_down_per_device": round(self._bytes[True, stage] / devices / 1e3, 6),
        }

    def report(self, params: SessionParams, played: Timed[Any]) -> Report:
        """What a session cost, whose playing was timed."""
        server, devices = self.totals()
        return {
            "neighbours": min(params.degree, params.num_invited - 1),
            "threshold": params.threshold,
            "total_cpu_s": round(played.cpu_s, 4),
            "wall_s": round(played.wall_s, 4),
            "devices_cpu_s": round(sum(devices), 4),
            "device_cpu_s": round(median(devices), 6),
            "server_cpu_s": round(server, 4),
            "peak_memory_mb": peak_memory_mb(),
            "by_stage": self.by_stage(params.num_invited),
        }
