"""What the first bytes of a message tell, if a transcript keeps only those."""

from dataclasses import dataclass
from typing import Final

from deltafl.secagg.codec import Value

_BINARY: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_INTEGER: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of a flat msgpack array of naturals and byte strings (docs/spec.md §7.1).

    Attributes:
        num_fields: How many fields the array has.
        fields: Those that begin in the first bytes; the last byte string may be cut short.
    """

    num_fields: int
    fields: tuple[Value, ...]

    @property
    def begins_all(self) -> bool:
        """Whether every field begins in the first bytes."""
        return len(self.fields) == self.num_fields


def scan(data: bytes) -> Prefix | None:
    """Read the fields of a message from its first bytes; None where it is no such array.

    >>> scan(bytes.fromhex("93 01 cc 80 c4 03 61"))
    Prefix(num_fields=3, fields=(1, 128, b'a'))
    """
    if data[:1] == b"\xdc" and len(data) >= 3:
        num_fields, at = int.from_bytes(data[1:3], "big"), 3
    elif data[:1] and data[0] >> 4 == 9:
        num_fields, at = data[0] & 15, 1
    else:
        return None
    fields: list[Value] = []
    while at < len(data) and len(fields) < num_fields:
        first = data[at]
        at += 1
        if first < 0x80:
            fields.append(first)
            continue
        size = _BINARY.get(first) or _INTEGER.get(first)
        if size is None:
            return None
        if at + size > len(data):
            break
        number = int.from_bytes(data[at : at + size], "big")
        at += size
        if first in _INTEGER:
            fields.append(number)
        else:
            fields.append(data[at : at + number])
            at += number
    return Prefix(num_fields, tuple(fields))
