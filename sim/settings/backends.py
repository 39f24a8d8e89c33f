"""Who can do the devices' work, by name; nothing of it is loaded before it is used."""

from collections.abc import Mapping
from typing import Final

from deltafl.protocol.registry import Entry

REFERENCE: Final = "reference"
PROCESSES: Final = "processes"
CUDA: Final = "cuda"

_HERE: Final[Entry[object]] = Entry(
    "deltafl.sim.cohort.backends.in_process:open_in_process", ("name", "spec", "device")
)

BACKENDS: Final[Mapping[str, Entry[object]]] = {
    REFERENCE: _HERE,
    "batched": _HERE,
    PROCESSES: Entry("deltafl.sim.cohort.backends.processes:open_pool", ("spec", "workers")),
    CUDA: _HERE,
}
"""What each opens is a `deltafl.sim.cohort.backends.base.Backend`; `choice` names the arguments."""

MAX_WORKERS: Final = 1024
"""Most workers, or threads."""
