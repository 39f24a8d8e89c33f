"""A model's arrays as one vector, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.vectors import Vector

Arrays = Mapping[str, npt.NDArray[np.generic]]

_MAX_ARRAYS: Final = 1 << 16
_MAX_SIZE: Final = 1 << 28
_MAX_DIMENSIONS: Final = 32
_FLOATS: Final = ("float16", "float32", "float64")
_OTHERS: Final = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and types of a model's arrays, in order.

    Arrays of floats are trained. All others, such as counters, stay as the server has them.

    Attributes:
        names: one for each array.
        shapes: likewise.
        types: NumPy's names of their types.

    Raises:
        ValueError: these are not as many of each, or no layout of a model.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.shapes) == len(self.types) <= _MAX_ARRAYS:
            raise ValueError(f"{len(self.names)} names, {len(self.shapes)} shapes of arrays")
        if len(set(self.names)) < len(self.names):
            raise ValueError("two arrays have one name")
        if other := set(self.types).difference(_FLOATS, _OTHERS):
            raise ValueError(f"the type {min(other)!r} of an array is not one of a model's")
        if any(len(shape) > _MAX_DIMENSIONS for shape in self.shapes):
            raise ValueError(f"an array has more than {_MAX_DIMENSIONS} dimensions")
        if any(size < 0 for shape in self.shapes for size in shape):
            raise ValueError("the shape of an array has a negative number")
        if (numbers := sum(map(prod, self.shapes))) > _MAX_SIZE:
            raise ValueError(f"{numbers:,} numbers are more than {_MAX_SIZE:,}")

    @classmethod
    def of(cls, arrays: Arrays) -> "Layout":
        """That of some arrays."""
        each = arrays.values()
        shapes, types = (one.shape for one in each), (one.dtype.name for one in each)
        return cls(tuple(arrays), tuple(shapes), tuple(types))

    @property
    def length(self) -> int:
        """Numbers that are trained."""
        return sum(
            prod(shape)
            for shape, kind in zip(self.shapes, self.types, strict=True)
            if kind in _FLOATS
        )

    def to_vector(self, arrays: Arrays) -> Vector:
        """All that is trained, as float32 [length].

        Raises:
            ValueError: the arrays have other names or shapes.
        """
        if tuple(arrays) != self.names:
            raise ValueError(f"arrays {list(arrays)[:3]} in place of {list(self.names)[:3]}")
        parts = [np.zeros(0, np.float32)]
        for shape, kind, array in zip(self.shapes, self.types, arrays.values(), strict=True):
            if array.shape != tuple(shape):
                raise ValueError(f"an array of shape {array.shape} in place of {tuple(shape)}")
            if kind in _FLOATS:
                parts.append(np.asarray(array, np.float32).reshape(-1))
        return np.concatenate(parts)

    def to_arrays(self, vector: Vector, others: Arrays) -> dict[str, npt.NDArray[np.generic]]:
        """The arrays of a vector.

        Args:
            vector: float32 [length].
            others: those that are not trained, by name; zeros where there are none.

        Raises:
            ValueError: the vector is longer or shorter.
        """
        if vector.shape != (self.length,):
            raise ValueError(f"{vector.shape} in place of {(self.length,)} numbers")
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        at = 0
        for name, shape, kind in zip(self.names, self.shapes, self.types, strict=True):
            if kind in _FLOATS:
                size = prod(shape)
                arrays[name] = vector[at : at + size].reshape(shape).astype(kind)
                at += size
            else:
                arrays[name] = others.get(name, np.zeros(shape, kind))
        return arrays
