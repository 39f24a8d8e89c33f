"""The server's view, message by message, as an append-only chain of records on disk.

Records, each a frame of `deltafl.sim.record.chain` (kind and number first):

    0 opening   run id (16 bytes), mode
    1 message   round, sent, peer, size, SHA-256, and the first bytes of the message
    2 sum       round, slot, length, SHA-256, contributors, last words: what the server has learnt
    3 end       round, why it was given up or ""
    4 closing   rounds: the run is finished
    5 resumed   rounds kept, and what is left of a record that was being written
    6 begin     round, devices: what follows may reach them
    7 closed    round: the server has ended a trip; what follows is late, or of the next

The opening is the first record and the closing the last. A round's begin is on the disk before any
message of the round leaves the server. So, whenever the process ends, the record says whom the
round may have reached, and a resumed run goes on with the round after it. Rounds that were begun
and are not kept end with the resumed record, and are lost.

In rounds whose messages are kept whole, "the first bytes" of a message are all of them, otherwise
at most `HEAD_SENT` or `HEAD_RECEIVED`. A question with the proof of a sum is always kept whole.
Where the server sent the same message before in the round, the number of that record stands in
their place.
Contributors and devices are ids, 4 bytes little-endian each. A sum is digested as words of 8 bytes,
little-endian; the last `SUM_WORDS` of them are in the record.

docs/transcript.md has the whole format, and a reader that shares no code with this one.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from deltafl.fl.read.regular import open_regular
from deltafl.protocol import wire
from deltafl.protocol.messages import Ask
from deltafl.secagg import DecodeError, SlotSum
from deltafl.secagg.params import ClientId
from deltafl.secagg.session import NoObserver
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.chain import (
    NOT_MARKED,
    ChainWriter,
    Format,
    Link,
    Mark,
    Value,
    check_mark,
    read_chain,
    read_link,
)
from deltafl.sim.settings.constraints import is_mode, keeps_whole

TRANSCRIPT: Final = Format(
    "transcript",
    4,
    earlier="it has no marks of closed trips, so use the deltafl that wrote it",
)
RUN_ID_BYTES: Final = 16
HEAD_SENT: Final = 2048
HEAD_RECEIVED: Final = 256
SUM_WORDS: Final = 256
INTERRUPTED: Final = "the server's process ended before the round was kept"
"""Why a round was lost that the server had begun, and whose result no checkpoint has."""

_AT_KIND: Final = 2  # byte of a short envelope that holds its kind: after header and version
_OPENING, _MESSAGE, _SUM, _END, _CLOSING, _RESUMED, _BEGIN, _CLOSED = range(8)
_WORD: Final = np.dtype("<u8")
_ID: Final = np.dtype("<u4")


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """A record in its place.

    Attributes:
        number: of the record, counted from 0.
        offset: of the record in the file, in bytes.
    """

    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Opening(_Placed):
    """The first record.

    Attributes:
        run_id: random, 16 bytes; the truth file of the same run has it too.
        mode: "headers", "full" or "every=N".
    """

    run_id: bytes
    mode: str


@dataclass(frozen=True, slots=True)
class Message(_Placed):
    """One message that the server sent or received.

    Attributes:
        round: the round, counted from 1.
        sent: whether the server sent it; else it received it.
        peer: the device at the other end.
        size: length of the message in bytes.
        sha256: digest of the message, 32 bytes.
        head: the first bytes of the message; b"" where `repeats` says where they are.
        repeats: number of the record of this round that has the same message; None for its own.
    """

    round: int
    sent: bool
    peer: int
    size: int
    sha256: bytes
    head: bytes
    repeats: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether `head` is all of the message."""
        return self.repeats is None and len(self.head) == self.size


