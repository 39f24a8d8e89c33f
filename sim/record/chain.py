"""An append-only file of frames, chained by digests: what transcripts and truth files are made of.

File: a magic line, then per frame its length (4 bytes, big-endian), the frame, and the chain's
digest after it (32 bytes). digest_i = SHA-256(digest_{i−1} ‖ frame_i), and digest_{−1} is that of
the magic line. A frame is a msgpack array whose first two elements are its kind and its number,
counted from 0. An edit, a swap or a gap breaks the chain where it begins, and the numbers tell
which of these it was. Frames missing at the end show only if the last digest is known from
elsewhere, or if the file lacks its closing frame.
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

import msgpack

from deltafl.fl.read.regular import open_regular
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.atomic import sync_folder
from deltafl.sim.record.own_files import open_own

_LENGTH: Final = struct.Struct(">I")
DIGEST_BYTES: Final = 32
"""Length of a digest of the chain."""

NOT_MARKED: Final = "the checkpoint is of another file, or of another place in it"
"""What is wrong where a mark and a file do not belong together."""

NOT_REPEATED: Final = "it is not what comes of all that was received before"
"""What is wrong where a process makes the frames of an earlier one once more, and makes others."""

_MAX_MAGIC: Final = 64
_MAX_ELEMENTS: Final = 16  # of a frame; msgpack allocates what an array announces, at each level
_ZEROS: Final = bytes(8)  # no digest ends so, unless a part of the file was never written
_PIECE: Final = 1 << 20
_NUMBER: Final = 1  # the element of a frame that holds its number

Value = int | bytes | str | float | bool | None


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file.

    Attributes:
        name: What its magic line says, before the version.
        version: The only version that is read.
        earlier: What is said of a file of an earlier version: what it holds, and what reads it.
    """

    name: str
    version: int
    earlier: str = ""

    @property
    def magic(self) -> bytes:
        """The first line of the file."""
        return f"deltafl {self.name} {self.version}\n".encode()

    @property
    def start(self) -> "Mark":
        """The mark of a file without frames."""
        return Mark(len(self.magic), 0, hashlib.sha256(self.magic).digest())


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a file goes: what a checkpoint must know to continue it.

    Attributes:
        size: length of the file in bytes.
        num_frames: number of frames in it.
        digest: the chain's digest after the last of them, 32 bytes.
    """

    size: int
    num_frames: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Link:
    """A frame in its place.

    Attributes:
        number: counts the frames of the file from 0.
        offset: where the frame's length begins in the file, in bytes.
        kind: the frame's first element.
        fields: its elements after kind and number.
        digest: the chain's digest after it, 32 bytes.
        end: where the file goes on after it, in bytes.
    """

    number: int
    offset: int
    kind: int
    fields: Sequence[Value]
    digest: bytes
    end: int

    @property
    def mark(self) -> Mark:
        """How far a file goes whose last frame it is."""
        return Mark(self.end, self.number + 1, self.digest)


class ChainWriter:
    """Appends frames, each handed to the operating system before `append` returns.

    So the end of this process loses none of them, not even by SIGKILL: at most the frame that was
    being written is cut short. Only `flush` saves them from the end of the machine.

    Args:
        path: the file. What lies beyond `mark`, or beyond `kept`, is cut off.
        form: its format.
        mark: where to continue; `form.start` begins anew.
        kept: how far the file stays as it is, where all that follows `mark` is made once more: what
            is appended must be what is there.

    Raises:
        ChainError: the file is shorter than `mark` says.
        RunDirectoryError: it is a link, or no regular file.
    """

    def __init__(self, path: Path, form: Format, mark: Mark, kept: Mark | None = None) -> None:
        begins = mark == form.start
        if not begins and path.stat().st_size < mark.size:
            raise ChainError(path, mark.num_frames, Damage.CUT, "the checkpoint knows of more")
        self._path, self._mark, self._kept = path, mark, (kept or mark).size
        self._file: BinaryIO = open_own(path)
        if begins:
            self._file.truncate()
            self._file.write(form.magic)
            sync_folder(path.parent)
        self._file.truncate(self._kept)
        self._file.seek(mark.size)

    @property
    def num_frames(self) -> int:
        """Frames so far: the number of the next one."""
        return self._mark.num_frames

    def append(self, kind: int, *fields: Value) -> None:
        """Append one frame.

        Raises:
            ChainError: another one is there, and is to be kept; the file is unchanged.
        """
        frame = msgpack.packb((kind, self._mark.num_frames, *fields))
        digest = hashlib.sha256(self._mark.digest + frame).digest()
        written = _LENGTH.pack(len(frame)) + frame + digest
        if self._mark.size >= self._kept:
            self._file.write(written)
            self._file.flush()
        elif self._file.read(len(written)) != written:
            raise ChainError(self._path, self._mark.num_frames, Damage.EDITED, NOT_REPEATED)
        size = self._mark.size + len(written)
        self._mark = Mark(size, self._mark.num_frames + 1, digest)

    def flush(self) -> Mark:
        """Bring everything to the disk; how far the file goes now."""
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


def read_chain(path: Path, form: Format, mark: Mark | None = None) -> Iterator[Link]:
    """Read and verify a file frame by frame; never holds more than one.

    Args:
        path: the file.
        form: its format.
        mark: where to begin: what comes before is not read, and taken to be as the mark says. By
            default, the whole file is read.

    Raises:
        ChainError: the file is of another format, or damaged; frames before the one that the error
            names are as written.
        OSError: the file cannot be read.
    """
    begin = form.start if mark is None else mark
    with open_regular(path) as file:
        _check_magic(path, file.readline(_MAX_MAGIC), form)
        size = os.fstat(file.fileno()).st_size
        if size < begin.size:
            raise ChainError(path, begin.num_frames, Damage.CUT, "the checkpoint knows of more")
        file.seek(begin.size)
        while begin.size < size:
            try:
                link = _read_next(path, file, size, begin)
            except ChainError as error:
                error.offset = begin.size
                raise
            yield link
            begin = link.mark


def check_mark(path: Path, form: Format, mark: Mark) -> None:
    """Check that a file goes at least as far as a mark, and has its digest there.

    Raises:
        ChainError: it does not, or it is of another format.
        OSError: the file cannot be read.
    """
    if mark == form.start:
        return
    with open_regular(path) as file:
        _check_magic(path, file.readline(_MAX_MAGIC), form)
        if os.fstat(file.fileno()).st_size < mark.size:
            raise ChainError(path, mark.num_frames, Damage.CUT, "the checkpoint knows of more")
        file.seek(max(0, mark.size - DIGEST_BYTES))
        if file.read(DIGEST_BYTES) != mark.digest:
            raise ChainError(path, mark.num_frames, Damage.EDITED, NOT_MARKED)


def _read_next(path: Path, file: BinaryIO, size: int, before: Mark) -> Link:
    """The frame that follows a mark, at which the file stands."""
    number = before.num_frames
    frame, stated = _read_frame(path, file, size - before.size, number)
    digest = hashlib.sha256(before.digest + frame).digest()
    elements = _elements(frame)
    if digest != stated:
        if stated.endswith(_ZEROS) and _only_zeros_follow(file):
            problem = (
                "zeros follow to the end of the file, as a power cut can leave them: to continue "
                f"without them, cut the file there (truncate -s {before.size} FILE)"
            )
            raise ChainError(path, number, Damage.EDITED, problem)
        raise _diagnose(path, file, elements, number)
    if elements is None or elements[_NUMBER] != number or type(elements[0]) is not int:
        raise ChainError(path, number, Damage.MALFORMED, "its writer made no frame of it")
    end = before.size + _length_of(frame)
    return Link(number, before.size, elements[0], elements[2:], digest, end)


def read_link(path: Path, file: BinaryIO, offset: int) -> Link:
    """Read one frame again, at an offset that `read_chain` gave; the chain is not verified.

    Raises:
        ChainError: there is no frame.
    """
    file.seek(offset)
    left = os.fstat(file.fileno()).st_size - offset
    frame, digest = _read_frame(path, file, left, 0)
    elements = _elements(frame)
    if elements is None or type(elements[0]) is not int or type(elements[_NUMBER]) is not int:
        raise ChainError(path, 0, Damage.MALFORMED, f"there is no frame at byte {offset}")
    end = offset + _length_of(frame)
    return Link(elements[_NUMBER], offset, elements[0], elements[2:], digest, end)


def _length_of(frame: bytes) -> int:
    """Bytes that a frame takes in the file, with what stands around it."""
    return _LENGTH.size + len(frame) + DIGEST_BYTES


def _check_magic(path: Path, line: bytes, form: Format) -> None:
    if line == form.magic:
        return
    if not line:
        raise ChainError(path, 0, Damage.EMPTY, "the file is empty")
    stem, _, version = line.rstrip(b"\n").rpartition(b" ")
    if line.endswith(b"\n") and stem == form.magic.rpartition(b" ")[0] and version.isdigit():
        is_earlier = int(version) < form.version
        helps = "use the release that wrote it" + ("" if is_earlier else ", or a newer one")
        if is_earlier and form.earlier:
            helps = form.earlier
        raise ChainError(
            path,
            0,
            Damage.VERSION,
            f"it has version {version.decode()} of the format, and this program reads version "
            f"{form.version}: {helps}",
        )
    raise ChainError(path, 0, Damage.FOREIGN, f"it does not begin as a {form.name} does")


def _read_frame(path: Path, file: BinaryIO, left: int, number: int) -> tuple[bytes, bytes]:
    """Frame and digest; never asks for more bytes than the file has left."""
    prefix = file.read(_LENGTH.size)
    wanted = _LENGTH.unpack(prefix)[0] + DIGEST_BYTES if len(prefix) == _LENGTH.size else left + 1
    if wanted > left - _LENGTH.size:
        raise ChainError(
            path, number, Damage.CUT, "the file ends inside it, or its length was changed"
        )
    body = file.read(wanted)
    return body[:-DIGEST_BYTES], body[-DIGEST_BYTES:]


def _elements(frame: bytes) -> list[Value] | None:
    """The elements of a frame, None where it is no array of two or more plain values."""
    try:
        elements = msgpack.unpackb(
            frame, use_list=True, max_ext_len=0, max_map_len=0, max_array_len=_MAX_ELEMENTS
        )
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    if not isinstance(elements, list) or len(elements) <= _NUMBER:
        return None
    return None if any(isinstance(element, list) for element in elements) else elements


def _diagnose(path: Path, file: BinaryIO, elements: list[Value] | None, number: int) -> ChainError:
    """What happened to a file whose chain breaks at a frame, from the numbers of the frames."""
    found = None if elements is None else elements[_NUMBER]
    if type(found) is not int or found == number:
        return ChainError(path, number, Damage.EDITED, "it was edited, or its digest was")
    if found < number or number in _numbers_that_follow(file):
        return ChainError(path, number, Damage.REORDERED, f"frame {found} stands in its place")
    return ChainError(
        path, number, Damage.MISSING, f"frames {number} to {found - 1} were taken out"
    )


def _only_zeros_follow(file: BinaryIO) -> bool:
    """Whether the rest of a file is zeros, if anything; the file stays where it is."""
    place = file.tell()
    is_zero = all(not any(piece) for piece in iter(partial(file.read, _PIECE), b""))
    file.seek(place)
    return is_zero


def _numbers_that_follow(file: BinaryIO) -> Iterator[int]:
    """Numbers that the frames up to the end claim, as far as lengths lead from one to the next."""
    while len(prefix := file.read(_LENGTH.size)) == _LENGTH.size:
        left = os.fstat(file.fileno()).st_size - file.tell()
        length = _LENGTH.unpack(prefix)[0]
        if length + DIGEST_BYTES > left:
            return
        elements = _elements(file.read(length))
        file.seek(DIGEST_BYTES, os.SEEK_CUR)
        if elements is not None and type(elements[_NUMBER]) is int:
            yield elements[_NUMBER]
