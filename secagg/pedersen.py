"""Pedersen commitments to vectors of integers, in the prime-order subgroup of edwards25519.

A commitment to values v_0, v_1, … with blinding r is the point r·B + Σ v_j·G_j. A uniform r hides
the values whatever they are, and nobody can open a commitment in two ways without a discrete
logarithm between the points: B is the base point of Ed25519, and each G_j comes out of a hash.
Commitments add up as values and blindings do (Pedersen, CRYPTO 1991).

Spec: §2.9.
"""

from collections.abc import Sequence
from functools import cache
from itertools import count, groupby
from typing import Final

from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_is_valid_point,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)
from nacl.exceptions import RuntimeError as SodiumError
from nacl.exceptions import UnavailableError

from deltafl.secagg import labels
from deltafl.secagg.labels import Label
from deltafl.secagg.randomness import Randomness

ORDER: Final = 2**252 + 27742317777372353535851937790883648493
COMMITMENT_SIZE: Final = 32
BLINDING_SIZE: Final = 32
# Bytes drawn for a blinding: the remainder modulo the order is uniform up to 2^-258.
_DRAW_SIZE: Final = 64
_IDENTITY: Final = (1).to_bytes(COMMITMENT_SIZE, "little")
BASE: Final = crypto_scalarmult_ed25519_base_noclamp((1).to_bytes(COMMITMENT_SIZE, "little"))
"""The base point of Ed25519, 32 bytes: what a blinding multiplies."""
_PRIME: Final = 2**255 - 19
_SIGN: Final = 1 << 255
# The points (0, 1) and (0, -1) with the sign of a negative x.
_NEGATIVE_ZERO: Final = (_SIGN | 1, _SIGN | (_PRIME - 1))
# _sums[k] is G_0 + … + G_(k-1). Threads that extend it at once write the same entries.
_sums: Final = {0: _IDENTITY}


@cache
def generator(index: int) -> bytes:
    """The generator G_index, 32 bytes: the first usable hash, times 8, the cofactor.

    Kept once computed: 0.1 ms of work each.

    Spec: §2.9.

    Args:
        index: Position of the value that it is for, in [0, 2^64).
    """
    points = (_hashed(index, attempt) for attempt in count())
    return next(point for point in points if point != _IDENTITY)


def span(start: int, end: int) -> bytes:
    """The sum of the generators G_start, …, G_(end-1), 32 bytes; 0 ≤ start ≤ end.

    Spec: §2.9.
    """
    for index in range(len(_sums), end + 1):
        _sums[index] = crypto_core_ed25519_add(_sums[index - 1], generator(index - 1))
    return crypto_core_ed25519_sub(_sums[end], _sums[start])


def times(factor: int, point: bytes) -> bytes:
    """A multiple of a point, 32 bytes.

    The time depends on whether the factor is zero, and whether the point is the base point or the
    neutral one. Otherwise it tells nothing of them.

    Spec: §2.9.

    Args:
        factor: Any integer; what counts is its remainder modulo the order.
        point: Of the subgroup of prime order (`is_in_group`), or neutral.
    """
    factor %= ORDER
    if factor == 0 or point == _IDENTITY:  # libsodium refuses both
        return _IDENTITY
    if point == BASE:
        return crypto_scalarmult_ed25519_base_noclamp(_encoded(factor))
    return crypto_scalarmult_ed25519_noclamp(_encoded(factor), point)


def plus(one: bytes, other: bytes) -> bytes:
    """The sum of two points of the curve, 32 bytes; see `add` for points from outside.

    Spec: §2.9.
    """
    return crypto_core_ed25519_add(one, other)


def minus(one: bytes, other: bytes) -> bytes:
    """The difference of two points of the curve, 32 bytes. Spec: §2.9."""
    return crypto_core_ed25519_sub(one, other)


def is_in_group(point: bytes) -> bool:
    """Whether these bytes are a point of the subgroup of prime order, and not the neutral one.

    Never raises.

    Spec: §2.9.
    """
    return _is_canonical(point) and bool(crypto_core_ed25519_is_valid_point(point))


