"""Processes of this machine, as /proc tells of them."""

from pathlib import Path


def is_running(pid):
    """Whether a process is there and has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
