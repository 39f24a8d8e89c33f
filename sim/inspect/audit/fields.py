"""Every field of every message and record: what it is, and how it is checked.

A field is *random* (nobody can tell it from random bytes), *derived* (it follows from other fields
or secrets, and is computed again where these are known), *public* (all are told it, and it says
nothing about a device), or *private* (it is in the truth file only, and passes no server).

The table drives the tests: whatever `looks` yields is tested for bytes that can be read. A field
without a row fails the test suite.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from deltafl.protocol import messages as of_rounds
from deltafl.secagg import keys, pedersen, shamir
from deltafl.secagg import messages as of_sessions
from deltafl.secagg.codec import Records
from deltafl.sim.inspect.audit.field_tests import Rows
from deltafl.sim.record import transcript, truth

_TAG: Final = keys.OVERHEAD - keys.NONCE_SIZE
_POINT: Final = 31  # bytes of a key or scalar of which every bit is random
_HALF: Final = 32  # a signature is a point and a scalar of so many bytes


class FieldKind(StrEnum):
    """What a field is."""

    RANDOM = "random"
    DERIVED = "derived"
    PUBLIC = "public"
    PRIVATE = "private"


Looks = Callable[[Any], Iterator[tuple[str, Rows]]]
"""From a field's value to the strings of it that should look random, by name."""