@dataclass(frozen=True, slots=True, eq=False)
class Sum(_Placed):
    """One sum that the server has learnt.

    Attributes:
        round: the round, counted from 1.
        slot: index into the session's slots.
        length: words of the sum.
        sha256: digest of all its words, 32 bytes.
        contributors: whose vectors are in it, ascending; uint32.
        words: the last `SUM_WORDS` words at most; uint64.
    """

    round: int
    slot: int
    length: int
    sha256: bytes
    contributors: npt.NDArray[np.uint32]
    words: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class RoundEnd(_Placed):
    """A round is over.

    Attributes:
        round: the round, counted from 1.
        aborted: why it was given up; "" where it was not.
    """

    round: int
    aborted: str


@dataclass(frozen=True, slots=True)
class Closing(_Placed):
    """The last record of a finished run.

    Attributes:
        rounds: how many rounds were played.
    """

    rounds: int


@dataclass(frozen=True, slots=True)
class Resumed(_Placed):
    """The run was interrupted, and goes on from its last checkpoint.

    Attributes:
        kept: how many rounds the checkpoint knows of. Later rounds that were begun before are lost.
        torn: what was left of a record that was cut short while it was written; b"" if none was.
    """

    kept: int
    torn: bytes


@dataclass(frozen=True, slots=True)
class Begin(_Placed):
    """A round begins; no message of it was sent before.

    Attributes:
        round: the round, counted from 1.
        cohort: the devices that it may reach, ascending.
    """

    round: int
    cohort: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Closed(_Placed):
    """The server has ended a trip.

    Attributes:
        round: the round, counted from 1.
    """

    round: int


Record = Opening | Message | Sum | RoundEnd | Closing | Resumed | Begin | Closed


@dataclass(frozen=True, slots=True)
class BegunRound:
    """A round that no checkpoint knows of, though devices may have answered in it.

    Attributes:
        round: the round, counted from 1.
        cohort: the devices that it may have reached, ascending.
        before: the end of the record before it.
        sent: the end of its last record that is no message of a device: all that the server has
            made of what it had received.
        slots: of the sums that the server has learnt, indices into the session's slots.
    """

    round: int
    cohort: tuple[int, ...]
    before: Mark
    sent: Mark
    slots: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Beyond:
    """What a transcript holds beyond a checkpoint.

    Attributes:
        mark: the end of its last whole record.
        rounds: the rounds that were begun, in their order.
        torn: what is left of a record that was cut short while it was written.
        goes_on: the round that follows `mark`, if it goes on: its records up to `sent` are made
            once more.
    """

    mark: Mark
    rounds: tuple[BegunRound, ...] = ()
    torn: bytes = b""
    goes_on: BegunRound | None = None


