"""Masks on the GPU: ChaCha20 (RFC 8439) in Triton, and how the host calls it.

One program works on a run of keystream blocks. It makes these blocks of every seed in
turn, keeps their signed sum in registers, and adds it to the vector once: no keystream is written
to memory. A block is one lane's work; nothing crosses lanes before the last step.

Without a GPU the same kernel runs on the CPU in Triton's interpreter, bit for bit, which is for
tests: two kilobytes of keystream take it a tenth of a second. Triton's language is not Python's:
types are those of tensors on the device, and constants must stand in the kernel.

Seeds are copied to the device, where nothing wipes them. This is only for simulations, in which one
machine holds every party's secrets anyway.
"""
# ruff: noqa: ANN001, ANN202 a kernel's parameters have no Python types

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, no_type_check

import numpy as np
import torch

from deltafl.secagg import prg
from deltafl.secagg.prg import BLOCK_BYTES, SEED_SIZE
from deltafl.secagg.ring import Vector
from deltafl.sim.errors import UserError

try:
    # Any, for mypy accepts this module with and without Triton
    triton: Any = import_module("triton")
    tl: Any = import_module("triton.language")
except ImportError:
    triton = tl = None


_LANES: Final = 32  # blocks of a program, a warp's: even one short vector spreads over the GPU
_WARPS: Final = 1