def _nothing(_value: object) -> Iterator[tuple[str, Rows]]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        kind: What it is.
        check: How it is checked, a phrase.
        looks: What of it should look random.
    """

    kind: FieldKind
    check: str
    looks: Looks = _nothing


def _rows(strings: tuple[bytes, ...] | list[bytes], size: int) -> Rows:
    if not strings:
        return np.zeros((0, size), dtype=np.uint8)
    return np.frombuffer(b"".join(strings), dtype=np.uint8).reshape(len(strings), -1)[:, :size]


def _one(name: str, size: int) -> Looks:
    def looks(value: bytes) -> Iterator[tuple[str, Rows]]:
        yield name, _rows([value], size)

    return looks


def _many(name: str, size: int) -> Looks:
    def looks(values: tuple[bytes, ...]) -> Iterator[tuple[str, Rows]]:
        yield name, _rows(values, size)

    return looks


def _signature(name: str) -> Looks:
    def looks(value: bytes) -> Iterator[tuple[str, Rows]]:
        if value:
            yield f"first halves of {name}", _rows([value[:_HALF]], _HALF)
            yield f"second halves of {name}", _rows([value[_HALF:]], _POINT)

    return looks


def _boxes(boxes: Mapping[int, bytes]) -> Iterator[tuple[str, Rows]]:
    size = len(next(iter(boxes.values()), b""))
    if size <= keys.OVERHEAD:
        return
    rows = Records.of(boxes, size).rows
    yield "nonces of boxes", rows[:, : keys.NONCE_SIZE]
    yield "contents of boxes", rows[:, keys.NONCE_SIZE : -_TAG].reshape(-1, shamir.SHARE_SIZE)
    yield "tags of boxes", rows[:, -_TAG:]


def _committed(value: bytes) -> Iterator[tuple[str, Rows]]:
    if value:
        size = pedersen.COMMITMENT_SIZE
        yield "commitments to answers", _rows([value[:size]], size)
        yield from _signature("signatures of commitments")(value[size:])


def _proof(value: bytes) -> Iterator[tuple[str, Rows]]:
    if value:
        pieces = [value[i : i + _HALF] for i in range(0, len(value), _HALF)]
        yield "points and numbers of proofs", _rows(pieces, _POINT)


_RELAYED: Final = Field(FieldKind.DERIVED, "must be what its device sent")
_LISTED: Final = Field(FieldKind.PUBLIC, "the same for all; must follow from who answered")
_SLOT: Final = Field(FieldKind.PUBLIC, "in turn, and one of the session's")
_QUORUM: Final = Field(
    FieldKind.DERIVED, "enough of them, each verified, and each the one that its device sent"
)
_PLACE: Final = Field(FieldKind.PUBLIC, "where the record is in the file")
_ROUND: Final = Field(FieldKind.PUBLIC, "rounds in order, each ended once")

FIELDS: Final[Mapping[type, Mapping[str, Field]]] = {
    of_sessions.SessionOpen: {
        "params": Field(FieldKind.PUBLIC, "the same for all, used once, held to the policy"),
    },
    of_sessions.AdvertiseKeys: {
        "sealing_key": Field(
            FieldKind.RANDOM,
            "new, a multiple of the base point, of no guessable secret; derived again from its "
            "secret",
            _one("sealing keys", _POINT),
        ),
        "mask_keys": Field(
            FieldKind.RANDOM,
            "new, multiples of the base point, of no guessable secret; derived again from their "
            "secrets",
            _many("mask keys", _POINT),
        ),
        "credential": Field(FieldKind.DERIVED, "see `Credential`"),
    },
    of_sessions.Credential: {
        "identity": Field(
            FieldKind.RANDOM,
            "one for each device, always the same, a multiple of the base point, of no guessable "
            "secret",
            _one("identities", _POINT),
        ),
        "signature": Field(
            FieldKind.DERIVED,
            "verified; of no guessable nonce",
            _signature("signatures of advertisements"),
        ),
    },
    of_sessions.RosterMessage: {"roster": _LISTED, "keys": _RELAYED},
    of_sessions.ShareKeys: {
        "commitments": Field(
            FieldKind.DERIVED,
            "computed again from every seed that is known",
            _many("commitments to seeds", _HALF),
        ),
        "boxes": Field(FieldKind.RANDOM, "opened with recorded secrets", _boxes),
    },
    of_sessions.ShareDelivery: {"members": _LISTED, "boxes": _RELAYED},
    of_sessions.ShareReceipt: {
        "refused": Field(FieldKind.PUBLIC, "ascending positions; taken out of what is asked for"),
    },
    of_sessions.OpenSlot: {"slot": _SLOT, "members": _LISTED, "signatures": _QUORUM},
    of_sessions.MaskedInput: {
        "slot": _SLOT,
        "packed": Field(
            FieldKind.RANDOM,
            "uniform with and without its self mask, alone and in groups; of a device that was "
            "called lost, also without all masks but its self mask; computed again from recorded "
            "secrets",
        ),
        "committed": Field(
            FieldKind.RANDOM,
            "in the group of prime order; verified, with no guessable nonce; opens to the sum; its "
            "blinding is no guess, where it is known",
            _committed,
        ),
        "proof": Field(FieldKind.RANDOM, "holds, of what was committed to", _proof),
    },
    of_sessions.ConsistencyCheck: {"slot": _SLOT, "survivors": _LISTED},
    of_sessions.ConsistencySignature: {
        "slot": _SLOT,
        "signature": Field(
            FieldKind.DERIVED,
            "verified; of no guessable nonce",
            _signature("signatures of lists"),
        ),
    },
    of_sessions.UnmaskRequest: {"slot": _SLOT, "survivors": _LISTED, "signatures": _QUORUM},
    of_sessions.UnmaskShares: {
        "slot": _SLOT,
        "positions": Field(FieldKind.PUBLIC, "the devices that were asked about"),
        "kinds": Field(FieldKind.PUBLIC, "one kind for each device"),
        "shares": Field(
            FieldKind.DERIVED, "on polynomials of full degree with uniform coefficients"
        ),
    },
    of_sessions.SumOpening: {
        "slot": _SLOT,
        "packed": Field(
            FieldKind.DERIVED,
            "the sum that was computed again; the blindings in it look like a sum of random ones",
        ),
        "committed": _RELAYED,
    },
    of_rounds.Announce: {
        "levels": Field(FieldKind.PUBLIC, "the same for all; bound to the session"),
        "models": Field(FieldKind.PUBLIC, "the same for all; follow from the round before"),
        "session": Field(FieldKind.PUBLIC, "decoded"),
    },
    of_rounds.Relay: {"session": Field(FieldKind.PUBLIC, "decoded")},
    of_rounds.Ask: {
        "question": Field(FieldKind.PUBLIC, "the same for all; follows from the sums before"),
        "session": Field(FieldKind.PUBLIC, "decoded"),
        "opening": Field(FieldKind.DERIVED, "the proof of the sum before, examined"),
    },
    transcript.Opening: {
        "number": _PLACE,
        "run_id": Field(FieldKind.PUBLIC, "names the run; the truth file has the same"),
        "mode": Field(FieldKind.PUBLIC, "one of two"),
    },
    transcript.Message: {
        "number": _PLACE,
        "round": _ROUND,
        "sent": Field(FieldKind.PUBLIC, "of a kind that this party sends"),
        "peer": Field(FieldKind.PUBLIC, "in the roster"),
        "size": Field(FieldKind.PUBLIC, "the same for all devices of a slot"),
        "sha256": Field(FieldKind.DERIVED, "computed again where the message is whole"),
        "head": Field(FieldKind.PUBLIC, "decoded: see the fields of the messages"),
        "repeats": Field(FieldKind.PUBLIC, "an earlier record of the round"),
        "trip": Field(FieldKind.PUBLIC, "counted; not compared"),
    },
    transcript.Sum: {
        "number": _PLACE,
        "round": _ROUND,
        "slot": _SLOT,
        "length": Field(FieldKind.PUBLIC, "that of the slot"),
        "sha256": Field(FieldKind.DERIVED, "computed again from the messages"),
        "contributors": Field(FieldKind.DERIVED, "those whose vectors are in the sum"),
        "words": Field(FieldKind.DERIVED, "computed again from the messages; in their range"),
    },
    transcript.RoundEnd: {
        "number": _PLACE,
        "round": _ROUND,
        "aborted": Field(FieldKind.PUBLIC, "agrees with the round, played again"),
        "truth": Field(FieldKind.PUBLIC, "a digest of the truth; not compared"),
    },
    transcript.Closing: {
        "number": _PLACE,
        "rounds": Field(FieldKind.DERIVED, "counted"),
    },
    transcript.Closed: {"number": _PLACE, "round": _ROUND},
    transcript.Begin: {
        "number": _PLACE,
        "round": _ROUND,
        "cohort": Field(FieldKind.DERIVED, "that of the run's seed; nobody else is told"),
    },
    transcript.Resumed: {
        "number": _PLACE,
        "kept": Field(FieldKind.PUBLIC, "a round whose state can have been kept"),
    },
    truth.DeviceTruth: {
        "round": _ROUND,
        "device": Field(FieldKind.PUBLIC, "in the roster"),
        "loss": Field(FieldKind.PRIVATE, "searched for in every field that should look random"),
        "weight": Field(FieldKind.PRIVATE, "searched for in every field that should look random"),
        "passed": Field(
            FieldKind.PRIVATE, "follows from loss and threshold; compared with metadata"
        ),
        "update": Field(FieldKind.PRIVATE, "searched for in every field that should look random"),
    },
    truth.DeviceSeed: {
        "round": _ROUND,
        "device": Field(FieldKind.PUBLIC, "in the roster"),
        "tag": Field(FieldKind.PUBLIC, "of a session of the round"),
        "seed": Field(FieldKind.PRIVATE, "the device is played again with it"),
        "identity": Field(FieldKind.PRIVATE, "the device is played again with it"),
    },
}
"""By class, the rows of its fields by name, in their order."""


def random_strings(message: object) -> Iterator[tuple[str, Rows]]:
    """What of a message should look random: byte strings, by name.

    Args:
        message: Of a class of `FIELDS`; of any other, there is nothing.
    """
    for name, field in FIELDS.get(type(message), {}).items():
        value = getattr(message, name)
        yield from field.looks(value)
        if is_dataclass(value) and type(value) in FIELDS:
            yield from random_strings(value)
