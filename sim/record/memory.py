"""The most memory that a command has used, in MB of 10^6 bytes."""

import re
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_MAXRSS_BYTES: Final = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
_MEGABYTE: Final = 1e6


def peak_memory_mb(of: int = resource.RUSAGE_SELF) -> float:
    """The most resident memory of this process so far, without its children's.

    Args:
        of: `resource.RUSAGE_CHILDREN` for that of the largest child process that was waited for, 0
            without any. Children that ran at the same time are not added up. On Linux it is at
            least what this process itself held when it started the child.
    """
    return round(resource.getrusage(of).ru_maxrss * _MAXRSS_BYTES / _MEGABYTE, 1)


def peak_memory_of_workers_mb() -> float:
    """The most resident memory of each process that this one has started, itself or by others.

    Those that run still are added up. Pages that several share count for each, and their peaks
    need not be at one time, so it is an upper bound. It is 0 where there is no /proc, as on other
    systems than Linux. What the operating system tells of a child that has ended will not do, for
    that count begins with the size of its parent.
    """
    peaks = (memory_of(one, "VmHWM") for one in started_by("self"))
    return round(sum(peaks) / _MEGABYTE, 1)


def started_by(process: str) -> Iterator[str]:
    """The living processes that a process has started, itself or by others; none without /proc."""
    for children in Path("/proc", process, "task").glob("*/children"):
        for child in _read(children).split():
            yield child
            yield from started_by(child)


def memory_of(process: str, name: str = "VmRSS") -> int:
    """What a process has in RAM now, in bytes; 0 of one that has ended, or where there is no /proc.

    Args:
        process: its number, or "self".
        name: of proc_pid_status(5); "VmHWM" for the most that it has ever had.
    """
    status = _read(Path("/proc", process, "status"))
    found = re.search(rf"^{name}:\s*(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _read(path: Path) -> str:
    with suppress(OSError):  # of a process that has ended
        return path.read_text()
    return ""