class TranscriptWriter(ChainWriter, NoObserver):
    """Records what passes the server, each message before it goes anywhere.

    Args:
        path: the file. What lies beyond `mark`, or beyond `kept`, is cut off.
        mode: "headers", "full", or "every=N": whether messages are kept whole never, always, or in
            rounds divisible by N.
        mark: where to continue; by default from nothing.
        run_id: 16 bytes; drawn where a new file is begun without it.
        kept: how far the file is that of a round that goes on, and is made once more; see
            `ChainWriter`.

    Attributes:
        run_id: of the file that is written.

    Raises:
        ChainError: the file is shorter than `mark` says.
    """

    def __init__(
        self,
        path: Path,
        mode: str,
        mark: Mark = TRANSCRIPT.start,
        run_id: bytes | None = None,
        kept: Mark | None = None,
    ) -> None:
        self._mode = mode
        self.run_id = run_id or os.urandom(RUN_ID_BYTES)
        begins = mark == TRANSCRIPT.start
        if not begins and isinstance(opening := next(read_transcript(path)), Opening):
            self.run_id = opening.run_id
        super().__init__(path, TRANSCRIPT, mark, kept)
        self._round = 0
        self._first: dict[bytes, int] = {}
        if begins:
            self.append(_OPENING, self.run_id, mode)

    def begin_round(self, number: int, cohort: Iterable[int]) -> None:
        """Bring to the disk that a round begins, before any of its messages can leave.

        Args:
            number: the round, counted from 1.
            cohort: the devices that it may reach.
        """
        self.append(_BEGIN, number, np.array(sorted(cohort), dtype=_ID).tobytes())
        self.flush()
        self._round = number
        self._first = {}

    def message(self, *, sent: bool, peer: ClientId, data: bytes) -> None:
        """Append one message."""
        digest = hashlib.sha256(data).digest()
        first = self._first.setdefault(digest, self.num_frames) if sent else self.num_frames
        head: bytes | int = first
        if first == self.num_frames:
            head = kept_of(data, self._mode, self._round, sent=sent)
        self.append(_MESSAGE, self._round, sent, peer, len(data), digest, head)

    def closed(self) -> None:
        """Append that a trip is over."""
        self.append(_CLOSED, self._round)

    def revealed(self, total: SlotSum) -> None:
        """Append a sum that the server has learnt."""
        self.append(
            _SUM,
            self._round,
            total.slot,
            len(total.vector),
            sum_sha256(total.vector),
            np.array(total.contributors, dtype=_ID).tobytes(),
            total.vector[-SUM_WORDS:].astype(_WORD).tobytes(),
        )

    def end_round(self, aborted: str | None) -> None:
        """Append that the round is over, and why it was given up if it was."""
        self.append(_END, self._round, aborted or "")

    def finish(self, rounds: int) -> None:
        """Append that the run is finished."""
        self.append(_CLOSING, rounds)

    def resume(self, kept: int, torn: bytes) -> None:
        """Append that the run was interrupted; rounds that were begun after `kept` are lost."""
        self.append(_RESUMED, kept, torn)


def kept_of(data: bytes, mode: str, round_number: int, *, sent: bool) -> bytes:
    """What a transcript in this mode keeps of a message: all of it, or its first bytes.

    The proof of a sum, whose length grows with the cohort, comes before the message that opens the
    slot. All devices are sent the same, so it is kept once per question.

    Args:
        data: The message.
        mode: "headers", "full" or "every=N".
        round_number: The round, counted from 1.
        sent: Whether the server sent it.
    """
    limit = HEAD_SENT if sent else HEAD_RECEIVED
    if len(data) <= limit or keeps_whole(mode, round_number) or (sent and _has_proof(data)):
        return data
    return data[:limit]


def _has_proof(data: bytes) -> bool:
    """Whether a long message is a question with the proof of a sum."""
    if data[_AT_KIND] not in (wire.Kind.QUERY, wire.Kind.THRESHOLD):
        return False
    try:
        envelope = wire.decode(data)
    except DecodeError:
        return False
    return isinstance(envelope, Ask) and bool(envelope.opening)


def sum_sha256(words: npt.NDArray[np.unsignedinteger]) -> bytes:
    """The digest of a sum's words, 32 bytes."""
    return hashlib.sha256(np.ascontiguousarray(words, dtype=_WORD).data).digest()


def read_transcript(path: Path, *, digest: bytes | None = None) -> Iterator[Record]:
    """Read and verify a transcript record by record.

    Args:
        path: the file.
        digest: the head digest that the run's summary states, if the end is to be verified too.

    Raises:
        ChainError: the file is no transcript of this version, or damaged; records before the one
            that the error names are as written.
        OSError: the file cannot be read.
    """
    last, number = TRANSCRIPT.start.digest, 0
    for record, after in read_with_digests(path):
        yield record
        last, number = after, record.number + 1
    if digest is not None and last != digest:
        raise ChainError(path, number, Damage.CUT, "records are missing at the end, or were added")


def read_with_digests(path: Path) -> Iterator[tuple[Record, bytes]]:
    """Read and verify a transcript: every record, and the chain's digest after it.

    Args:
        path: the file.

    Raises:
        ChainError: as `read_transcript`.
        OSError: the file cannot be read.
    """
    for link in read_chain(path, TRANSCRIPT):
        yield _record(path, link), link.digest


