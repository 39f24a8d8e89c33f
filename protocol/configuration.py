"""The public configuration of a round, which server and devices agree on before it starts."""

import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from fractions import Fraction
from typing import Final, Generic, NamedTuple, Never, TypeVar

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.labels import Label
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile import ballots
from deltafl.protocol.quantile.registry import quantile_method
from deltafl.protocol.quantile.search import (
    QuantileMethod,
    Query,
    Search,
    SearchConfig,
    SearchParams,
)
from deltafl.protocol.radius import Clipped, check_radius
from deltafl.protocol.selection import Threshold
from deltafl.protocol.update_noise import NoisyUpdates, UpdateNoise
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import DecodeError, SlotSpec, UsageError
from deltafl.secagg.codec import FieldReader, Value, write_fields
from deltafl.secagg.labels import digest
from deltafl.secagg.layout import MAX_NUMERATOR_BITS, Field, Layout
from deltafl.secagg.params import MAX_LENGTH

QUANTILE_SLOT: Final = "quantile"
UPDATE_SLOT: Final = "update"
_MAX_PIVOTS: Final = 1 << 16
_MAX_NAME: Final = 32
_HALF: Final = 2**32 - 1
_WORD: Final = 2**63 - 1
_DOUBLE: Final = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class Exact:
    """Updates are summed exactly, however long they are."""


_Aggregation = Exact | Clipped | UpdateNoise


@dataclass(frozen=True, slots=True)
class UpdateParams:
    """How the numbers of an update become integers; the same in all rounds of a run.

    Spec: §12.1.

    Attributes:
        clip: Largest |Δ| of an element; larger ones are clipped to it. It must be well above the
            resolution, or updates round to zero.
        resolution_bits: n_k·Δ_k is summed in multiples of 2^-resolution_bits.
        max_weight: Largest n_k; larger ones are clipped to it.
        aggregation: How updates are summed: exactly, scaled down to a radius, or under noise, with
            which all weigh the same.

    Raises:
        ConfigurationError: the clip is not a positive number, the resolution is not from 0 to 53
            bits, or there is noise and weights differ.
    """

    clip: float = 2.0
    resolution_bits: int = 10
    max_weight: int = 8192
    aggregation: _Aggregation = Exact()

    def __post_init__(self) -> None:
        if not 0 < self.clip < float("inf"):
            raise ConfigurationError(f"update_clip={self.clip} is not a positive number")
        if not 0 <= self.resolution_bits <= MAX_NUMERATOR_BITS:
            raise ConfigurationError(
                f"update_resolution_bits={self.resolution_bits} is not in [0, {MAX_NUMERATOR_BITS}]"
            )
        if isinstance(self.aggregation, UpdateNoise) and self.max_weight != 1:
            raise ConfigurationError(
                f"max_weight={self.max_weight} with noise in the sum of updates: noise hides a "
                "device that weighs 1, so set it to 1"
            )


