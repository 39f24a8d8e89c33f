"""Typed fixed-point layouts: named real fields in a vector over Z_2^b that cannot overflow.

A layout knows the bounds and the resolution of each field, and the size of the cohort. These
determine the ring width b. Any sum over any part of the cohort decodes to the exact integer sum of
what was encoded, because rounding and clipping happen on the device, before the sum.

Spec: §12.3.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from deltafl.secagg import ring
from deltafl.secagg.errors import EncodingError, UsageError, whole_number
from deltafl.secagg.given import real_numbers
from deltafl.secagg.ring import Vector

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
MAX_NUMERATOR_BITS = 53  # one device's number is then exact in float64, whatever its input dtype


@dataclass(frozen=True, slots=True)
class Field:
    """`size` numbers in [low, high], carried as multiples of 2^-resolution_bits.

    Values and bounds alike are rounded to the nearest multiple (ties to even).

    Attributes:
        name: What the numbers are; unique in a layout.
        size: How many numbers, ≥ 1.
        low: Smallest value, in the field's own unit.
        high: Largest value; at least `low`.
        resolution_bits: Binary digits after the point, ≥ 0.
        min_numerator: `low` in units of 2^-resolution_bits.
        max_numerator: `high` in units of 2^-resolution_bits.

    Raises:
        UsageError: If an attribute is out of range, or a bound needs more than 53 bits.
    """

    name: str
    size: int
    low: float
    high: float
    resolution_bits: int
    min_numerator: int = dataclasses.field(init=False, repr=False)
    max_numerator: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise UsageError("a field has an empty name: say what its numbers are")
        for name in ("size", "resolution_bits"):
            number = whole_number(f"field {self.name!r}: {name}", getattr(self, name))
            object.__setattr__(self, name, number)
        for name in ("low", "high"):
            object.__setattr__(
                self, name, _exact(f"field {self.name!r}: {name}", getattr(self, name))
            )
        if self.size < 1:
            raise UsageError(f"field {self.name!r}: size={self.size} is less than 1")
        if not 0 <= self.resolution_bits <= MAX_NUMERATOR_BITS:
            raise UsageError(
                f"field {self.name!r}: resolution_bits={self.resolution_bits} is not in "
                f"[0, {MAX_NUMERATOR_BITS}]"
            )
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise UsageError(
                f"field {self.name!r}: [{self.low}, {self.high}] is not an interval of finite ends"
            )
        for name, bound in (("min_numerator", self.low), ("max_numerator", self.high)):
            numerator = round(Fraction(bound) * (1 << self.resolution_bits))
            object.__setattr__(self, name, numerator)
            if numerator.bit_length() > MAX_NUMERATOR_BITS:
                raise UsageError(
                    f"field {self.name!r}: bound {bound} at resolution_bits="
                    f"{self.resolution_bits} needs {numerator.bit_length()} bits, more than "
                    f"{MAX_NUMERATOR_BITS}: lower one of them"
                )

    def sum_range(self, cohort_size: int) -> tuple[int, int]:
        """Return the smallest and largest sum, in units, over 0 to `cohort_size` devices."""
        return cohort_size * min(0, self.min_numerator), cohort_size * max(0, self.max_numerator)

    def ring_bits(self, cohort_size: int) -> int:
        """Return the fewest bits that distinguish all those sums (two's complement if signed)."""
        low, high = self.sum_range(cohort_size)
        if low < 0:
            return max((-low - 1).bit_length(), high.bit_length()) + 1
        return max(high.bit_length(), 1)


@dataclass(frozen=True, slots=True, repr=False)  # the numbers are a device's update
class Multiple:
    """Numbers times a factor, for a field; the products are never stored as an array.

    Attributes:
        numbers: Values of any kind that a field accepts; the products are rounded to float64 before
            they are encoded.
        factor: In [0, 2^53].
    """

    numbers: npt.ArrayLike
    factor: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of a ring vector, in order, and the largest cohort whose vectors are summed.

    Attributes:
        fields: At least one; their names differ.
        cohort_size: Most devices in a sum, ≥ 1.
        min_ring_bits: A wider ring than the sums need; 0 for none.
        length: Words in a ring vector.
        ring_bits: Smallest b for which every sum decodes exactly from Z_2^b, or min_ring_bits if
            that is more; 1 to 64.

    Raises:
        UsageError: If these limits do not hold, or a field's sums do not fit 64-bit
            integers.

    >>> layout = Layout((Field("delta", 2, -1.0, 1.0, 8), Field("weight", 1, 0, 500, 0)), 100)
    >>> layout.length, layout.ring_bits
    (3, 16)
    >>> words, num_clipped = layout.encode({"delta": [0.5, -7.0], "weight": 120})
    >>> words.tolist(), num_clipped
    ([128, 65280, 120], 1)
    >>> layout.decode(words)["delta"].tolist()
    [128, -256]
    """

    fields: tuple[Field, ...]
    cohort_size: int
    min_ring_bits: int = 0
    length: int = dataclasses.field(init=False, repr=False)
    ring_bits: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if not names or len(set(names)) != len(names):
            raise UsageError(f"field names {names} are not one or more different names")
        object.__setattr__(self, "cohort_size", whole_number("cohort_size", self.cohort_size))
        if self.cohort_size < 1:
            raise UsageError(f"cohort_size={self.cohort_size} is less than 1")
        for field in self.fields:
            num_bits = field.ring_bits(self.cohort_size)
            # sums are decoded to int64, so an unsigned field must not use the last bit
            most = ring.MAX_BITS if field.min_numerator < 0 else ring.MAX_BITS - 1
            if num_bits > most:
                raise UsageError(
                    f"field {field.name!r}: sums over {self.cohort_size} devices need {num_bits} "
                    f"bits, more than {most}: lower its bound, its resolution_bits "
                    f"or the cohort_size"
                )
        length = sum(field.size for field in self.fields)
        needed = max(field.ring_bits(self.cohort_size) for field in self.fields)
        ring_bits = max(needed, self.min_ring_bits)
        if ring_bits > ring.MAX_BITS:
            raise UsageError(
                f"fields from {self.fields[0].name!r} on: {ring_bits} ring bits are more than "
                f"{ring.MAX_BITS}"
            )
        object.__setattr__(self, "length", length)
        object.__setattr__(self, "ring_bits", ring_bits)

    def encode(self, values: Mapping[str, npt.ArrayLike | Multiple]) -> tuple[Vector, int]:
        """Encode one device's values; cost O(length), vectorised.

        Args:
            values: For every field an array of booleans, integers or floats of shape (size,), or a
                `Multiple` of them. A field of size 1 also accepts a scalar.

        Returns:
            The ring vector, in words of the ring (`deltafl.secagg.ring`) of shape (length,), each
            in [0, 2^ring_bits); and how many elements were outside their field's interval and were
            clipped to its nearest end.

        Raises:
            EncodingError: If a field is missing, unknown or of the wrong shape or type, or holds a
                NaN or an infinity.
        """
        known = {field.name for field in self.fields}
        if not isinstance(values, Mapping):
            raise EncodingError(f"{type(values).__name__} instead of a value by name for {known}")
        if values.keys() != known:
            raise EncodingError(
                f"missing fields {sorted(known - values.keys())}, "
                f"unknown fields {sorted(values.keys() - known)}: give exactly {sorted(known)}"
            )
        words = ring.zeros(self.length, self.ring_bits)
        signed = words.view(np.int32 if words.itemsize == 4 else np.int64)
        num_clipped = 0
        start = 0
        for field in self.fields:
            value = values[field.name]
            number = _scalar(field, value)
            if number is not None:
                numerator, is_outside = _numerator(field, number)
                words[start] = numerator & (1 << self.ring_bits) - 1
                num_clipped += is_outside
                start += 1
                continue
            numerators, num_outside = _numerators(field, value)
            if field.max_numerator > _MAX_INT32 and words.itemsize == 4:
                numerators = numerators.astype(np.int64)  # which wraps; a float would not
            signed[start : start + field.size] = numerators
            num_clipped += num_outside
            start += field.size
        ring.reduce(words, self.ring_bits)
        return words, num_clipped

    def decode(self, total: Vector) -> dict[str, npt.NDArray[np.int64]]:
        """Decode a sum mod 2^ring_bits of at most `cohort_size` encoded vectors, exactly.

        Args:
            total: uint32 or uint64 of shape (length,), each word in [0, 2^ring_bits).

        Returns:
            For every field the sums, int64 of shape (size,), in units of 2^-resolution_bits.

        Raises:
            EncodingError: If the vector does not have that form, or a sum is out of its field's
                range, which proves that some device did not follow the layout.
        """
        if not isinstance(total, np.ndarray):
            raise EncodingError(f"a sum is a NumPy array, not a {type(total).__name__}")
        if total.dtype not in (np.uint32, np.uint64) or total.shape != (self.length,):
            raise EncodingError(
                f"sum of dtype {total.dtype} and shape {total.shape} is not uint32 or uint64 of "
                f"shape ({self.length},)"
            )
        if int(total.max()) >> self.ring_bits:
            raise EncodingError(f"sum holds {total.max()}, not in [0, 2^{self.ring_bits})")
        unused_bits = ring.MAX_BITS - self.ring_bits
        sums: dict[str, npt.NDArray[np.int64]] = {}
        start = 0
        for field in self.fields:
            numerators = total[start : start + field.size].astype(np.int64)
            if field.min_numerator < 0:
                numerators = (numerators << unused_bits) >> unused_bits  # extends the sign
            low, high = field.sum_range(self.cohort_size)
            if numerators.min() < low or numerators.max() > high:
                raise EncodingError(
                    f"field {field.name!r}: sums in [{numerators.min()}, {numerators.max()}] leave "
                    f"[{low}, {high}]: some device did not encode by this layout"
                )
            sums[field.name] = numerators
            start += field.size
        return sums

    def to_float(self, name: str, numerators: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Convert decoded sums of field `name` to the field's own unit, float64.

        Raises:
            EncodingError: If no field has that name.
        """
        for field in self.fields:
            if field.name == name:
                return np.asarray(numerators) / (1 << field.resolution_bits)
        raise EncodingError(f"unknown field {name!r}: {[field.name for field in self.fields]}")

    def canonical(self) -> bytes:
        """Describe the layout in bytes: equal bytes if and only if it encodes and sums alike."""
        parts = [_integer(self.cohort_size), _integer(len(self.fields))]
        for field in self.fields:
            name = field.name.encode()
            parts += [_integer(len(name)), name]
            parts += map(
                _integer,
                (field.size, field.min_numerator, field.max_numerator, field.resolution_bits),
            )
        return b"".join(parts)


def _scalar(field: Field, value: object) -> float | None:
    """The number that is all of a field's values; None if they take arrays, or are no numbers."""
    if field.size == 1 and isinstance(value, float | int) and abs(value) <= _MAX_INT64:
        return value
    return None


def _numerator(field: Field, value: float) -> tuple[int, bool]:
    """`_numerators` of one finite number, without arrays; the same result."""
    low, high = field.min_numerator, field.max_numerator
    scaled = float(value) * float(1 << field.resolution_bits)
    if not low - 1 < scaled < high + 1:
        return (low, True) if scaled < low else (high, True)
    nearest = round(scaled)  # ties to even
    return min(max(nearest, low), high), not low <= nearest <= high


def _numerators(
    field: Field, values: npt.ArrayLike | Multiple
) -> tuple[npt.NDArray[np.float64] | npt.NDArray[np.int64], int]:
    """The whole numerators nearest to some values, and how many were clipped."""
    given = values if isinstance(values, Multiple) else Multiple(values, 1)
    array = real_numbers(f"field {field.name!r}", given.numbers, EncodingError)
    factor = given.factor
    if not isinstance(factor, int | np.integer) or not 0 <= factor <= 1 << MAX_NUMERATOR_BITS:
        raise EncodingError(f"field {field.name!r}: factor {factor!r} is no whole number ≤ 2^53")
    if array.shape != (field.size,) and not (array.shape == () and field.size == 1):
        raise EncodingError(f"field {field.name!r}: shape {array.shape} is not ({field.size},)")
    array = array.reshape(field.size)
    ends = float(array.min()), float(array.max())  # NaN if any element is NaN
    if not all(map(math.isfinite, ends)):
        index = int(np.argmin(np.isfinite(array)))
        raise EncodingError(
            f"field {field.name!r}: element {index} is {array[index]}; only finite numbers can be "
            f"summed: leave this device out of the sum"
        )
    low, high = field.min_numerator, field.max_numerator
    # float64 is exact here: in-range numerators have at most 53 bits, scaling is by a power of two,
    # and a product that overflows to infinity is clipped as it should be. The factor is multiplied
    # by that power first; the products are rounded as if they were scaled afterwards.
    scale = float(int(factor) << field.resolution_bits)
    with np.errstate(over="ignore"):
        scaled = np.multiply(array, scale, dtype=np.float64)
    np.rint(scaled, out=scaled)
    num_clipped = 0
    # Scaling and rounding keep the order, so the two ends show if any numerator is out of range.
    least, most = np.rint([end * scale for end in ends])
    if least < low or most > high:
        num_clipped = int(np.count_nonzero((scaled < low) | (scaled > high)))
        np.clip(scaled, low, high, out=scaled)
    return scaled, num_clipped


def _exact(name: str, value: object) -> float:
    """A bound as a number of Python's own, which is neither rounded nor overflows."""
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    raise UsageError(f"{name}={value!r} is not a number")


def _integer(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)