def count_rounds(path: Path, mark: Mark) -> int:
    """Read and verify a transcript up to a checkpoint; the number of rounds that it begins.

    Args:
        path: the file; it need not exist if the mark is the beginning.
        mark: how far the checkpoint says that it goes.

    Raises:
        ChainError: the file is damaged before the mark, no record ends there with that digest, or
            its rounds do not begin in their order, each once.
        OSError: the file cannot be read.
    """
    check_mark(path, TRANSCRIPT, mark)
    begun, before = 0, TRANSCRIPT.start
    for link in read_chain(path, TRANSCRIPT) if mark != before else ():
        before = link.mark
        if link.kind == _BEGIN:
            begun += 1
            if link.fields[:1] != [begun]:
                raise _malformed(path, link, f"the round that begins is not round {begun}")
        if before.size >= mark.size:  # what follows may be torn
            break
    if before != mark:
        raise ChainError(path, mark.num_frames, Damage.EDITED, NOT_MARKED)
    return begun


def read_beyond(path: Path, mark: Mark) -> Beyond:
    """Read what a transcript holds beyond a checkpoint, when its run is resumed.

    Only the end of the file may be damaged, and only as the end of a process damages it: by a
    record that is not all there.

    Args:
        path: the file; it need not exist if the mark is the beginning.
        mark: how far the checkpoint says that it goes.

    Raises:
        ChainError: the file is damaged in another way.
        OSError: the file cannot be read.
    """
    if mark == TRANSCRIPT.start and not _has_records(path):
        return Beyond(mark)
    rounds: list[BegunRound] = []
    try:
        for link in read_chain(path, TRANSCRIPT, mark):
            record = _record(path, link)
            before, mark = mark, link.mark
            match record:
                case Begin():
                    rounds.append(BegunRound(record.round, record.cohort, before, mark))
                case Message(sent=False):
                    pass
                case _ if rounds:
                    slots = (record.slot,) if isinstance(record, Sum) else ()
                    rounds[-1] = replace(rounds[-1], sent=mark, slots=rounds[-1].slots + slots)
    except ChainError as error:
        if error.damage is not Damage.CUT or error.offset != mark.size:
            raise
    with path.open("rb") as file:
        file.seek(mark.size)
        return Beyond(mark, tuple(rounds), file.read())


def _has_records(path: Path) -> bool:
    """Whether a file goes beyond its first line."""
    return path.exists() and path.stat().st_size > TRANSCRIPT.start.size


class Reader:
    """Reads single messages of a transcript again, at offsets that `read_transcript` gave.

    Args:
        path: the file; it must not change meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_regular(path)

    def message_at(self, offset: int) -> Message:
        """The message whose record begins at an offset; its number and the chain are not checked.

        Raises:
            ChainError: there is no message.
        """
        link = read_link(self._path, self._file, offset)
        record = _record(self._path, link)
        if not isinstance(record, Message):
            raise _malformed(self._path, link, "it is no message")
        return record

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _record(path: Path, link: Link) -> Record:
    """Decode a record that the chain vouches for; what is wrong now, its writer did wrong."""
    try:
        fields = _Fields(link.fields)
        record = _READERS[link.kind](link, fields)
        fields.finish()
    except (LookupError, TypeError, ValueError) as error:
        raise _malformed(path, link, f"it is no record: {error}") from None
    if isinstance(record, Opening) != (link.number == 0):
        raise _malformed(path, link, "the opening is the first record and no other")
    if (
        isinstance(record, Message)
        and record.is_whole
        and hashlib.sha256(record.head).digest() != record.sha256
    ):
        raise _malformed(path, link, "the digest is not that of its message")
    return record


def _malformed(path: Path, link: Link, problem: str) -> ChainError:
    return ChainError(path, link.number, Damage.MALFORMED, problem)


class _Fields:
    """Takes the fields of a record one by one, each of its type."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = iter(values)

    def take(self, kind: type) -> Value:
        value = next(self._values, None)
        if type(value) is not kind:
            raise TypeError(f"{type(value).__name__} where {kind.__name__} belongs")
        return value

    def natural(self) -> int:
        value = cast(int, self.take(int))
        if value < 0:
            raise ValueError(f"{value} is negative")
        return value

    def text(self) -> str:
        return cast(str, self.take(str))

    def binary(self, size: int | None = None) -> bytes:
        value = cast(bytes, self.take(bytes))
        if size is not None and len(value) != size:
            raise ValueError(f"{len(value)} bytes where {size} belong")
        return value

    def finish(self) -> None:
        if next(self._values, None) is not None:
            raise ValueError("it has too many fields")