@dataclass(frozen=True, slots=True)
class RoundConfig:
    """One round of Algorithm 3: everything that all parties must agree on.

    Spec: §12.1.

    Attributes:
        round_index: Number of the round in the run; a session's masks are bound to it.
        cohort_size: Devices invited, m.
        theta: Conformity level θ in (0, 1], exact; 1 asks no queries and keeps all devices
            (FedAvg).
        method: Name of the quantile method.
        search: Parameters of the search; the session keeps one slot per query, none for θ = 1.
        update: How the update becomes integers.
        update_length: Parameters of the model, d.
        warm_start: Tick near which η is expected, such as the last round's; None for none.
        num_pivots: Pivots of a query of `histogram` or `noisy`; None for their defaults and for
            other methods.
        noise: Noise of the search's sums, for `noisy`; None for other methods.
        min_tail: Fewest devices of a tail, those that may collude among them, in [0, m]: the
            threshold keeps as many, and the round ends if fewer may be left.
        quantile: The quantile method.
        search_layout: Layout of a contribution to the search.
        update_layout: Layout of a contribution to the update.

    Raises:
        ConfigurationError: a value is out of range, or a sum would not fit the ring.
    """

    round_index: int
    cohort_size: int
    theta: Fraction
    method: str
    search: SearchParams
    update: UpdateParams
    update_length: int
    warm_start: int | None = None
    num_pivots: int | None = None
    noise: Noise | None = None
    min_tail: int = 0
    quantile: QuantileMethod = field(init=False, repr=False, compare=False)
    search_layout: Layout = field(init=False, repr=False, compare=False)
    update_layout: Layout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.round_index <= _WORD:
            raise ConfigurationError(f"round_index={self.round_index} is not in [0, 2^63)")
        if max(self.theta.numerator, self.theta.denominator) > _HALF:
            raise ConfigurationError(f"theta={self.theta} has parts of more than 32 bits")
        if self.update_length < 1:
            raise ConfigurationError(f"update_length={self.update_length} is less than 1")
        method = quantile_method(self.method, num_pivots=self.num_pivots, noise=self.noise)
        object.__setattr__(self, "quantile", method)
        if self.search.proved and self.method not in ballots.METHODS:
            raise ConfigurationError(
                f"method={self.method!r} has no proved votes: take {' or '.join(ballots.METHODS)}"
            )
        try:
            object.__setattr__(self, "search_layout", self._lay_out_search())
            object.__setattr__(self, "update_layout", self._lay_out_update())
        except UsageError as error:  # a sum that fits no ring
            raise ConfigurationError(str(error)) from None
        match self.update.aggregation:
            case Clipped(radius):
                check_radius(radius, self.update_length, self.update.resolution_bits)
            case UpdateNoise(num_devices=number) if number > self.cohort_size:
                raise ConfigurationError(
                    f"noise of updates from {number} devices is from more than cohort_size="
                    f"{self.cohort_size}"
                )
        for layout in (self.search_layout, self.update_layout):
            if layout.length > MAX_LENGTH:
                raise ConfigurationError(
                    f"{layout.length} numbers from {layout.fields[0].name!r} on are more than the "
                    f"{MAX_LENGTH} of a slot: lower update_length or num_pivots"
                )

    @property
    def num_query_slots(self) -> int:
        """Number of slots that the session keeps for the search."""
        return self.search.max_queries if self.selects else 0

    @property
    def selects(self) -> bool:
        """Whether a threshold is to leave devices out: θ < 1, and enough devices to search over."""
        return self.theta < 1 and not self.is_too_small

    @property
    def is_too_small(self) -> bool:
        """Whether even the whole invited cohort is too small to search over."""
        return self.cohort_size < self.search.min_cohort

    @property
    def update_slot(self) -> int:
        """The slot in which the update is summed, the last of the round."""
        return self.num_query_slots

    @property
    def num_slots(self) -> int:
        """Number of slots of the round: the queries' and the update's."""
        return self.update_slot + 1

    @property
    def search_config(self) -> SearchConfig:
        """The search's configuration."""
        max_weight, cohort_size = self.update.max_weight, self.cohort_size
        return SearchConfig(
            self.theta, self.search, max_weight, cohort_size, self.warm_start, self.min_tail
        )

    def start_search(self) -> Search:
        """The search before its first query."""
        return self.quantile.start(self.search_config)

    def slots(self) -> tuple[SlotSpec, ...]:
        """The slots of the round's session. Spec: §12.3.

        The first query sets the cohort of the search. The slots of the other queries are whole
        (all-or-nothing), because the difference of two sums exposes a device that is in one and not
        in the next. If a search needs a minimum number of devices, the first slot is whole too;
        otherwise its sum could be over fewer.
        """
        first, later, update = (
            SlotSpec(label, layout.length, layout.ring_bits, whole, verified, proof)
            for label, layout, whole, verified, proof in (
                (
                    QUANTILE_SLOT,
                    self.search_layout,
                    self.search.min_cohort > 0,
                    self.search.verified,
                    self._proof_size(is_first=True),
                ),
                (
                    QUANTILE_SLOT,
                    self.search_layout,
                    True,
                    self.search.verified,
                    self._proof_size(is_first=False),
                ),
                (UPDATE_SLOT, self.update_layout, False, False, 0),
            )
        )
        queries = (first, *(later,) * (self.num_query_slots - 1)) if self.num_query_slots else ()
        return (*queries, update)

    @property
    def noisy_updates(self) -> NoisyUpdates | None:
        """How updates are summed under noise; None where sums are exact. Spec: §12.16."""
        noise = self.update.aggregation
        if not isinstance(noise, UpdateNoise):
            return None
        seed = digest(Label.ROTATION, self.canonical())
        return NoisyUpdates(noise, self.update_length, self.cohort_size, seed)

    def fields(self) -> list[Value]:
        """The configuration as fields of a message. Spec: §12.1."""
        return _ROUND.write(self)

    @classmethod
    def read(cls, fields: FieldReader) -> "RoundConfig":
        """Read what `fields` gives.

        Raises:
            DecodeError: a field is outside its range, or there is no such round.
        """
        try:
            return _ROUND.read(fields)
        except ConfigurationError as error:
            raise DecodeError(f"impossible configuration: {error}") from None

    def canonical(self) -> bytes:
        """The fields, encoded: different configurations give different bytes. Spec: §12.6."""
        return write_fields(self.fields())

    def _proof_size(self, *, is_first: bool) -> int:
        """Bytes of the proof that an answer to a query is valid; 0 if there is none."""
        if not self.search.proved:
            return 0
        return ballots.proof_size(self.search_config, self.quantile.num_pivots, is_first=is_first)

    def _lay_out_search(self) -> Layout:
        """The fields of an answer; in a verified search, in a ring in which devices can check sums.

        Spec: §12.3.
        """
        layout = self.quantile.layout(self.search_config)
        if not self.search.verified:
            return layout
        # Every field is read as two's complement.
        return replace(layout, min_ring_bits=layout.ring_bits + 1)

    def _lay_out_update(self) -> Layout:
        """The fields of the update; the loss gets all the resolution that the ring has room for.

        Spec: §12.3.
        """
        aggregation = self.update.aggregation
        if isinstance(aggregation, UpdateNoise):
            return aggregation.layout(self.update_length, self.cohort_size)
        heaviest, grid = self.update.max_weight, self.search.grid
        bound, bits = self.update.clip * heaviest, self.update.resolution_bits
        update = Field("update", self.update_length, -bound, bound, bits)
        coarse = Field("weighted_loss", 1, 0, heaviest * grid.bound, 0)
        # An unsigned field cannot use the sign bit, or more digits than a float64 has.
        spare = min(update.ring_bits(self.cohort_size), 63) - coarse.ring_bits(self.cohort_size)
        exact = MAX_NUMERATOR_BITS - coarse.max_numerator.bit_length()
        loss_bits = min(max(spare, 0), exact, grid.resolution_bits)
        fields: tuple[Field, ...] = (
            update,
            Field("weight", 1, 0, heaviest, 0),
            Field("weighted_loss", 1, 0, heaviest * grid.bound, loss_bits),
            Field("count", 1, 0, 1, 0),
            Field("clipped", 1, 0, self.update_length + 2, 0),
        )
        if isinstance(aggregation, Clipped):
            fields = (*fields, Field("longer", 1, 0, 1, 0))
        return Layout(fields, self.cohort_size)


