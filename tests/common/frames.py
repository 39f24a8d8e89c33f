"""The frames of a chained file, to be damaged, and files whose chain is right over any frames."""

import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path

import msgpack

from deltafl.sim.record.chain import Format
from deltafl.sim.record.transcript import TRANSCRIPT

MAGIC = TRANSCRIPT.magic
DIGEST = 32
PREFIX = 4


def frames_of(path: Path, form: Format = TRANSCRIPT) -> list[bytes]:
    """The frames, without lengths and digests."""
    return [content for content, _ in _framed(path.read_bytes(), form)]


def starts_of(path: Path, form: Format = TRANSCRIPT) -> list[int]:
    """Where each frame's length begins; last, where the file ends."""
    starts = [start for _, start in _framed(path.read_bytes(), form)]
    return [*starts, path.stat().st_size]


def whole_frames(path: Path, form: Format = TRANSCRIPT) -> list[bytes]:
    """The frames with lengths and digests."""
    content, starts = path.read_bytes(), starts_of(path, form)
    return [content[a:b] for a, b in itertools.pairwise(starts)]


def chained(frames: Iterable[bytes], form: Format = TRANSCRIPT) -> bytes:
    """A file whose chain is right over these frames."""
    content, digest = form.magic, hashlib.sha256(form.magic).digest()
    for frame in frames:
        digest = hashlib.sha256(digest + frame).digest()
        content += len(frame).to_bytes(PREFIX, "big") + frame + digest
    return content


def records(path: Path) -> list[list[object]]:
    """The elements of every frame."""
    return [msgpack.unpackb(frame) for frame in frames_of(path)]


def of_records(elements: Iterable[list[object]]) -> bytes:
    """A file of these records, numbered anew, whose chain is right."""
    return chained(
        msgpack.packb([kind, number, *rest]) for number, (kind, _, *rest) in enumerate(elements)
    )


def _framed(content: bytes, form: Format) -> list[tuple[bytes, int]]:
    found, start = [], len(form.magic)
    while start < len(content):
        length = int.from_bytes(content[start : start + PREFIX], "big")
        found.append((content[start + PREFIX : start + PREFIX + length], start))
        start += PREFIX + length + DIGEST
    return found
