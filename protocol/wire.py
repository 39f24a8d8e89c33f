"""Canonical bytes of the server's envelopes.

The contract is that of `deltafl.secagg.wire`: decode inverts encode, encode inverts decode, and any
other bytes raise `DecodeError` and nothing else. The session's messages inside are opaque here.

Spec: §12.7.
"""

import struct
from enum import IntEnum
from fractions import Fraction
from typing import Final, NamedTuple

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.labels import VERSION
from deltafl.protocol.levels import MAX_LEVELS, Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Announce, Ask, Envelope, Relay
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.selection import Threshold
from deltafl.protocol.update_noise import UpdateNoise
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import DecodeError
from deltafl.secagg.codec import FieldReader, Value, read_fields, write_fields

MAX_BYTES: Final = 1 << 32
_MAX_FIELDS: Final = 28
_MAX_NAME: Final = 32
_MAX_PIVOTS: Final = 1 << 16
_PIVOTS: Final = 8
_UPDATE_NOISE: Final = 24
_LEVEL: Final = struct.Struct("<IIQ")
_WORD: Final = 2**63 - 1
_DOUBLE: Final = struct.Struct("<d")


class Kind(IntEnum):
    """The kind of an envelope; distinct from the kinds of the session's messages. Spec: §12.7."""

    ANNOUNCE = 0x21
    RELAY = 0x22
    QUERY = 0x23
    THRESHOLD = 0x24
    ANNOUNCE_NOISY = 0x27
    ANNOUNCE_RADIUS = 0x28


_ANNOUNCED: Final = (Kind.ANNOUNCE, Kind.ANNOUNCE_NOISY, Kind.ANNOUNCE_RADIUS)


class _More(NamedTuple):
    """What a round's updates have beyond the usual; see `UpdateParams`."""

    noise: UpdateNoise | None = None
    radius: float | None = None


def encode(envelope: Envelope) -> bytes:
    """The canonical bytes of an envelope."""
    return write_fields(_whole(envelope))


def decode(data: bytes) -> Envelope:
    """Parse exactly one envelope.

    Raises:
        DecodeError: unknown version or kind, short, long, oversized or non-canonical input, or a
            value out of its range.
    """
    if len(data) > MAX_BYTES:
        raise DecodeError(f"{len(data)} bytes: an envelope has at most {MAX_BYTES}")
    read = read_fields(data, most=_MAX_FIELDS)
    fields = FieldReader(read)
    fields.integer(VERSION, VERSION)
    envelope = _from_fields(fields.integer(0, 0x7F), fields)
    fields.finish()
    # Each field has only one encoding, so only its value can differ.
    if _whole(envelope) != read:
        raise DecodeError("the encoding is not canonical")
    return envelope


def _whole(envelope: Envelope) -> list[Value]:
    """All fields of an envelope, including those that every envelope begins with."""
    kind, fields = _to_fields(envelope)
    return [VERSION, kind, *fields]


def _to_fields(envelope: Envelope) -> tuple[int, list[Value]]:
    match envelope:
        case Announce(levels, models, session):
            # The models come last, so the short public fields are at the start of a long message.
            fields = [*_config_fields(levels.common), _pack_others(levels), session, models]
            kind, more = _more_of_updates(levels.common.update)
            return kind, [*more, *fields]
        case Relay(session):
            return Kind.RELAY, [session]
        case Ask(Query(method, pivots), session, opening):
            packed = b"".join(pivot.to_bytes(_PIVOTS, "little") for pivot in pivots)
            return Kind.QUERY, [method.encode(), packed, opening, session]
        case Ask(Threshold(eta, half_width), session, opening):
            return Kind.THRESHOLD, [eta, half_width, opening, session]
    raise TypeError(f"{type(envelope).__name__} is no envelope")


def _from_fields(kind: int, fields: FieldReader) -> Envelope:
    if kind in _ANNOUNCED:
        levels = _read_levels(fields, _read_more_of_updates(kind, fields))
        session, models = _read_bytes(fields), _read_bytes(fields)
        if len(models) % len(levels.rounds):
            raise DecodeError(
                f"models of {len(models)} bytes are not {len(levels.rounds)} of one size"
            )
        return Announce(levels, models, session)
    if kind == Kind.RELAY:
        return Relay(_read_bytes(fields))
    if kind == Kind.QUERY:
        method, packed = _read_name(fields), fields.records(_PIVOTS, most=_MAX_PIVOTS)
        starts = range(0, len(packed), _PIVOTS)
        pivots = tuple(int.from_bytes(packed[i : i + _PIVOTS], "little") for i in starts)
        opening, session = _read_bytes(fields), _read_bytes(fields)
        return Ask(Query(method, pivots), session, opening)
    if kind == Kind.THRESHOLD:
        threshold = Threshold(fields.integer(0, _WORD), fields.integer(0, _WORD))
        opening, session = _read_bytes(fields), _read_bytes(fields)
        return Ask(threshold, session, opening)
    raise DecodeError(f"unknown envelope kind {kind}")