def binding(context: bytes, question: Query | Threshold) -> bytes:
    """The value that a slot's masks are bound to: the round's context and the public question.

    Spec: §12.6.

    Args:
        context: `Levels.context` of the configurations and models that this party has seen.
        question: The query or threshold that this party has seen.
    """
    return digest(Label.BINDING, context, type(question).__name__.encode(), question.canonical())


# How a configuration is announced and described: the fields in their order, and their ranges.

_T = TypeVar("_T")
_Given = TypeVar("_Given", contravariant=True)
_Taken = TypeVar("_Taken", covariant=True)


class _Codec(NamedTuple, Generic[_Given, _Taken]):
    """How a value is written as fields, and read from fields that anybody may have sent."""

    write: Callable[[_Given], list[Value]]
    read: Callable[[FieldReader], _Taken]


def _integer(low: int, high: int) -> _Codec[int, int]:
    return _Codec(lambda number: [number], lambda fields: fields.integer(low, high))


def _record(make: type[_T], **parts: _Codec[Never, object]) -> _Codec[_T, _T]:
    """The fields of a value's parts, one part after the other."""

    def read(fields: FieldReader) -> _T:
        values = {name: part.read(fields) for name, part in parts.items()}
        return make(**values)

    return _Codec(
        lambda value: [x for name in parts for x in parts[name].write(getattr(value, name))], read
    )


