"""What passes on a connection, byte for byte.

A frame is one binary message of the WebSocket: a msgpack array (docs/spec.md, 7.1) of the
transport's version, the frame's kind and its fields. There is one encoding of each frame, and all
other bytes are refused. Numbers and strings have bounds, and the connection refuses longer messages
before it reads them.

The server speaks first:

    server                                    device
    Challenge        ->
                     <-                       Hello
    Welcome          ->
    Task             ->                                     a round begins
    Carry            ->                                     an envelope of the round
                     <-                       Carry         its answer
                     <-                       Decline       or: not in this round any more
    Over             ->                                     the round has ended
    Welcome          ->                                     the run is over

A task has a random number of its own, so that a frame of an earlier process of the server is never
taken for one of this. A trip is one envelope to a device and the answer to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from hashlib import sha256
from typing import Final, Self, TypeAlias

from deltafl.secagg import ClientId, DecodeError
from deltafl.secagg.codec import FieldReader, read_fields, write_fields
from deltafl.secagg.identity import IDENTITY_SIZE, SIGNATURE_SIZE, IdentityKey
from deltafl.secagg.randomness import system_randomness

VERSION: Final = 2
NONCE_SIZE: Final = 32
TASK_SIZE: Final = 16
BESIDE_SIZE: Final = 32
LIST_SIZE: Final = 32
MAX_DETAIL: Final = 200
"""Bytes of what a device adds to the reason for which it declines."""
MAX_SETTINGS: Final = 1 << 16
MAX_TRIPS: Final = 1 << 20
OVERHEAD: Final = 64
"""Most bytes by which a `Carry` is longer than what it carries."""

_TASK_LABEL: Final = b"deltafl/net/v%d/task" % VERSION
_MAX_FIELDS: Final = 8
_MAX_VERSION: Final = 1 << 16
_MAX_CARRIED: Final = 1 << 32
_MAX_ROUND: Final = 1 << 53
_UNIT: Final = 1 << 12  # of weights, as a power of two: beyond all doubles
_ID_LIMIT: Final = 2**32


class VersionError(DecodeError):
    """A frame of another version of this transport."""


class Reason(IntEnum):
    """Why a device does not go on with a task; it follows from the server's messages alone.

    Attributes:
        REFUSED: the announced round falls short of the device's policy, or the server has broken
            the protocol.
        UNKNOWN: the device has not got the task, because it was started again.
        LEDGER: the device cannot write down that it takes part.
        SETTINGS: the device cannot train by such settings, or its own allow no further round.
        REPEATED: the device has answered for this model before, and does so once.
    """

    REFUSED = 1
    UNKNOWN = 2
    LEDGER = 3
    SETTINGS = 4
    REPEATED = 5

    @property
    def words(self) -> str:
        """For people."""
        return "model repeated" if self is Reason.REPEATED else self.name.lower()


@dataclass(frozen=True, slots=True)
class Challenge:
    """The server: sign this.

    Attributes:
        nonce: `NONCE_SIZE` random bytes, for this connection alone.
    """

    nonce: bytes

    @classmethod
    def drawn(cls) -> Self:
        """Another one each time."""
        return cls(system_randomness(NONCE_SIZE))


@dataclass(frozen=True, slots=True)
class Hello:
    """A device: who it is; see `identities`.

    Attributes:
        client: the id under which the federation's list has the device.
        key: its identity key.
        signature: of the challenge.
        listed: the fingerprint of its copy of the list, `LIST_SIZE` bytes; or empty. It admits
            nobody: it lets the server say whose copy is another.
    """

    client: ClientId
    key: IdentityKey
    signature: bytes
    listed: bytes = b""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server: the device is admitted, and waits for a round; or the run is over.

    Attributes:
        rounds_done: of the run so far.
        rounds: of the whole run.
        is_over: whether nothing more will be asked.
    """

    rounds_done: int
    rounds: int
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """The server: a round begins.

    All devices of a session have been told the same: its graph seed is `graph_seed`.

    Attributes:
        task: `TASK_SIZE` random bytes, by which later frames name the round.
        round_index: the round, counted from 0.
        unit: log2 of the unit in which devices weigh themselves (`deltafl.fl.strategies.masked`).
        settings: of the run, as TOML; at most `MAX_SETTINGS` bytes.
        measures: whether devices measure the model in place of training (`own_work`).
        beside: a digest, `BESIDE_SIZE` bytes, of what devices are told in another way than by
            frames; empty if there is nothing.
    """

    task: bytes
    round_index: int
    unit: int
    settings: bytes
    measures: bool = False
    beside: bytes = b""

    @property
    def graph_seed(self) -> bytes:
        """The graph seed of the task's session, 32 bytes: a digest of all that the task says.

        Parties of a session agree on its parameters, and so on the task. A server that told one
        device to train otherwise than the others would have it alone in its session. Nobody can
        know it before the task is named, so a task is named once the cohort is drawn.
        """
        return sha256(_TASK_LABEL + encode(self)).digest()


