"""Frames of the transport in a message of Flower's.

They are arrays of bytes, because Flower carries large arrays several times faster than large values
of other records.
"""

from collections.abc import Sequence
from typing import Final

from flwr.app import Array, ArrayRecord, RecordDict

FRAMES: Final = "deltafl-frames"
"""The name of the record in a message."""

_TYPE: Final = "deltafl.frame"
_BYTES: Final = "uint8"


def record_of(frames: Sequence[bytes]) -> ArrayRecord:
    """A record that carries frames, in order."""
    return ArrayRecord(
        {str(i): Array(_BYTES, (len(one),), _TYPE, one) for i, one in enumerate(frames)}
    )


def frames_of(content: RecordDict, *, most: int, longest: int) -> list[bytes]:
    """The frames that a message carries.

    Args:
        content: of the message.
        most: frames.
        longest: bytes of all of them together.

    Raises:
        ValueError: there are none, or more or longer ones.
    """
    record = content.array_records.get(FRAMES)
    if record is None:
        raise ValueError(f"the message has no record {FRAMES!r}")
    arrays = list(record.values())
    if len(arrays) > most or sum(len(one.data) for one in arrays) > longest:
        raise ValueError(f"the message has more than {most} frames, or more than {longest} bytes")
    return [bytes(one.data) for one in arrays]
