"""What computes masks on this machine: a GPU, several threads, or one thread."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

from deltafl.secagg import prg
from deltafl.secagg.primitives import AddMasks
from deltafl.sim.cohort.hardware import choose_device, usable_cores
from deltafl.sim.cohort.masks import threads
from deltafl.sim.cohort.masks.together import SumsOfMasks


class Masks(NamedTuple):
    """What computes masks.

    Attributes:
        add: Adds masks to vectors.
        share_up_to: Bytes of the longest vector for which a mask is best made once for both ends of
            a pair (see `deltafl.sim.cohort.shared`).
        made_by: What it is, in words.
        sums: Makes the masks of many vectors together; None where that is no faster.
    """

    add: AddMasks
    share_up_to: int
    made_by: str
    sums: SumsOfMasks | None = None


def masks_of_this_machine(device: str) -> Masks:
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

        return Masks(
            partial(gpu.add_masks, device=chosen),
            prg.SHORT_BYTES,
            "the GPU (Triton)",
            partial(gpu.sums_of_masks, device=chosen),
        )
    cores = usable_cores()
    if cores == 1:
        return Masks(prg.add_masks, prg.MAX_BYTES, "one thread")
    executor = ThreadPoolExecutor(cores, thread_name_prefix="masks")
    add = partial(threads.add_masks, executor=executor, num_threads=cores)
    return Masks(add, threads.LEAST_CUT - 1, f"{cores} threads, and long vectors in pieces")
