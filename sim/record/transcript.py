"""The server's view, message by message, in the chain of a run's record.

The table `rounds` has what frames the messages: the opening, begins and ends of rounds, closed
trips, interruptions, and the closing of a run. A round's begin is on the disk before any message of
the round leaves the server. So, whenever the process ends, the record says whom the round may have
reached, and a resumed run goes on with the round after it. Rounds that were begun and are not kept
end with the row of the interruption, and are lost.

The bytes of a message stand in the table `bodies`, once for each round, under the number of the
first row that has them. In mode "sums", they are there only until the round is over.

docs/record.md has the whole format, and a reader that shares no code with this one.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from deltafl.secagg import SlotSum
from deltafl.secagg.params import ClientId
from deltafl.secagg.session import NoObserver
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.chain import DIGEST_BYTES, Link, Mark
from deltafl.sim.record.record import Record as OpenRecord
from deltafl.sim.record.record import open_record
from deltafl.sim.settings.constraints import FULL, SUMS

RUN_ID_BYTES: Final = 16
SUM_WORDS: Final = 256
INTERRUPTED: Final = "the server's process ended before the round was kept"
"""Why a round was lost that the server had begun, and whose result no checkpoint has."""

_WORD: Final = np.dtype("<u8")
_ID: Final = np.dtype("<u4")
_BYTES: Final = "SELECT data FROM messages m JOIN bodies b ON b.number = body WHERE m.number = ?"


@dataclass(frozen=True, slots=True)
class _Row:
    """A row in its place.

    Attributes:
        number: of the row, counted from 0.
        round: the round, counted from 1; 0 of the opening.
    """

    number: int
    round: int


@dataclass(frozen=True, slots=True)
class Opening(_Row):
    """The first row.

    Attributes:
        run_id: random, 16 bytes; the truth of the same run has it too.
        mode: "full" or "sums".
    """

    run_id: bytes
    mode: str


@dataclass(frozen=True, slots=True)
class Message(_Row):
    """One message that the server sent or received.

    Attributes:
        sent: whether the server sent it; else it received it.
        peer: the device at the other end.
        size: length of the message in bytes.
        sha256: digest of the message, 32 bytes.
        head: the message; b"" where it is not kept.
        trip: to which it belongs, counted from 0 in the round.
    """

    sent: bool
    peer: int
    size: int
    sha256: bytes
    head: bytes
    trip: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether `head` is the message."""
        return len(self.head) == self.size


@dataclass(frozen=True, slots=True, eq=False)
class Sum(_Row):
    """One sum that the server has learnt.

    Attributes:
        slot: index into the session's slots.
        length: words of the sum.
        sha256: digest of all its words, 32 bytes.
        contributors: whose vectors are in it, ascending; uint32.
        words: the last `SUM_WORDS` words at most; uint64.
    """

    slot: int
    length: int
    sha256: bytes
    contributors: npt.NDArray[np.uint32]
    words: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class RoundEnd(_Row):
    """A round is over.

    Attributes:
        aborted: why it was given up; "" where it was not.
        truth: the digest of the run's truth by then, 32 bytes; b"" where none is noted.
    """

    aborted: str
    truth: bytes = b""


class Closing(_Row):
    """All rounds of a run are played; `round` is the last."""


class Resumed(_Row):
    """The run was interrupted, and goes on from its last checkpoint.

    That knows of the rounds up to `round`. Later rounds that were begun before are lost.
    """


@dataclass(frozen=True, slots=True)
class Begin(_Row):
    """A round begins; no message of it was sent before.

    Attributes:
        cohort: the devices that it may reach, ascending.
    """

    cohort: tuple[int, ...]


class Closed(_Row):
    """The server has ended a trip."""


Record = Opening | Message | Sum | RoundEnd | Closing | Resumed | Begin | Closed


class BegunRound(NamedTuple):
    """A round that no checkpoint knows of, though devices may have answered in it.

    Attributes:
        round: the round, counted from 1.
        cohort: the devices that it may have reached, ascending.
        before: the end of the row before it.
        slots: of the sums that the server has learnt, indices into the session's slots.
    """

    round: int
    cohort: tuple[int, ...]
    before: Mark
    slots: tuple[int, ...]


