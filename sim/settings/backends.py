"""Who can do the devices' work, by name; nothing of it is loaded before it is used."""

from collections.abc import Mapping
from typing import Final

from deltafl.protocol.registry import Entry

PROCESSES: Final = "processes"
CUDA: Final = "cuda"
RAY: Final = "ray"

BACKENDS: Final[Mapping[str, Entry[object]]] = {
    "reference": Entry("deltafl.sim.cohort.backends.in_process:reference", ("spec", "device")),
    "batched": Entry("deltafl.sim.cohort.backends.in_process:batched", ("spec", "device")),
    PROCESSES: Entry("deltafl.sim.cohort.backends.processes:open_pool", ("spec", "workers")),
    CUDA: Entry("deltafl.sim.cohort.backends.in_process:cuda", ("spec", "device")),
    RAY: Entry("deltafl.sim.cohort.backends.ray_cluster:open_pool", ("spec", "workers", "address")),
}
"""What each opens is a `deltafl.sim.cohort.backends.base.Backend`; `choice` names the arguments."""
