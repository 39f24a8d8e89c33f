"""How a benchmark of sessions reports: numbers by stage, and a table of them."""

import platform
from collections.abc import Callable, Iterable

from deltafl.secagg import Stage
from deltafl.sim.bench.stopwatch import Stopwatch

ByStage = dict[str, float]


def by_stage(value: Callable[[Stage], float], stages: Iterable[Stage]) -> ByStage:
    """A number for each stage, by its name in lower case."""
    return {stage.name.lower(): round(value(stage), 6) for stage in stages}


def costs(watch: Stopwatch, devices: int) -> dict[str, ByStage]:
    """CPU seconds of a device (median) and of the server, and bytes per device, by stage.

    Of the stages that there were.
    """
    stages = [stage for stage in Stage if watch.num_bytes(stage, sent=True)]
    return {
        "device_cpu_s": by_stage(watch.median_device_cpu_s, stages),
        "server_cpu_s": by_stage(lambda stage: watch.server_cpu_s[stage], stages),
        "bytes_up_per_device": by_stage(
            lambda stage: watch.num_bytes(stage, sent=False) / devices, stages
        ),
        "bytes_down_per_device": by_stage(
            lambda stage: watch.num_bytes(stage, sent=True) / devices, stages
        ),
    }


def machine() -> str:
    """The machine, as far as Python knows it."""
    return f"{platform.machine()}, Python {platform.python_version()}"


def table(measured: dict[str, object]) -> list[str]:
    """The lines of a table of `costs`, in milliseconds and kilobytes."""
    lines: list[str] = []
    rows = {
        "device_cpu_s": "device CPU ms (median)",
        "server_cpu_s": "server CPU ms",
        "bytes_up_per_device": "kB up per device",
        "bytes_down_per_device": "kB down per device",
    }
    for key, title in rows.items():
        values = measured[key]
        if isinstance(values, dict):
            if not lines:
                lines.append(f"{'':<24}" + "".join(f"{stage:>12}" for stage in values))
            scale = 1e3 if key.endswith("cpu_s") else 1e-3
            lines.append(f"{title:<24}" + "".join(f"{v * scale:12.2f}" for v in values.values()))
    return lines