class TritonUnavailable(UserError):
    """The package triton is not installed."""


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
    if triton is None:
        raise TritonUnavailable("masks on the GPU take triton: pip install '.[gpu]'")
    if total.nbytes > prg.MAX_BYTES:
        raise ValueError(f"a vector of {total.nbytes} bytes is longer than a mask")
    if not seeds:
        return
    keys = np.frombuffer(bytearray(b"".join(seeds)), np.uint32)
    signs = np.repeat(np.array([1, -1], np.int8), [len(added), len(subtracted)])
    there = [torch.from_numpy(array).to(device) for array in (total, keys, signs)]
    words = BLOCK_BYTES // total.itemsize
    with torch.cuda.device(there[0].get_device()):  # −1 on the CPU: none to choose
        _add_masks[(-(-len(total) // (words * _LANES)),)](
            *there,
            len(total),
            len(seeds),
            num_words=words,
            num_lanes=_LANES,
            num_warps=_WARPS,
            enable_fp_fusion=False,  # there is nothing to fuse; Triton 3.9 warns if not told
        )
    total[:] = there[0].cpu().numpy()


def _kernel(function: Callable[..., Any]) -> Any:  # noqa: ANN401 what Triton makes of it
    """Compile for the GPU; interpret where there is none; without Triton, let it be."""
    if triton is None:
        return function
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = not torch.cuda.is_available()
        return triton.jit(function)


@_kernel
@no_type_check
def _add_masks(
    vector,
    seeds,
    signs,
    length,
    num_seeds,
    num_words: tl.constexpr,
    num_lanes: tl.constexpr,
) -> None:
    """Add one run of keystream blocks of every seed to the vector: program i, run i.

    Args:
        vector: Pointer to words [length] of 32 or 64 bits.
        seeds: Pointer to 32-bit words [num_seeds, 8].
        signs: Pointer to int8 [num_seeds], each −1 or +1.
        length: Words of the vector.
        num_seeds: Seeds.
        num_words: In a block: 16 of 32 bits or 8 of 64 bits, as `vector` has them.
        num_lanes: Blocks of a run, a power of two.
    """
    block = tl.program_id(0).to(tl.uint32) * num_lanes + tl.arange(0, num_lanes).to(tl.uint32)
    z = tl.full((num_lanes,), 0, vector.dtype.element_ty)
    sums = (z, z, z, z, z, z, z, z, z, z, z, z, z, z, z, z)
    for index in range(num_seeds):
        words = _keystream(seeds + index * 8, block)
        if num_words == 8:
            words = _paired(words)
        sign = tl.load(signs + index)
        sums = _plus(sums, words, sign.to(z.dtype))  # −1 is 2^word − 1
    if num_words == 8:
        total = _stack(sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7])
    else:
        even = _stack(sums[0], sums[2], sums[4], sums[6], sums[8], sums[10], sums[12], sums[14])
        odd = _stack(sums[1], sums[3], sums[5], sums[7], sums[9], sums[11], sums[13], sums[15])
        total = tl.join(even, odd)
    total = tl.reshape(total, (num_lanes, num_words))
    place = block.to(tl.int64)[:, None] * num_words + tl.arange(0, num_words)[None, :]
    here, inside = vector + place, place < length
    tl.store(here, tl.load(here, mask=inside) + total, mask=inside)


@_kernel
@no_type_check
def _keystream(seed, block):
    """Some blocks of a seed's keystream (RFC 8439, section 2.3), nonce zero: 16 words [lanes].

    Args:
        seed: Pointer to eight 32-bit words.
        block: Block counters, uint32 [lanes].
    """
    zero = tl.full(block.shape, 0, tl.uint32)
    c0, c1, c2, c3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    k0, k1, k2, k3 = tl.load(seed), tl.load(seed + 1), tl.load(seed + 2), tl.load(seed + 3)
    k4, k5, k6, k7 = tl.load(seed + 4), tl.load(seed + 5), tl.load(seed + 6), tl.load(seed + 7)
    x0, x1, x2, x3 = c0, c1, c2, c3
    x4, x5, x6, x7 = zero + k0, zero + k1, zero + k2, zero + k3
    x8, x9, x10, x11 = zero + k4, zero + k5, zero + k6, zero + k7
    x12, x13, x14, x15 = block, zero, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    x0, x1, x2, x3 = x0 + c0, x1 + c1, x2 + c2, x3 + c3
    x4, x5, x6, x7 = x4 + k0, x5 + k1, x6 + k2, x7 + k3
    x8, x9, x10, x11 = x8 + k4, x9 + k5, x10 + k6, x11 + k7
    x12 += block
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15


@_kernel
@no_type_check
def _quarter_round(a, b, c, d):
    """RFC 8439, section 2.1."""
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@_kernel
@no_type_check
def _paired(words):
    """Sixteen words of 32 bits as eight of 64 bits, and eight zeros."""
    w0, w1 = _pair(words[0], words[1]), _pair(words[2], words[3])
    w2, w3 = _pair(words[4], words[5]), _pair(words[6], words[7])
    w4, w5 = _pair(words[8], words[9]), _pair(words[10], words[11])
    w6, w7 = _pair(words[12], words[13]), _pair(words[14], words[15])
    z = w0 * 0
    return w0, w1, w2, w3, w4, w5, w6, w7, z, z, z, z, z, z, z, z


@_kernel
@no_type_check
def _pair(low, high):
    return low.to(tl.uint64) | (high.to(tl.uint64) << 32)


@_kernel
@no_type_check
def _plus(sums, words, sign):
    """Sixteen sums, after sixteen words with a sign."""
    s0, s1 = sums[0] + words[0] * sign, sums[1] + words[1] * sign
    s2, s3 = sums[2] + words[2] * sign, sums[3] + words[3] * sign
    s4, s5 = sums[4] + words[4] * sign, sums[5] + words[5] * sign
    s6, s7 = sums[6] + words[6] * sign, sums[7] + words[7] * sign
    s8, s9 = sums[8] + words[8] * sign, sums[9] + words[9] * sign
    s10, s11 = sums[10] + words[10] * sign, sums[11] + words[11] * sign
    s12, s13 = sums[12] + words[12] * sign, sums[13] + words[13] * sign
    s14, s15 = sums[14] + words[14] * sign, sums[15] + words[15] * sign
    return s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15


@_kernel
@no_type_check
def _stack(a, b, c, d, e, f, g, h):
    """Eight words of each lane side by side: [lanes, 2, 2, 2]."""
    first = tl.join(tl.join(a, e), tl.join(c, g))
    second = tl.join(tl.join(b, f), tl.join(d, h))
    return tl.join(first, second)
