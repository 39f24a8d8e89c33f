"""Masks on the GPU: the kernel of `deltafl.sim.cohort.masks.chacha20`, called from the host.

Without a GPU the same kernel runs on the CPU in Triton's interpreter, which is for tests: two
kilobytes of keystream take it a tenth of a second.

Seeds are copied to the device, where nothing wipes them. This is only for simulations, in which one
machine holds every party's secrets anyway.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from deltafl.secagg import prg, ring
from deltafl.secagg.prg import BLOCK_BYTES, MAX_BLOCKS, SEED_SIZE
from deltafl.secagg.ring import Vector
from deltafl.sim.cohort.masks import chacha20
from deltafl.sim.cohort.shared import SignedSeeds
from deltafl.sim.errors import UserError

_LANES: Final = 32  # blocks of a program, a warp's: even one short vector spreads over the GPU
_WARPS: Final = 1
_MAX_PROGRAMS: Final = (1 << 31) - 1  # of a launch


class TritonUnavailable(UserError):
    """The package triton is not installed."""


def add_masks_to_rows(vectors: Tensor, seeds: Tensor, signs: Tensor) -> None:
    """Add masks to many vectors, or subtract them, modulo the word, in place, in one launch.

    What `deltafl.secagg.prg.add_masks` does to each row, to the bit. On a GPU the call returns
    before the work is done, like any other on torch tensors.

    Args:
        vectors: uint32 or uint64 [n, d], contiguous, with more than 32 bytes in a row: a shorter
            mask is no keystream.
        seeds: uint8 [n, m, 32], contiguous, on the same device.
        signs: int8 [n, m], contiguous, on the same device: +1 adds a seed's mask, −1 subtracts it,
            0 skips the seed, as rows of different length need.

    Raises:
        TritonUnavailable: the package is not installed.
        ValueError: a shape, dtype or device is another; or a vector is longer than a mask, or one
            launch cannot have as many programs.
    """
    if chacha20.triton is None:
        raise TritonUnavailable("masks on the GPU take triton: pip install '.[gpu]'")
    _check(vectors, seeds, signs)
    num_rows, length = vectors.shape
    words = BLOCK_BYTES // vectors.itemsize
    num_runs = -(-length // (words * _LANES))
    num_programs = num_rows * num_runs
    if length > words * MAX_BLOCKS or num_programs > _MAX_PROGRAMS:
        raise ValueError(f"{num_rows} vectors of {length} words are too many, or too long")
    if num_programs and signs.numel():
        with torch.cuda.device(vectors.get_device()):  # −1 on the CPU: none to choose
            chacha20.add_masks[(num_programs,)](
                vectors,
                seeds.view(torch.uint32),
                signs,
                length,
                signs.shape[1],
                num_runs,
                num_words=words,
                num_lanes=_LANES,
                num_warps=_WARPS,
                enable_fp_fusion=False,  # there is nothing to fuse; Triton 3.9 warns if not told
            )


def add_masks(
    total: Vector, added: Sequence[bytes], subtracted: Sequence[bytes], *, device: torch.device
) -> None:
    """`deltafl.secagg.prg.add_masks` on a device: the vector goes there and comes back.

    Args:
        total: Contiguous vector of words.
        added: Seeds of 32 bytes.
        subtracted: Likewise.
        device: The GPU, or the CPU where there is none.

    Raises:
        TritonUnavailable: the package is not installed.
        ValueError: a seed has another size, or the vector is longer than a mask.
    """
    seeds = [*added, *subtracted]
    if any(len(seed) != SEED_SIZE for seed in seeds):
        raise ValueError(f"a seed is not {SEED_SIZE} bytes long")
    if total.nbytes <= SEED_SIZE:
        prg.add_masks(total, added, subtracted)  # such masks are no keystream
        return
    joined = np.frombuffer(bytearray(b"".join(seeds)), np.uint8)
    signs = np.repeat(np.array([1, -1], np.int8), [len(added), len(subtracted)])
    row = torch.from_numpy(total).to(device)
    add_masks_to_rows(
        row[None],
        torch.from_numpy(joined.reshape(1, -1, SEED_SIZE)).to(device),
        torch.from_numpy(signs[None]).to(device),
    )
    total[:] = row.cpu().numpy()


def sums_of_masks(
    length: int, ring_bits: int, masks: Sequence[SignedSeeds], *, device: torch.device
) -> Vector:
    """Add up the masks of many vectors in one launch, and bring the sums back in one transfer.

    Args:
        length: Words of a vector, more than 32 bytes.
        ring_bits: Bits of a number, which decide the word.
        masks: Of each vector, the seeds that are added and those that are subtracted.
        device: Where to compute.

    Returns:
        What is to be added to each vector, [len(masks), length], in the ring's words.

    Raises:
        TritonUnavailable: the package is not installed.
        ValueError: a seed has another size, or the vectors are too long or too many for a launch.
    """
    most = max((len(added) + len(subtracted) for added, subtracted in masks), default=0)
    seeds = np.zeros((len(masks), most, SEED_SIZE), np.uint8)
    signs = np.zeros((len(masks), most), np.int8)
    for row, sign, (added, subtracted) in zip(seeds, signs, masks, strict=True):
        both = [*added, *subtracted]
        if any(len(seed) != SEED_SIZE for seed in both):
            raise ValueError(f"a seed is not {SEED_SIZE} bytes long")
        row[: len(both)] = np.frombuffer(b"".join(both), np.uint8).reshape(-1, SEED_SIZE)
        sign[: len(added)], sign[len(added) : len(both)] = 1, -1
    # zeros of a signed type, which torch can make everywhere
    is_short = ring.zeros(0, ring_bits).itemsize == 4
    zeros = torch.zeros(
        len(masks), length, dtype=torch.int32 if is_short else torch.int64, device=device
    )
    sums = zeros.view(torch.uint32 if is_short else torch.uint64)
    add_masks_to_rows(sums, torch.from_numpy(seeds).to(device), torch.from_numpy(signs).to(device))
    found: Vector = sums.cpu().numpy()
    return found


def _check(vectors: Tensor, seeds: Tensor, signs: Tensor) -> None:
    if vectors.dim() != 2 or signs.dim() != 2:
        raise ValueError(
            f"vectors {list(vectors.shape)} and signs {list(signs.shape)}: no matrices"
        )
    num_rows, num_seeds = len(vectors), signs.shape[1]
    for name, tensor, shape, dtypes in (
        ("vectors", vectors, vectors.shape, [torch.uint32, torch.uint64]),
        ("seeds", seeds, (num_rows, num_seeds, SEED_SIZE), [torch.uint8]),
        ("signs", signs, (num_rows, num_seeds), [torch.int8]),
    ):
        if tensor.shape != shape or tensor.dtype not in dtypes:
            wanted = " or ".join(map(str, dtypes))
            raise ValueError(
                f"{name}: {tensor.dtype} {list(tensor.shape)} must be {wanted} {list(shape)}"
            )
        if tensor.device != vectors.device or not tensor.is_contiguous():
            raise ValueError(f"{name}: must be contiguous and on {vectors.device}, as the vectors")
