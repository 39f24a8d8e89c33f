"""What a process and all that it started take: memory and CPU time, read from Linux's /proc."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_KILOBYTE: Final = 1024
_MEGABYTE: Final = 1e6


@dataclass(frozen=True, slots=True)
class Usage:
    """What living processes have taken so far.

    Attributes:
        processes: how many they are.
        peak_rss_mb: the sum of each one's largest resident set (VmHWM), in 10^6 bytes. Pages that
            processes share count for each of them, and the peaks need not be simultaneous.
        cpu_s: their CPU time, in seconds, in steps of a clock tick (0.01 s).
    """

    processes: int
    peak_rss_mb: float
    cpu_s: float


def usage(root: int) -> Usage | None:
    """Measure a process and its living descendants; None where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    ticks, peak, pids = 0, 0, tree(root)
    for pid in pids:
        try:
            fields = _fields(pid)
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue  # it has just ended
        ticks += int(fields[11]) + int(fields[12])  # utime and stime of proc(5)
        peak += sum(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")
        )
    return Usage(len(pids), peak * _KILOBYTE / _MEGABYTE, ticks / os.sysconf("SC_CLK_TCK"))


def tree(root: int) -> list[int]:
    """A process and its living descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            children.setdefault(int(_fields(int(entry.name))[1]), []).append(int(entry.name))
        except OSError:
            continue
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold spaces: state, parent, …."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