def _read_opening(link: Link, fields: _Fields) -> Opening:
    run_id, mode = fields.binary(RUN_ID_BYTES), fields.text()
    if not is_mode(mode):
        raise ValueError(f"{mode[:20]!a} is no mode")
    return Opening(link.number, link.offset, run_id, mode)


def _read_message(link: Link, fields: _Fields) -> Message:
    number, sent = fields.natural(), cast(bool, fields.take(bool))
    peer, size, digest = fields.natural(), fields.natural(), fields.binary(32)
    repeats = fields.natural() if type(link.fields[-1]) is int else None
    head = fields.binary() if repeats is None else b""
    if len(head) > size:
        raise ValueError(f"it holds {len(head)} bytes of a message of {size}")
    if peer >= 1 << 32:
        raise ValueError(f"{peer} is no id of a device")
    if repeats is not None and repeats >= link.number:
        raise ValueError(f"it repeats record {repeats}, which does not come before it")
    return Message(link.number, link.offset, number, sent, peer, size, digest, head, repeats)


def _read_sum(link: Link, fields: _Fields) -> Sum:
    number, slot, length = fields.natural(), fields.natural(), fields.natural()
    digest, ids, words = fields.binary(32), fields.binary(), fields.binary()
    contributors = np.frombuffer(ids, dtype=_ID).astype(np.uint32)
    kept = np.frombuffer(words, dtype=_WORD).astype(np.uint64)
    if len(kept) != min(length, SUM_WORDS):
        raise ValueError(f"it holds {len(kept)} words of a sum of {length}")
    if len(kept) == length and sum_sha256(kept) != digest:
        raise ValueError("the digest is not that of its words")
    return Sum(link.number, link.offset, number, slot, length, digest, contributors, kept)


def _read_end(link: Link, fields: _Fields) -> RoundEnd:
    number, aborted = fields.natural(), fields.text()
    return RoundEnd(link.number, link.offset, number, aborted)


def _read_closing(link: Link, fields: _Fields) -> Closing:
    rounds = fields.natural()
    return Closing(link.number, link.offset, rounds)


def _read_resumed(link: Link, fields: _Fields) -> Resumed:
    kept, torn = fields.natural(), fields.binary()
    return Resumed(link.number, link.offset, kept, torn)


def _read_begin(link: Link, fields: _Fields) -> Begin:
    number, ids = fields.natural(), fields.binary()
    cohort = np.frombuffer(ids, dtype=_ID).tolist()
    if any(after <= before for before, after in pairwise(cohort)):
        raise ValueError("its devices do not ascend")
    return Begin(link.number, link.offset, number, tuple(cohort))


def _read_closed(link: Link, fields: _Fields) -> Closed:
    return Closed(link.number, link.offset, fields.natural())


_READERS: Final[Mapping[int, Callable[[Link, _Fields], Record]]] = {
    _OPENING: _read_opening,
    _MESSAGE: _read_message,
    _SUM: _read_sum,
    _END: _read_end,
    _CLOSING: _read_closing,
    _RESUMED: _read_resumed,
    _BEGIN: _read_begin,
    _CLOSED: _read_closed,
}
