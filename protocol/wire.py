"""Canonical bytes of the server's envelopes.

The contract is that of `deltafl.secagg.wire`: decode inverts encode, encode inverts decode, and any
other bytes raise `DecodeError` and nothing else. The session's messages inside are opaque here.

Spec: §12.7.
"""

import struct
from enum import IntEnum
from fractions import Fraction
from typing import Final

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.labels import VERSION
from deltafl.protocol.levels import MAX_LEVELS, Levels
from deltafl.protocol.messages import Announce, Ask, Envelope, Relay
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import DecodeError
from deltafl.secagg.codec import FieldReader, Value, read_fields, write_fields

MAX_BYTES: Final = 1 << 32
_MAX_FIELDS: Final = 29
_MAX_NAME: Final = 32
_MAX_PIVOTS: Final = 1 << 16
_PIVOTS: Final = 8
_LEVEL: Final = struct.Struct("<IIQ")
_WORD: Final = 2**63 - 1


class Kind(IntEnum):
    """The kind of an envelope; distinct from the kinds of the session's messages. Spec: §12.7."""

    ANNOUNCE = 0x21
    RELAY = 0x22
    QUERY = 0x23
    THRESHOLD = 0x24


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
            described = levels.common.fields()
            return Kind.ANNOUNCE, [*described, _pack_others(levels), session, models]
        case Relay(session):
            return Kind.RELAY, [session]
        case Ask(Query(method, pivots), session, opening):
            packed = b"".join(pivot.to_bytes(_PIVOTS, "little") for pivot in pivots)
            return Kind.QUERY, [method.encode(), packed, opening, session]
        case Ask(Threshold(eta, half_width), session, opening):
            return Kind.THRESHOLD, [eta, half_width, opening, session]
    raise TypeError(f"{type(envelope).__name__} is no envelope")


def _from_fields(kind: int, fields: FieldReader) -> Envelope:
    if kind == Kind.ANNOUNCE:
        levels = _read_levels(fields)
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


def _pack_others(levels: Levels) -> bytes:
    """θ and warm start of each level after the first, whose are in the configuration."""
    return b"".join(
        _LEVEL.pack(
            config.theta.numerator,
            config.theta.denominator,
            0 if config.warm_start is None else config.warm_start + 1,
        )
        for config in levels.rounds[1:]
    )


def _read_levels(fields: FieldReader) -> Levels:
    common = RoundConfig.read(fields)
    others = list(_LEVEL.iter_unpack(fields.records(_LEVEL.size, most=MAX_LEVELS - 1)))
    if any(denominator == 0 for _, denominator, _ in others):
        raise DecodeError("the denominator of a conformity level is zero")
    thetas = [common.theta, *(Fraction(top, bottom) for top, bottom, _ in others)]
    starts = [common.warm_start, *(number - 1 if number else None for _, _, number in others)]
    try:
        return Levels.at(common, thetas, starts)
    except ConfigurationError as error:
        raise DecodeError(f"impossible levels: {error}") from None


def _read_name(fields: FieldReader) -> str:
    try:
        return fields.records(1, most=_MAX_NAME).decode("ascii")
    except UnicodeDecodeError:
        raise DecodeError("a name is not ASCII") from None


def _read_bytes(fields: FieldReader) -> bytes:
    return fields.records(1, most=MAX_BYTES)
