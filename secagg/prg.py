"""Masks from seeds: the ChaCha20 keystream (RFC 8439), read as little-endian ring words.

A mask of at most 32 bytes is the beginning of its seed, which needs no stretching.

A keystream word is uniform in Z_2^word, and its residue is uniform in Z_2^b, so no rejection
sampling is needed. Every key is used for one mask only, so nonce and counter start at zero. One key
covers 256 GiB.

Spec: §2.4, §5.1.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from deltafl.secagg.errors import UsageError
from deltafl.secagg.ring import Vector

SEED_SIZE: Final = 32
BLOCK_BYTES: Final = 64  # of keystream for each value of the block counter
MAX_BLOCKS: Final = 1 << 32  # the counter has four bytes
MAX_BYTES: Final = BLOCK_BYTES * MAX_BLOCKS
_CHUNK_BYTES: Final = 1 << 17  # keystream and accumulator stay in the second-level cache
SHORT_BYTES: Final = 1 << 10
"""Up to this size, the masks of a vector are summed as one array."""
_AT_ONCE: Final = 1 << 10  # ciphers kept open for their next chunk
_NONCE: Final = bytes(16)
_COUNTER_BYTES: Final = 4  # `cryptography` expects them as the first bytes of the nonce
_ZEROS: Final = memoryview(bytes(_CHUNK_BYTES))


def keystream(seed: bytes, size: int) -> bytes:
    """The first `size` bytes of the ChaCha20 keystream of a 32-byte seed."""
    stream = Cipher(algorithms.ChaCha20(seed, _NONCE), mode=None).encryptor()
    return stream.update(_ZEROS[:size] if size <= _CHUNK_BYTES else bytes(size))


def stretch(seed: bytes, size: int) -> bytes:
    """The first `size` bytes of the mask of a 32-byte seed. Spec: §5.1."""
    return seed[:size] if size <= SEED_SIZE else keystream(seed, size)


def add_mask(total: Vector, seed: bytes, *, negative: bool = False) -> None:
    """Add the mask of `seed` to `total`, or subtract it, modulo the word, in place.

    Args:
        total: Contiguous vector of d words.
        seed: 32 bytes, used for no other mask.
        negative: Subtract instead of adding.
    """
    add_masks(total, [] if negative else [seed], [seed] if negative else [])


def add_masks(
    total: Vector, added: Sequence[bytes], subtracted: Sequence[bytes], *, first_block: int = 0
) -> None:
    """Add the masks of some seeds to `total` and subtract those of others, in place.

    The result is that of `add_mask_plain` for each seed. Long vectors are processed chunk by chunk,
    with all masks applied to one chunk in turn, so that the chunk stays in the cache. Short masks
    are summed as one array.

    Args:
        total: Contiguous vector of d words.
        added: Seeds of 32 bytes.
        subtracted: Likewise.
        first_block: Offset of `total` in the masks, in blocks of 64 bytes. Use it if `total` is one
            piece of a longer vector whose other pieces are processed elsewhere.

    Raises:
        UsageError: the piece extends past the 2^32 blocks of a mask; nothing was added.
    """
    if not 0 <= first_block <= MAX_BLOCKS - -(-total.nbytes // BLOCK_BYTES):
        raise UsageError(
            f"{total.nbytes} bytes from block {first_block} on: a mask has {MAX_BLOCKS} blocks "
            f"of {BLOCK_BYTES} bytes"
        )
    if total.nbytes <= (SHORT_BYTES if first_block == 0 else 0):
        for operation, seeds in ((np.add, added), (np.subtract, subtracted)):
            if seeds:
                operation(total, _sum_of_short_masks(seeds, total), out=total)
        return
    masks = [(seed, False, None) for seed in added] + [(seed, True, None) for seed in subtracted]
    _add_long(total, masks, first_block)


def add_both_signs(total: Vector, masks: Sequence[tuple[bytes, bool, Vector | None]]) -> None:
    """Add masks to one vector, and each with the other sign to another, making each only once.

    Args:
        total: Contiguous vector of d words, more than 32 bytes.
        masks: For each mask its seed of 32 bytes, whether it is subtracted from `total`, and the
            other vector, which is like it and gets the mask with the other sign; None for none.
    """
    _add_long(total, masks, 0)


def _add_long(
    total: Vector, masks: Sequence[tuple[bytes, bool, Vector | None]], first_block: int
) -> None:
    """`add_both_signs` from some block of the masks on."""
    nonce = first_block.to_bytes(_COUNTER_BYTES, "little") + _NONCE[_COUNTER_BYTES:]
    buffer = bytearray(min(_CHUNK_BYTES, total.nbytes))
    mask = np.frombuffer(buffer, dtype=_little(total))
    for first in range(0, len(masks), _AT_ONCE):
        streams = [
            (
                *((np.subtract, np.add) if negative else (np.add, np.subtract)),
                Cipher(algorithms.ChaCha20(seed, nonce), mode=None).encryptor(),
                other,
            )
            for seed, negative, other in masks[first : first + _AT_ONCE]
        ]
        for start in range(0, len(total), len(mask)):
            end = start + len(mask)
            part = total[start:end]
            chunk, zeros = mask[: len(part)], _ZEROS[: part.nbytes]
            for here, there, stream, other in streams:
                stream.update_into(zeros, buffer)
                here(part, chunk, out=part)
                if other is not None:
                    piece = other[start:end]
                    there(piece, chunk, out=piece)


def _sum_of_short_masks(seeds: Sequence[bytes], total: Vector) -> Vector:
    masks = np.frombuffer(b"".join(stretch(s, total.nbytes) for s in seeds), _little(total))
    one: Vector = masks.reshape(len(seeds), len(total)).sum(axis=0, dtype=total.dtype)
    return one


def add_mask_plain(total: Vector, seed: bytes, *, negative: bool = False) -> None:
    """The slow twin of `add_mask`: it takes the whole keystream and adds element by element."""
    word = total.dtype.itemsize
    stream = stretch(seed, len(total) * word)
    for position in range(len(total)):
        element = int.from_bytes(stream[position * word : (position + 1) * word], "little")
        signed = -element if negative else element
        total[position] = (int(total[position]) + signed) % (1 << (8 * word))


def _little(vector: Vector) -> str:
    """The dtype in which the keystream is read for a vector of this dtype."""
    return "<u4" if vector.dtype.itemsize == 4 else "<u8"