def _config_fields(config: RoundConfig) -> list[Value]:
    search, update = config.search, config.update
    return [
        config.round_index,
        config.cohort_size,
        config.theta.numerator,
        config.theta.denominator,
        config.method.encode(),
        0 if config.num_pivots is None else config.num_pivots,
        search.max_queries,
        search.grid.resolution_bits,
        search.grid.bound,
        update.max_weight,
        config.update_length,
        _DOUBLE.pack(update.clip),
        update.resolution_bits,
        search.weighting.encode(),
        search.epsilon_ticks,
        search.min_cohort,
        *config.noise_numbers,
        config.warm_start_number,
        search.assurance,
        config.min_tail,
    ]


def _more_of_updates(update: UpdateParams) -> tuple[Kind, list[Value]]:
    """The kind of an announcement, and what it says first of updates.

    Spec: §12.16, §12.18.
    """
    if update.noise is not None:
        return Kind.ANNOUNCE_NOISY, [update.noise.packed()]
    if update.radius is not None:
        return Kind.ANNOUNCE_RADIUS, [_DOUBLE.pack(update.radius)]
    return Kind.ANNOUNCE, []


def _read_more_of_updates(kind: int, fields: FieldReader) -> _More:
    if kind == Kind.ANNOUNCE_NOISY:
        return _More(noise=_read_update_noise(fields))
    if kind == Kind.ANNOUNCE_RADIUS:
        (radius,) = _DOUBLE.unpack(fields.binary(_DOUBLE.size))
        return _More(radius=radius)
    return _More()


def _read_config(fields: FieldReader, more: _More) -> RoundConfig:
    round_index, cohort_size = fields.integer(0, _WORD), fields.integer(1, 2**32 - 1)
    numerator, denominator = fields.integer(1, 2**32 - 1), fields.integer(1, 2**32 - 1)
    method, num_pivots = _read_name(fields), fields.integer(0, _MAX_PIVOTS)
    max_queries = fields.integer(0, 2**16)
    resolution_bits, bound = fields.integer(0, 64), fields.integer(1, 2**32 - 1)
    max_weight, length = fields.integer(1, 2**53), fields.integer(1, 2**32 - 1)
    (clip,) = _DOUBLE.unpack(fields.binary(_DOUBLE.size))
    update_resolution_bits = fields.integer(0, 64)
    weighting = _read_weighting(fields)
    epsilon_ticks, min_cohort = fields.integer(0, _WORD), fields.integer(0, 2**32 - 1)
    noise = [fields.integer(0, most) for most in (_WORD, _WORD, 2**32 - 1)]
    warm_start, assurance = _warm_start(fields.integer(0, _WORD)), fields.integer(0, 2)
    min_tail = fields.integer(0, 2**32 - 1)
    try:
        return RoundConfig(
            round_index=round_index,
            cohort_size=cohort_size,
            theta=Fraction(numerator, denominator),
            method=method,
            search=SearchParams(
                max_queries,
                LossGrid(resolution_bits, bound),
                weighting,
                epsilon_ticks,
                min_cohort,
                assurance > 0,
                assurance > 1,
            ),
            update=UpdateParams(clip, update_resolution_bits, max_weight, *more),
            update_length=length,
            warm_start=warm_start,
            num_pivots=num_pivots or None,
            noise=_noise(*noise),
            min_tail=min_tail,
        )
    except ConfigurationError as error:
        raise DecodeError(f"impossible configuration: {error}") from None


def _pack_others(levels: Levels) -> bytes:
    """θ and warm start of each level after the first, whose are in the configuration."""
    return b"".join(
        _LEVEL.pack(config.theta.numerator, config.theta.denominator, config.warm_start_number)
        for config in levels.rounds[1:]
    )


def _read_levels(fields: FieldReader, more: _More) -> Levels:
    common = _read_config(fields, more)
    others = list(_LEVEL.iter_unpack(fields.records(_LEVEL.size, most=MAX_LEVELS - 1)))
    if any(denominator == 0 for _, denominator, _ in others):
        raise DecodeError("the denominator of a conformity level is zero")
    thetas = [common.theta, *(Fraction(top, bottom) for top, bottom, _ in others)]
    starts = [common.warm_start, *(_warm_start(number) for _, _, number in others)]
    try:
        return Levels.at(common, thetas, starts)
    except ConfigurationError as error:
        raise DecodeError(f"impossible levels: {error}") from None


def _warm_start(number: int) -> int | None:
    return None if number == 0 else number - 1


def _noise(numerator: int, denominator: int, num_devices: int) -> Noise | None:
    if numerator == denominator == num_devices == 0:
        return None
    if denominator == 0:
        raise DecodeError("the denominator of the noise's variance is zero")
    return Noise(Fraction(numerator, denominator), num_devices)


def _read_update_noise(fields: FieldReader) -> UpdateNoise:
    packed = fields.binary(_UPDATE_NOISE)
    try:
        return UpdateNoise.unpack(packed)
    except ConfigurationError as error:
        raise DecodeError(f"impossible noise: {error}") from None


def _read_weighting(fields: FieldReader) -> Weighting:
    name = _read_name(fields)
    try:
        return Weighting(name)
    except ValueError:
        raise DecodeError(f"unknown weighting {name!r}") from None


def _read_name(fields: FieldReader) -> str:
    try:
        return fields.records(1, most=_MAX_NAME).decode("ascii")
    except UnicodeDecodeError:
        raise DecodeError("a name is not ASCII") from None


def _read_bytes(fields: FieldReader) -> bytes:
    return fields.records(1, most=MAX_BYTES)