class TranscriptWriter(NoObserver):
    """Records what passes the server, each message before it goes anywhere.

    Args:
        record: where; open to write.
        mode: "full" or "sums", where the record is new; otherwise it has its own.
        keeps_open: whether the bytes of a round that is under way are kept in mode "sums", too.
        is_durable: whether a round and its trips are on the disk before anything follows from them.
            If not, a process that ends leaves nothing of a round that is not over.

    Attributes:
        run_id: of the record, 16 bytes.
        record: where.
        answers: the trip that the next message answers, if it is not the one that is open.
    """

    def __init__(
        self, record: OpenRecord, mode: str, *, keeps_open: bool = False, is_durable: bool = True
    ) -> None:
        self.record, self._is_durable = record, is_durable
        self.answers: int | None = None
        self.run_id, self.mode, self.trip = os.urandom(RUN_ID_BYTES), mode, 0
        self._round, self._first = 0, dict[bytes, int]()
        opening = next(iter(read_rows(record)), None)
        if isinstance(opening, Opening):
            self.run_id, self.mode = opening.run_id, opening.mode
        elif opening is None:
            record.chain.append("rounds", 0, "opening", mode, self.run_id)
            record.keep()
        self._keeps = keeps_open or self.mode == FULL
        if self.mode == SUMS:  # what is deleted is overwritten
            record.db.execute("PRAGMA secure_delete = ON")

    def last_truth(self) -> bytes:
        """What the end of the last round says of the truth; b"" if nothing."""
        query = "SELECT data FROM rounds WHERE what = 'end' ORDER BY number DESC LIMIT 1"
        return next((data for (data,) in self.record.db.execute(query) if data), b"")

    def begin_round(self, number: int, cohort: Iterable[int], mark: Mark | None = None) -> None:
        """Note that a round begins, before any of its messages can leave.

        Args:
            number: the round, counted from 1.
            cohort: the devices that it may reach.
            mark: where its rows begin, if an earlier process has made them, up to where it ended:
                what is noted from here on must be what is there.
        """
        if mark is not None:
            self.record.chain.make_again(mark)
        ids = np.array(sorted(cohort), dtype=_ID).tobytes()
        self.record.chain.append("rounds", number, "begin", None, ids)
        self._keep_durably(from_now=False)
        self._round, self.trip, self._first = number, 0, {}

    def message(self, *, sent: bool, peer: ClientId, data: bytes) -> None:
        """Note one message."""
        digest, chain = hashlib.sha256(data).digest(), self.record.chain
        number = chain.mark.num_frames
        body = self._first.setdefault(digest, number) if sent else number
        trip = self.trip if self.answers is None else self.answers
        self.answers = None
        fields = self._round, trip, int(sent), peer, len(data), digest
        if chain.append("messages", *fields, body=body) and body == number and self._keeps:
            self.record.db.execute("INSERT INTO bodies VALUES (?, ?)", (number, data))

    def closed(self) -> None:
        """Note that a trip is over, and keep it."""
        self._keep_durably(from_now=True)
        self.record.chain.append("rounds", self._round, "closed", None, None)
        self._keep_durably(from_now=False)
        self.trip += 1

    def _keep_durably(self, *, from_now: bool) -> None:
        if self._is_durable:
            self.record.keep_durably(from_now=from_now)

    def revealed(self, total: SlotSum) -> None:
        """Note a sum that the server has learnt."""
        ids = np.array(total.contributors, dtype=_ID).tobytes()
        words = total.vector[-SUM_WORDS:].astype(_WORD).tobytes()
        known = len(total.vector), sum_sha256(total.vector), ids, words
        self.record.chain.append("sums", self._round, total.slot, *known)

    def end_round(self, aborted: str | None, truth: bytes = b"") -> None:
        """Note that the round is over, and why it was given up if it was."""
        self._keep_durably(from_now=True)
        self.record.chain.append("rounds", self._round, "end", aborted or "", truth or None)
        self._forget()

    def finish(self, rounds: int) -> None:
        """Note that the run is finished."""
        self.record.chain.append("rounds", rounds, "closing", None, None)

    def resume(self, kept: int) -> None:
        """Note that the run was interrupted; rounds that were begun after `kept` are lost."""
        self.record.chain.append("rounds", kept, "resumed", None, None)
        self._forget()

    def _forget(self) -> None:
        if self.mode == SUMS:
            self.record.db.execute("DELETE FROM bodies")


def sum_sha256(words: npt.NDArray[np.unsignedinteger]) -> bytes:
    """The digest of a sum's words, 32 bytes."""
    return hashlib.sha256(np.ascontiguousarray(words, dtype=_WORD).data).digest()


def read_transcript(path: Path) -> Iterator[Record]:
    """Read and verify the server's view in a record, row by row.

    Args:
        path: the record.

    Raises:
        ChainError: the file is no record of this version, or damaged; rows before the one that the
            error names are as written.
        OSError: the file cannot be read.
    """
    return (row for row, _ in read_with_digests(path))


