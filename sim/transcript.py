"""The server's view, message by message, as an append-only chain of frames on disk.

File: `MAGIC`, then per frame its length (4 bytes, big-endian), the frame, and the chain's digest
after it (32 bytes). A frame is msgpack of [sequence, round, sent, peer, size, sha256(data), data or
nil]. digest_i = SHA-256(digest_{i−1} ‖ frame_i), digest_{−1} = SHA-256(MAGIC): an edit, a swap or a
gap breaks the chain at its first frame. Frames missing at the end show only against the head
digest, which the run's checkpoint and summary hold.
"""

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

import msgpack

from secagg.params import ClientId
from secagg.session import NoObserver
from sim.errors import TranscriptError

MAGIC: Final = b"deltafl transcript 1\n"
_LENGTH: Final = struct.Struct(">I")
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Frame:
    """One message that the server sent or received.

    Attributes:
        sequence: counts all frames of the transcript from 0.
        round: the round, counted from 1.
        sent: whether the server sent it; else it received it.
        peer: the device at the other end.
        size: length of the message in bytes.
        sha256: digest of the message, 32 bytes.
        data: the message itself, where the transcript was to keep it.
    """

    sequence: int
    round: int
    sent: bool
    peer: int
    size: int
    sha256: bytes
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a transcript goes: what a checkpoint must know to continue it.

    Attributes:
        size: length of the file in bytes.
        num_frames: number of frames in it.
        digest: the chain's digest after the last of them, 32 bytes.
    """

    size: int
    num_frames: int
    digest: bytes


START: Final = Mark(len(MAGIC), 0, hashlib.sha256(MAGIC).digest())
"""The mark of a transcript without frames."""


class TranscriptWriter(NoObserver):
    """Appends frames; buffered until `flush`.

    Args:
        path: the file. What lies beyond `mark` is cut off.
        mode: "headers", "full", or "every=N": whether messages themselves are kept never, always,
            or in rounds divisible by N.
        mark: where to continue; by default from nothing.

    Raises:
        TranscriptError: the file is shorter than `mark` says.
    """

    def __init__(self, path: Path, mode: str, mark: Mark = START) -> None:
        if mark != START and path.stat().st_size < mark.size:
            raise TranscriptError(mark.num_frames, "it is shorter than the checkpoint says")
        self._mode = mode
        self._mark = mark
        self._round = 0
        self._file: BinaryIO = path.open("r+b" if mark != START else "wb")
        if mark == START:
            self._file.write(MAGIC)
        self._file.truncate(mark.size)
        self._file.seek(mark.size)

    def begin_round(self, number: int) -> None:
        """Put the messages that follow into round `number`, counted from 1."""
        self._round = number

    def message(self, *, sent: bool, peer: ClientId, data: bytes) -> None:
        """Append one message."""
        fields = (
            self._mark.num_frames,
            self._round,
            sent,
            peer,
            len(data),
            hashlib.sha256(data).digest(),
            data if self._keeps_data() else None,
        )
        frame = msgpack.packb(fields)
        digest = hashlib.sha256(self._mark.digest + frame).digest()
        self._file.write(_LENGTH.pack(len(frame)) + frame + digest)
        size = self._mark.size + _LENGTH.size + len(frame) + _DIGEST_BYTES
        self._mark = Mark(size, self._mark.num_frames + 1, digest)

    def flush(self) -> Mark:
        """Bring everything to the disk; how far the transcript goes now."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._mark

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _keeps_data(self) -> bool:
        if self._mode.startswith("every="):
            return self._round % int(self._mode.removeprefix("every=")) == 0
        return self._mode == "full"


def read_transcript(path: Path, *, digest: bytes | None = None) -> Iterator[Frame]:
    """Read and verify a transcript frame by frame.

    Args:
        path: the file.
        digest: the head digest that the run's summary states, if the end is to be verified too.

    Raises:
        TranscriptError: the file is damaged; frames before the named one are as written.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise TranscriptError(0, f"{path} does not begin as a transcript does")
        chain, sequence = START.digest, 0
        while prefix := file.read(_LENGTH.size):
            body = _read_body(file, prefix, sequence)
            chain = hashlib.sha256(chain + body[:-_DIGEST_BYTES]).digest()
            if chain != body[-_DIGEST_BYTES:]:
                raise TranscriptError(sequence, "its digest does not follow from the frames so far")
            yield _decode(body[:-_DIGEST_BYTES], sequence)
            sequence += 1
    if digest is not None and chain != digest:
        raise TranscriptError(sequence, "frames are missing at the end, or were added")


def _read_body(file: BinaryIO, prefix: bytes, sequence: int) -> bytes:
    """Frame and digest; never asks for more bytes than the file has left."""
    left = os.fstat(file.fileno()).st_size - file.tell()
    wanted = _LENGTH.unpack(prefix)[0] + _DIGEST_BYTES if len(prefix) == _LENGTH.size else left + 1
    if wanted > left:
        raise TranscriptError(sequence, "the file ends inside it, or its length was changed")
    return file.read(wanted)


def _decode(frame: bytes, sequence: int) -> Frame:
    """Decode a frame that the chain vouches for; what is wrong now, its writer did wrong."""
    try:
        fields = msgpack.unpackb(frame)
        decoded = Frame(*fields)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise TranscriptError(sequence, "it is not a frame") from error
    if decoded.sequence != sequence:
        raise TranscriptError(sequence, f"it says that it is number {decoded.sequence}")
    data = decoded.data
    if data is not None and (len(data), hashlib.sha256(data).digest()) != (
        decoded.size,
        decoded.sha256,
    ):
        raise TranscriptError(sequence, "size or digest are not those of its message")
    return decoded
