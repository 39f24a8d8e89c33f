"""What messages of Flower's carry: who takes part in a round, and how.

A message hands over all that a node needs to take part in a round (`Handover`). A model's arrays
are one vector in the round (`Layout`).

The app's own functions may depend on all that a node is told beside the frames (`Told`): a server
that told one node another learning rate than the others would have that node's update. So a digest
of it is in the round's task (`deltafl.sim.net.frames.Task.beside`), on which the parties of a
session agree, and the app is handed nothing else of a message.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import prod
from typing import Any, Final, Protocol, cast

import msgpack
import numpy as np
import numpy.typing as npt

from deltafl.fl.read.strict_json import parse_json
from deltafl.fl.vectors import Vector
from deltafl.secagg import ClientId
from deltafl.secagg.identity import SEED_SIZE
from deltafl.sim.errors import ConfigError

Arrays = Mapping[str, npt.NDArray[np.generic]]

_MAX_ARRAYS: Final = 1 << 16
_MAX_SIZE: Final = 1 << 28
_MAX_DIMENSIONS: Final = 32
_STATISTICS: Final = re.compile(  # of torch and Keras; Paddle; Flax
    r"(running|moving)_(mean|var|variance|std)(:\d+)?$|(^|[._/])_(mean|variance)$|(^|[./])batch_stats[./]"
)
_FLOATS: Final = ("float16", "float32", "float64")
_OTHERS: Final = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and types of a model's arrays, in order.

    Arrays of floats are trained. All others, such as counters, stay as the server has them. The
    running statistics of batch norm are refused, by the names that torch, Keras, Paddle and Flax
    give them; arrays of a list have none (`has_names`).

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
        if statistics := [name for name in self.names if _STATISTICS.search(name)]:
            raise ValueError(
                f"the array {statistics[0]!r} is a running statistic, and a step could make a "
                "variance negative: take GroupNorm (deltafl.with_group_norm), or leave it out"
            )
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
    def has_names(self) -> bool:
        """Whether names say what the arrays are. Flower numbers those of a list."""
        return not all(map(str.isdecimal, self.names))

    @property
    def length(self) -> int:
        """Numbers that are trained."""
        each = zip(self.shapes, self.types, strict=True)
        return sum(prod(shape) for shape, kind in each if kind in _FLOATS)

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
        for name, shape, kind in zip(self.names, self.shapes, self.types, strict=True):
            if kind in _FLOATS:
                own, vector = np.split(vector, [prod(shape)])
                arrays[name] = own.reshape(shape).astype(kind)
            else:
                arrays[name] = others.get(name, np.zeros(shape, kind))
        return arrays


RECORD: Final = "deltafl"
"""The name of the record in a message."""

_MAX_TEXT: Final = 1 << 22
_ADDRESS: Final = re.compile(r"wss?://[^/?#@\s]{1,300}")
_ID_LIMIT: Final = 2**32


class Record(Protocol):
    """A ConfigRecord, or anything else with names and values."""

    def __getitem__(self, name: str, /) -> object:
        """The value of a name."""


@dataclass(frozen=True, slots=True)
class Handover:
    """How a device joins a round.

    Attributes:
        url: of the server's transport.
        authority: certificates (PEM) that vouch for it; empty without TLS.
        client: the device's id in the round.
        token: 32 secret bytes, for this device and round: the seed of the identity that it has in
            it. Empty where the device is to have its own identity, under the id `client`.
        layout: of the model.
    """

    url: str
    authority: str
    client: ClientId
    token: bytes = field(repr=False)
    layout: Layout

    def to_record(self) -> dict[str, str | int | bytes]:
        """The values of a ConfigRecord."""
        layout = json.dumps([self.layout.names, self.layout.shapes, self.layout.types])
        plain = {name: getattr(self, name) for name in ("url", "authority", "token")}
        return {**plain, "client": int(self.client), "layout": layout}

    @classmethod
    def of_record(cls, record: Record) -> "Handover":
        """Read a ConfigRecord.

        Raises:
            ValueError: it is no handover.
        """
        try:
            url, authority, client = record["url"], record["authority"], record["client"]
            token, layout = record["token"], record["layout"]
        except KeyError as error:
            raise ValueError(f"the record {RECORD!r} has no {error}") from None
        texts = (url, authority, layout)
        if not all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in texts):
            raise ValueError(f"the record {RECORD!r} lacks a text, or has a longer one than any")
        if not (isinstance(client, int) and 0 <= client < _ID_LIMIT):
            raise ValueError(f"the record {RECORD!r} has no id of a device")
        if not _ADDRESS.fullmatch(str(url)):  # no path: a node asks nothing of others
            raise ValueError(f"the record {RECORD!r} has no address of a server")
        if not (isinstance(token, bytes) and len(token) in (0, SEED_SIZE)):
            raise ValueError(f"the record {RECORD!r} has a token that is not {SEED_SIZE} bytes")
        return cls(str(url), str(authority), ClientId(client), token, _layout(str(layout)))


def _layout(text: str) -> Layout:
    try:
        names, shapes, types = cast("list[Any]", parse_json(text.encode()))
        if not all(isinstance(one, list) for one in (names, shapes, types, *shapes)):
            raise ValueError("it is not made of lists")
        if not all(isinstance(size, int) for shape in shapes for size in shape):
            raise ValueError("a size is no whole number")
        if not all(isinstance(one, str) for one in (*names, *types)):
            raise ValueError("a name is no text")
        return Layout(tuple(names), tuple(map(tuple, shapes)), tuple(types))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"the record {RECORD!r} has no layout of a model: {error}") from None


_LABEL: Final = b"deltafl/net/v1/what nodes are told"


@dataclass(frozen=True, slots=True)
class Told:
    """What the app is handed beside the model.

    Attributes:
        layout: of the model.
        kind: of the message.
        group: of the message.
        config: the message's configuration.
        run: the run's configuration, where nodes have identities of their own; else nothing, for
            then the server can make up the other nodes anyway.
    """

    layout: Layout
    kind: str
    group: str
    config: Mapping[str, Any]
    run: Mapping[str, Any] = field(default_factory=dict)

    def digest(self) -> bytes:
        """32 bytes; another digest for anything else that is told.

        Raises:
            ConfigError: a value is none of a configuration.
        """
        layout = [self.layout.names, self.layout.shapes, self.layout.types]
        tables = [sorted(table.items()) for table in (self.config, self.run)]
        try:
            # of equal numbers of different types, each has an encoding of its own
            packed = msgpack.packb([layout, self.kind, self.group, tables])
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"the configuration of the round has no digest: {error}") from None
        return sha256(_LABEL + packed).digest()
