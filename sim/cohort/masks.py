"""What computes masks on this machine: several threads, or one.

In several threads, long vectors are cut between blocks of keystream: every thread looks up its own
piece of every mask by the block counter, so that no keystream is computed twice. `cryptography` and
numpy let other threads run while they work.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from deltafl.secagg import prg
from deltafl.secagg.prg import BLOCK_BYTES
from deltafl.secagg.primitives import AddMasks
from deltafl.secagg.ring import Vector
from deltafl.sim.cohort.hardware import usable_cores

_LEAST_BYTES: Final = 1 << 21  # of a piece: with less, waking a thread took as long as it saved
LEAST_CUT: Final = 2 * _LEAST_BYTES
"""Bytes of the shortest vector that is cut."""


def add_in_threads(
    total: Vector,
    added: Sequence[bytes],
    subtracted: Sequence[bytes],
    *,
    executor: Executor,
    num_threads: int,
) -> None:
    """`deltafl.secagg.prg.add_masks`, in several threads where that pays.

    Args:
        total: Contiguous vector of words.
        added: Seeds of 32 bytes.
        subtracted: Likewise.
        executor: Its threads do the work. The caller must not be one of them: it waits for them.
        num_threads: Into how many pieces a vector is cut at most; at least 1.

    Raises:
        UsageError: the vector is longer than a mask.
    """
    num_pieces = min(num_threads, total.nbytes // _LEAST_BYTES)
    if num_pieces < 2:
        prg.add_masks(total, added, subtracted)
        return
    num_blocks = -(-total.nbytes // BLOCK_BYTES)
    words = BLOCK_BYTES // total.itemsize
    borders = [num_blocks * piece // num_pieces for piece in range(num_pieces + 1)]

    def add(first: int, end: int) -> None:
        piece = total[first * words : end * words]
        prg.add_masks(piece, added, subtracted, first_block=first)

    for done in [executor.submit(add, first, end) for first, end in pairwise(borders)]:
        done.result()


class Masks(NamedTuple):
    """What computes masks.

    Attributes:
        add: Adds masks to vectors.
        share_up_to: Bytes of the longest vector for which a mask is best made once for both ends of
            a pair (see `deltafl.sim.cohort.shared`).
        made_by: What it is, in words.
    """

    add: AddMasks
    share_up_to: int
    made_by: str


def masks_of_this_machine() -> Masks:
    """Choose what adds masks to vectors; all choices give the same bits."""
    cores = usable_cores()
    if cores == 1:
        return Masks(prg.add_masks, prg.MAX_BYTES, "one thread")
    executor = ThreadPoolExecutor(cores, thread_name_prefix="masks")
    add = partial(add_in_threads, executor=executor, num_threads=cores)
    return Masks(add, LEAST_CUT - 1, f"{cores} threads, and long vectors in pieces")