def read_with_digests(path: Path) -> Iterator[tuple[Record, bytes]]:
    """The same, each row with the chain's digest before the next one.

    Raises:
        ChainError: as `read_transcript`.
        OSError: likewise.
    """
    row: Record | None = None
    sent: Message | None = None
    last: list[tuple[Record, bytes]] = []
    with open_record(path) as record:
        try:
            for link in record.chain.read():
                if link.table in _READERS:
                    row = _row_of(path, link)
                    if isinstance(row, Message):
                        row = with_bytes(record, row, sent)
                        sent = row if row.sent else sent
                    yield from last
                last = [(row, link.digest)] if row else []
        except ChainError:
            yield from last
            raise
        yield from last


def read_rows(record: OpenRecord, after: Mark | None = None) -> Iterator[Record]:
    """The same of an open record, without the bytes of messages.

    Args:
        record: the record.
        after: where to begin.

    Raises:
        ChainError: as `read_transcript`.
    """
    for link in record.chain.read(after):
        if link.table in _READERS:
            yield _row_of(record.path, link)


def read_beyond(record: OpenRecord, mark: Mark) -> BegunRound | None:
    """The round that was begun beyond a checkpoint, when a run is resumed; None if none was.

    There is one at most, for a round ends together with its checkpoint.

    Args:
        record: the record.
        mark: how far the checkpoint says that it goes.

    Raises:
        ChainError: it is damaged.
    """
    rows = list(read_rows(record, mark))
    begins = [row for row in rows if isinstance(row, Begin)]
    if not begins:
        return None
    first, *others = begins
    if others:
        problem = "a second round begins beyond the checkpoint"
        raise ChainError(record.path, others[0].number, Damage.MALFORMED, problem)
    slots = tuple(row.slot for row in rows if isinstance(row, Sum))
    return BegunRound(first.round, first.cohort, record.chain.mark_at(first.number), slots)


def with_bytes(record: OpenRecord, row: Message, known: Message | None = None) -> Message:
    """A message as it was sent, as far as it is kept.

    Args:
        record: where.
        row: the message without its bytes.
        known: another one; if it is the same, it is not read again.

    Raises:
        ChainError: its bytes are others.
    """
    if known is not None and known.sha256 == row.sha256:
        return replace(row, head=known.head)
    for (data,) in record.db.execute(_BYTES, (row.number,)):
        if not isinstance(data, bytes) or hashlib.sha256(data).digest() != row.sha256:
            problem = "the digest is not that of its message"
            raise ChainError(record.path, row.number, Damage.EDITED, problem)
        return replace(row, head=data)
    return row


def _row_of(path: Path, link: Link) -> Record:
    """A row that the chain vouches for; what is wrong now, its writer did wrong."""
    try:
        row = _READERS[link.table](link.number, link.fields)
        if isinstance(row, Opening) != (link.number == 0):
            raise ValueError("the opening is the first row and no other")
    except ValueError as error:
        raise ChainError(path, link.number, Damage.MALFORMED, f"it is no row: {error}") from None
    return row


def _read_round(number: int, fields: Sequence[Any]) -> Record:
    of, what, said, data = fields
    match what, said, data:
        case "opening", ("full" | "sums"), bytes() if not of and len(data) == RUN_ID_BYTES:
            return Opening(number, of, data, said)
        case "begin", None, bytes():
            cohort = np.frombuffer(data, dtype=_ID).tolist()
            if any(after <= before for before, after in pairwise(cohort)):
                raise ValueError("its devices do not ascend")
            return Begin(number, of, tuple(cohort))
        case "end", str(), _ if data is None or len(data) == DIGEST_BYTES:
            return RoundEnd(number, of, said, data or b"")
        case "closed", None, None:
            return Closed(number, of)
        case "resumed", None, None:
            return Resumed(number, of)
        case "closing", None, None:
            return Closing(number, of)
    raise ValueError(f"{what!r:.40} is nothing that a run notes so")


def _read_message(number: int, fields: Sequence[Any]) -> Record:
    of, trip, sent, peer, size, digest = fields
    if sent > 1 or peer >= 1 << 32 or len(digest) != DIGEST_BYTES:
        raise ValueError("a number in it is out of its range")
    return Message(number, of, bool(sent), peer, size, digest, b"", trip)


def _read_sum(number: int, fields: Sequence[Any]) -> Record:
    of, slot, length, digest, ids, words = fields
    contributors = np.frombuffer(ids, dtype=_ID).astype(np.uint32)
    kept = np.frombuffer(words, dtype=_WORD).astype(np.uint64)
    if len(kept) != min(length, SUM_WORDS):
        raise ValueError(f"it holds {len(kept)} words of a sum of {length}")
    if len(digest) != DIGEST_BYTES or (len(kept) == length and sum_sha256(kept) != digest):
        raise ValueError("the digest is not that of its words")
    return Sum(number, of, slot, length, digest, contributors, kept)


_READERS: Final = {"rounds": _read_round, "messages": _read_message, "sums": _read_sum}