@dataclass(frozen=True, slots=True)
class Carry:
    """Either: one message of the round's protocol.

    Attributes:
        task: the round.
        trip: counted from 0 in each round; an answer has the trip of what it answers.
        data: the message.
    """

    task: bytes
    trip: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Decline:
    """A device: it has no further answer in this round.

    Attributes:
        task: the round.
        reason: why.
        detail: which of the device's limits the announced round falls short of, or what code it
            has not, for people: UTF-8, at most `MAX_DETAIL` bytes; or empty. Like the reason, it
            follows from the server's messages and the device's own settings, never from its data.
    """

    task: bytes
    reason: Reason
    detail: bytes = b""


@dataclass(frozen=True, slots=True)
class Over:
    """The server: the round has ended, whatever came of it.

    Attributes:
        task: the round.
        rounds_done: of the run so far.
    """

    task: bytes
    rounds_done: int


Frame: TypeAlias = Challenge | Hello | Welcome | Task | Carry | Decline | Over


_Read: TypeAlias = Callable[[FieldReader], object]


def _integer(low: int, high: int) -> _Read:
    return lambda reader: reader.integer(low, high)


def _binary(size: int) -> _Read:
    return lambda reader: reader.binary(size)


def _string(most: int) -> _Read:
    return lambda reader: reader.records(1, most=most)


def _flag(reader: FieldReader) -> bool:
    return bool(reader.integer(0, 1))


def _reason(reader: FieldReader) -> Reason:
    return Reason(reader.integer(min(Reason), max(Reason)))


def _digest(size: int) -> _Read:
    return lambda reader: reader.records(size, most=1)


_NAME: Final = _binary(TASK_SIZE)
_ROUNDS: Final = _integer(0, _MAX_ROUND)
_ID: Final = _integer(0, _ID_LIMIT - 1)
_TASK: Final = (
    _NAME,
    _ROUNDS,
    _integer(-_UNIT, _UNIT),
    _string(MAX_SETTINGS),
    _flag,
    _digest(BESIDE_SIZE),
)
_FORMS: Final[tuple[tuple[Callable[..., Frame], tuple[_Read, ...]], ...]] = (
    (Challenge, (_binary(NONCE_SIZE),)),
    (Hello, (_ID, _binary(IDENTITY_SIZE), _binary(SIGNATURE_SIZE), _digest(LIST_SIZE))),
    (Welcome, (_ROUNDS, _ROUNDS, _flag)),
    (Task, _TASK),
    (Carry, (_NAME, _integer(0, MAX_TRIPS), _string(_MAX_CARRIED))),
    (Decline, (_NAME, _reason, _string(MAX_DETAIL))),
    (Over, (_NAME, _ROUNDS)),
)
"""Every kind of frame, numbered from 1, and how each of its fields is read."""

_KINDS: Final = {form: kind for kind, (form, _) in enumerate(_FORMS, 1)}


def encode(frame: Frame) -> bytes:
    """The canonical bytes of a frame."""
    values = (getattr(frame, one.name) for one in fields(frame))
    plain = (int(value) if isinstance(value, bool) else value for value in values)
    return write_fields([VERSION, _KINDS[type(frame)], *plain])


def decode(data: bytes) -> Frame:
    """Parse exactly one frame.

    Raises:
        VersionError: it is one of another version.
        DecodeError: unknown kind; short, long or non-canonical input; a value out of its range.
    """
    reader = FieldReader(read_fields(data, most=_MAX_FIELDS))
    if (version := reader.integer(0, _MAX_VERSION)) != VERSION:
        raise VersionError(f"version {version} of the transport, not {VERSION}")
    form, reads = _FORMS[reader.integer(1, len(_FORMS)) - 1]
    frame = form(*(read(reader) for read in reads))
    reader.finish()
    return frame
