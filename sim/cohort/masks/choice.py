"""What computes masks on this machine: a GPU, several threads, or one thread."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec

from deltafl.secagg import prg
from deltafl.secagg.primitives import AddMasks
from deltafl.sim.cohort.hardware import choose_device, usable_cores
from deltafl.sim.cohort.masks import threads


def add_masks_of_this_machine(device: str) -> AddMasks:
    """Choose what adds masks to vectors; all choices give the same bits.

    Args:
        device: where tensors live: "auto", "cpu" or "cuda". On a GPU masks are made there if Triton
            is installed.

    Raises:
        UserError: cuda is asked for and there is none.
    """
    chosen = choose_device(device)
    if chosen.type == "cuda" and find_spec("triton") is not None:
        from deltafl.sim.cohort.masks import gpu

        return partial(gpu.add_masks, device=chosen)
    cores = usable_cores()
    if cores == 1:
        return prg.add_masks
    executor = ThreadPoolExecutor(cores, thread_name_prefix="masks")
    return partial(threads.add_masks, executor=executor, num_threads=cores)
