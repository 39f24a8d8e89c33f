"""Vectors over the ring Z_2^b, 1 ≤ b ≤ 64: storage, reduction, and b-bit packing for the wire.

A vector is stored as 32-bit words for b ≤ 32, and as 64-bit words above that. Additions wrap around
at the word size. Because 2^b divides 2^word, a single reduction at the end gives the ring sum.

Spec: §5.1.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg.errors import DecodeError, UsageError

Vector = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]

MAX_BITS: Final = 64
_WORD: Final = 64
_SMALL: Final = 16  # up to here one Python integer packs faster than a few array operations
_SHORT: Final = 1 << 12  # up to here a byte for each bit is faster than 64 array operations


def to_words(values: Vector, bits: int) -> Vector:
    """A new copy in the words of Z_2^bits: uint32 up to 32 bits, else uint64."""
    return values.astype(np.uint32) if bits <= 32 else values.astype(np.uint64)


def zeros(length: int, bits: int) -> Vector:
    """The zero vector of `length` elements of Z_2^bits."""
    return np.zeros(length, np.uint32) if bits <= 32 else np.zeros(length, np.uint64)


def reduce(vector: Vector, bits: int) -> None:
    """Bring every element into [0, 2^bits), in place."""
    if bits not in (32, 64):
        vector &= vector.dtype.type((1 << bits) - 1)


def as_vector(values: Vector, length: int, bits: int) -> Vector:
    """Check a caller's vector and return it as a new array, in words of the ring.

    Raises:
        UsageError: `check_vector` refuses it.
    """
    check_vector(values, length, bits)
    return to_words(values, bits)


def check_vector(values: Vector, length: int, bits: int) -> None:
    """Accept a caller's vector.

    Raises:
        UsageError: no NumPy array, or a masked one; wrong shape or dtype; or an element outside
            [0, 2^bits).
    """
    # The hidden elements of a masked array would be summed, and the largest would not be seen.
    if not isinstance(values, np.ndarray) or isinstance(values, np.ma.MaskedArray):
        raise UsageError(
            f"a vector is a NumPy array of unsigned integers, not a {type(values).__name__}: give "
            "numpy.array(values, dtype=numpy.uint32), or what a `Layout` encodes"
        )
    if values.shape != (length,) or values.dtype not in (np.uint32, np.uint64):
        raise UsageError(
            f"vector of shape {values.shape} and dtype {values.dtype}: "
            f"the slot takes {length} words of 32 or 64 bits, unsigned "
            "(a `Layout` encodes negative and real numbers)"
        )
    if length and bits < 8 * values.itemsize and int(values.max()) >> bits:
        raise UsageError(f"element {int(values.max())} is not in [0, 2^{bits})")


def packed_size(length: int, bits: int) -> int:
    """Bytes of a packed vector: ⌈length·bits / 8⌉."""
    return (length * bits + 7) // 8


def pack(vector: Vector, bits: int) -> bytes:
    """Write the elements, each in [0, 2^bits), as one little-endian bit string of bits·length bits.

    The last byte is padded with zero bits. Length: `packed_size`.
    """
    if bits in (32, 64):
        return vector.astype("<u4" if bits == 32 else "<u8", copy=False).tobytes()
    if len(vector) <= _SMALL:
        return pack_plain(vector, bits)
    if len(vector) <= _SHORT:
        octets = vector.astype("<u8").view(np.uint8).reshape(-1, _WORD // 8)
        digits = np.unpackbits(octets, axis=1, count=bits, bitorder="little")
        return np.packbits(digits, bitorder="little").tobytes()
    groups = -(-len(vector) // _WORD)
    columns = np.zeros((groups, _WORD), dtype=np.uint64)
    columns.reshape(-1)[: len(vector)] = vector
    columns = np.ascontiguousarray(columns.T)
    words = np.zeros((bits + 1, groups), dtype=np.uint64)
    for i in range(_WORD):
        word, shift = divmod(i * bits, _WORD)
        words[word] |= columns[i] << np.uint64(shift)
        if shift + bits > _WORD:
            words[word + 1] |= columns[i] >> np.uint64(_WORD - shift)
    packed = np.ascontiguousarray(words[:bits].T).astype("<u8", copy=False).tobytes()
    return packed[: packed_size(len(vector), bits)]


def check_packed(data: bytes, length: int, bits: int) -> None:
    """Check that `pack` could have written this.

    Raises:
        DecodeError: wrong size, or padding bits that are not zero.
    """
    size = packed_size(length, bits)
    if len(data) != size:
        raise DecodeError(f"packed vector of {len(data)} bytes; {length} x {bits} bits take {size}")
    if data and data[-1] >> (8 - (8 * size - length * bits)):
        raise DecodeError("padding bits of a packed vector are not zero")


def unpack(data: bytes, length: int, bits: int) -> Vector:
    """Read what `pack` wrote; the vector may share the data's memory, and is then read-only.

    Raises:
        DecodeError: as `check_packed`.
    """
    check_packed(data, length, bits)
    if bits == 32:
        return np.frombuffer(data, dtype="<u4").astype(np.uint32, copy=False)
    if bits == 64:
        return np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False)
    if length <= _SMALL:
        return unpack_plain(data, length, bits)
    if length <= _SHORT:
        digits = np.zeros((length, _WORD), dtype=np.uint8)
        packed = np.frombuffer(data, dtype=np.uint8)
        each = np.unpackbits(packed, count=length * bits, bitorder="little")
        digits[:, :bits] = each.reshape(length, bits)
        octets = np.packbits(digits, axis=1, bitorder="little")
        return to_words(octets.view("<u8").reshape(-1).astype(np.uint64, copy=False), bits)
    groups = -(-length // _WORD)
    padded = np.zeros(groups * bits * 8, dtype=np.uint8)
    padded[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    words = np.ascontiguousarray(padded.view("<u8").astype(np.uint64).reshape(groups, bits).T)
    columns = np.empty((_WORD, groups), dtype=np.uint64)
    for i in range(_WORD):
        word, shift = divmod(i * bits, _WORD)
        columns[i] = words[word] >> np.uint64(shift)
        if shift + bits > _WORD:
            columns[i] |= words[word + 1] << np.uint64(_WORD - shift)
    columns &= np.uint64((1 << bits) - 1)
    return to_words(np.ascontiguousarray(columns.T).reshape(-1)[:length], bits)


def pack_plain(vector: Vector, bits: int) -> bytes:
    """The slow twin of `pack`: one big integer."""
    number = 0
    for position, element in enumerate(vector.tolist()):
        number |= element << (position * bits)
    return number.to_bytes(packed_size(len(vector), bits), "little")


def unpack_plain(data: bytes, length: int, bits: int) -> Vector:
    """The slow twin of `unpack`, for data of the right size and padding."""
    number = int.from_bytes(data, "little")
    low = (1 << bits) - 1
    elements = [(number >> (position * bits)) & low for position in range(length)]
    return to_words(np.array(elements, dtype=np.uint64), bits)