def _read_name(fields: FieldReader) -> str:
    try:
        return fields.records(1, most=_MAX_NAME).decode("ascii")
    except UnicodeDecodeError:
        raise DecodeError("a name is not ASCII") from None


def _read_weighting(fields: FieldReader) -> Weighting:
    name = _read_name(fields)
    if name not in tuple(Weighting):
        raise DecodeError(f"unknown weighting {name!r}")
    return Weighting(name)


def _write_double(number: float) -> list[Value]:
    return [_DOUBLE.pack(number)]


def _read_double(fields: FieldReader) -> float:
    (number,) = _DOUBLE.unpack(fields.binary(_DOUBLE.size))
    return float(number)


def _write_warm_start(tick: int | None) -> list[Value]:
    return [0 if tick is None else tick + 1]


def _read_warm_start(fields: FieldReader) -> int | None:
    number = fields.integer(0, _WORD)
    return number - 1 if number else None


def _write_pivots(num_pivots: int | None) -> list[Value]:
    return [num_pivots or 0]


def _write_noise(noise: Noise | None) -> list[Value]:
    if noise is None:
        return [0, 0, 0]
    return [noise.variance.numerator, noise.variance.denominator, noise.num_devices]


def _read_noise(fields: FieldReader) -> Noise | None:
    numerator, denominator = fields.integer(0, _WORD), fields.integer(0, _WORD)
    num_devices = fields.integer(0, _HALF)
    if numerator == denominator == num_devices == 0:
        return None
    if denominator == 0:
        raise DecodeError("the denominator of the noise's variance is zero")
    return Noise(Fraction(numerator, denominator), num_devices)


_AGGREGATIONS: Final[tuple[tuple[type[_Aggregation], struct.Struct], ...]] = (
    (Exact, struct.Struct("<")),
    (Clipped, _DOUBLE),
    (UpdateNoise, struct.Struct("<dQQ")),
)
"""By tag: what updates may be summed by, and how its attributes are packed."""


def _write_aggregation(aggregation: _Aggregation) -> list[Value]:
    tag = [make for make, _ in _AGGREGATIONS].index(type(aggregation))
    return [tag, _AGGREGATIONS[tag][1].pack(*astuple(aggregation))]


def _read_aggregation(fields: FieldReader) -> _Aggregation:
    make, packed = _AGGREGATIONS[fields.integer(0, len(_AGGREGATIONS) - 1)]
    return make(*packed.unpack(fields.binary(packed.size)))


def _write_name(name: str) -> list[Value]:
    return [name.encode()]


def _read_search(fields: FieldReader) -> SearchParams:
    search, assurance = _SEARCH.read(fields), fields.integer(0, 2)
    return replace(search, verified=assurance > 0, proved=assurance > 1)


_THETA: Final = _record(Fraction, numerator=_integer(1, _HALF), denominator=_integer(1, _HALF))
_GRID: Final = _record(LossGrid, resolution_bits=_integer(0, 64), bound=_integer(1, _HALF))
_SEARCH: Final = _record(
    SearchParams,
    max_queries=_integer(0, 1 << 16),
    grid=_GRID,
    weighting=_Codec(_write_name, _read_weighting),
    epsilon_ticks=_integer(0, _WORD),
    min_cohort=_integer(0, _HALF),
)
_UPDATE: Final = _record(
    UpdateParams,
    clip=_Codec(_write_double, _read_double),
    resolution_bits=_integer(0, 64),
    max_weight=_integer(1, 1 << MAX_NUMERATOR_BITS),
    aggregation=_Codec(_write_aggregation, _read_aggregation),
)
_ROUND: Final = _record(
    RoundConfig,
    round_index=_integer(0, _WORD),
    cohort_size=_integer(1, _HALF),
    theta=_THETA,
    method=_Codec(_write_name, _read_name),
    search=_Codec(lambda search: [*_SEARCH.write(search), search.assurance], _read_search),
    update=_UPDATE,
    update_length=_integer(1, _HALF),
    warm_start=_Codec(_write_warm_start, _read_warm_start),
    num_pivots=_Codec(_write_pivots, lambda fields: fields.integer(0, _MAX_PIVOTS) or None),
    noise=_Codec(_write_noise, _read_noise),
    min_tail=_integer(0, _HALF),
)