def commit(values: Sequence[int], blinding: int) -> bytes:
    """The commitment to some values, 32 bytes.

    The time depends on how many values there are, on where equal ones are neighbours, and on which
    differ only by sign or are 0, 1 or -1. Otherwise it tells nothing of them. Whatever they are,
    the first commitment of a process to so many takes longer, as it computes the generators.

    Spec: §2.9.

    Args:
        values: Integers of any size and sign; what counts is their remainders modulo the order.
        blinding: In [0, ORDER); uniform, new and secret if the commitment is to hide anything.
    """
    # All generators at once: which of them a process has computed must not depend on the values.
    span(0, len(values))
    total = _IDENTITY
    if blinding:
        total = crypto_scalarmult_ed25519_base_noclamp(_encoded(blinding))
    for factor, point in _grouped(values).items():
        # libsodium multiplies neither by zero nor the identity. `_grouped` leaves out the first;
        # whoever finds values that give the second knows a relation between generators.
        if factor != 1:
            point = crypto_scalarmult_ed25519_noclamp(_encoded(factor), point)
        total = crypto_core_ed25519_add(total, point)
    return total


def add(commitments: Sequence[bytes]) -> bytes | None:
    """The sum of commitments; None if one is no canonical encoding of a point; never raises.

    Points outside the prime-order subgroup are accepted, as to refuse them would cost three times
    as much as to add them. Such a point is one of the subgroup plus one of eight points of small
    order. If these do not cancel in the sum, it equals no commitment; if they do, the sum is that
    of the parts in the subgroup, to which their senders are as bound as everybody to theirs.

    Spec: §2.9.

    Args:
        commitments: Byte strings from any source; the sum of none commits to zeros, unblinded.
    """
    total = _IDENTITY
    try:
        for commitment in commitments:
            if not _is_canonical(commitment):
                return None
            total = crypto_core_ed25519_add(total, commitment)
    except UnavailableError:  # libsodium was built without this function
        raise
    except SodiumError:  # not on the curve
        return None
    return total


def opens(commitments: Sequence[bytes], values: Sequence[int], blinding: int) -> bool:
    """Whether the sum of commitments is the commitment to some values; never raises.

    Spec: §2.9.

    Args:
        commitments: Byte strings from any source.
        values: The sums of what was committed to, position by position; any integers.
        blinding: The sum of the blindings; any integer.
    """
    return add(commitments) == commit(values, blinding % ORDER)


def draw_blinding(randomness: Randomness) -> int:
    """Draw a blinding, in [0, ORDER); takes 64 bytes of randomness. Spec: §2.9."""
    return int.from_bytes(randomness(_DRAW_SIZE), "little") % ORDER


def _grouped(values: Sequence[int]) -> dict[int, bytes]:
    """The sum Σ v_j·G_j as factors in [1, ORDER / 2), each with the point that it multiplies.

    A multiplication takes as long as six additions, and most values are like their neighbours or
    like values elsewhere. Each run of equal values takes one subtraction of sums, however long it
    is, and all runs of equal size, whatever their sign, take one multiplication.
    """
    points = dict[int, bytes]()
    start = end = 0
    for value, run in groupby(values):
        start, end = end, end + len(list(run))
        factor = value % ORDER
        if factor == 0:
            continue
        point = generator(start) if end == start + 1 else span(start, end)
        size = min(factor, ORDER - factor)
        move = crypto_core_ed25519_add if size == factor else crypto_core_ed25519_sub
        points[size] = move(points.get(size, _IDENTITY), point)
    return points


def _hashed(index: int, attempt: int) -> bytes:
    """Eight times the point that a digest encodes; the identity if it encodes none."""
    digest = labels.digest(Label.GENERATOR, index, attempt)
    point = add([digest, digest])
    if point is None:
        return _IDENTITY
    for _ in range(2):
        point = crypto_core_ed25519_add(point, point)
    return point


def _is_canonical(point: bytes) -> bool:
    """Whether these are 32 bytes and, if on the curve, the only encoding of their point.

    libsodium also takes a y from the prime up, and a sign where x is zero.
    """
    number = int.from_bytes(point, "little")
    y_is_reduced = number & (_SIGN - 1) < _PRIME
    return len(point) == COMMITMENT_SIZE and y_is_reduced and number not in _NEGATIVE_ZERO


def _encoded(scalar: int) -> bytes:
    return scalar.to_bytes(COMMITMENT_SIZE, "little")
