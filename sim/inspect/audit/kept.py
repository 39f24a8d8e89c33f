"""What is kept of messages by headers that should look random: beginnings of vectors and boxes.

Where a round is recorded whole, sums and shares are computed again from these bytes. Of headers
they cannot be, and nobody would see text in the kept bytes, or in the digest of the others.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from deltafl.secagg import SessionParams, keys, shamir
from deltafl.secagg import wire as session_wire
from deltafl.secagg.params import DIGEST_SIZE
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.field_tests import Rows
from deltafl.sim.inspect.audit.prefixes import scan
from deltafl.sim.inspect.audit.seen import Seen

_FIRST: Final = 3  # version, kind, tag
_POSITION: Final = 4  # bytes before a box
_FEWEST: Final = 4  # bytes that are tested


def kept_strings(seen: Seen, params: SessionParams) -> Iterator[tuple[str, Rows]]:
    """Byte strings of a device's message, by name: vector, boxes, and digest if it is not whole.

    All strings of a name have one size.

    Args:
        seen: A message of a session, with its first bytes.
        params: The session's.
    """
    prefix, content = scan(seen.record.head), seen.content
    fields = prefix.fields[_FIRST:] if prefix is not None else ()
    if not seen.record.is_whole:
        yield "digests of messages", _rows(seen.record.sha256, DIGEST_SIZE)
    match content.kind, fields:
        case Kind.MASKED, (int(slot), bytes(packed), *_) if slot < len(params.slots):
            spec = params.slots[slot]
            random = packed[: spec.wire_length * spec.ring_bits // 8]
            if len(random) >= _FEWEST:
                yield f"first {len(random)} bytes of vectors", _rows(random, len(random))
        case Kind.SHARE_KEYS, (bytes(commitments), *rest) if content.message is None:
            yield "commitments to seeds", _rows(commitments, DIGEST_SIZE)
            for boxes in rest:
                if isinstance(boxes, bytes):
                    yield from _of_boxes(boxes, session_wire.box_size(params))


def _of_boxes(boxes: bytes, size: int) -> Iterator[tuple[str, Rows]]:
    for start in range(_POSITION, len(boxes), _POSITION + size):
        box = boxes[start : start + size]
        contents = box[keys.NONCE_SIZE : size - (keys.OVERHEAD - keys.NONCE_SIZE)]
        whole = len(contents) // shamir.SHARE_SIZE * shamir.SHARE_SIZE
        yield "nonces of boxes", _rows(box[: keys.NONCE_SIZE], keys.NONCE_SIZE)
        yield "contents of boxes", _rows(contents, shamir.SHARE_SIZE)
        if (left := len(contents) - whole) >= _FEWEST:
            yield f"last {left} kept bytes of boxes", _rows(contents[whole:], left)


def _rows(joined: bytes, size: int) -> Rows:
    """As many strings of a size as there are."""
    count = len(joined) // size
    return np.frombuffer(joined[: count * size], dtype=np.uint8).reshape(count, size)
