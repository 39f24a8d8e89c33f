"""Zip archives whose directory may lie: about sizes, and by deflating next to nothing to a lot."""

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

MAX_RATIO: Final = 128
"""How many bytes may come of a packed one, where more than `ALWAYS_ALLOWED` come."""

ALWAYS_ALLOWED: Final = 1 << 28
"""As many bytes may come of anything: an array of zeros packs by a thousand."""

_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_CHUNK: Final = 1 << 20
_SHOWN: Final = 100  # characters of a message, which may quote any number of bytes
_RAISED: Final = (
    EOFError,
    IndexError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What `zipfile` raises over bytes that are no archive, or one of a kind that it cannot read."""


@contextmanager
def opened_zip(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """Open an archive; whatever `zipfile` raises over its bytes, also later, is a ValueError.

    Raises:
        ValueError: it is damaged, or not an archive.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except _RAISED as error:
        raise ValueError(f"not a readable zip archive ({str(error)[:_SHOWN]!a})") from error
    except OSError as error:
        if error.filename is not None:  # of another file
            raise
        raise ValueError("not a readable zip archive: a place in it is not in the file") from error


def unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> Iterator[bytes]:
    """The content of an entry, piece by piece; nothing is allocated for sizes that it only states.

    Args:
        archive: of `opened_zip`.
        info: the entry.
        most: bytes that it may have.

    Raises:
        ValueError: it is packed by a method that is not read, is larger than `most` or than its
            packed size explains, or is cut short.
    """
    if info.compress_type not in _METHODS or info.flag_bits & 1:
        raise ValueError(f"{info.filename!a:.60} is encrypted, or packed by another method")
    # what is packed is no more than the file has, whatever the directory says
    file = archive.fp
    if file is None:
        raise ValueError("the archive is closed")
    held = file.seek(0, os.SEEK_END)
    limit = min(most, max(ALWAYS_ALLOWED, MAX_RATIO * min(info.compress_size, held)))
    size = 0
    with archive.open(info) as member:
        while chunk := member.read(_CHUNK):
            size += len(chunk)
            if size > limit:
                raise ValueError(f"{info.filename!a:.60} unpacks to more than {limit:,} bytes")
            yield chunk
    if size != info.file_size:
        raise ValueError(f"{info.filename!a:.60} has {size:,} bytes and states {info.file_size:,}")
