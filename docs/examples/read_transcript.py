"""Read and verify a transcript without this project: the standard library and msgpack do.

    python docs/examples/read_transcript.py runs/quickstart/transcript.bin [HEAD]

Prints what the server of a run received, sent and learnt, by kind of message; HEAD is the digest,
in hex, that the run's summary states. The format is in docs/transcript.md, and nothing here is
shared with the program that writes it.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

import msgpack

MAGIC = b"deltafl transcript 3\n"
OPENING, MESSAGE, SUM, END, CLOSING, RESUMED, BEGIN = range(7)
KINDS = "announcement", "relay", "query", "threshold", "", "", "noise", "radius"
MESSAGES = {  # of those of the server, the ones that come in a relay
    0x02: "roster",
    0x03: "delivery of shares",
    0x05: "consistency check",
    0x06: "request for shares",
    0x11: "keys",
    0x12: "sealed shares",
    0x13: "receipt",
    0x14: "masked vector",
    0x15: "signature",
    0x16: "shares",
}


def frames(file: BinaryIO) -> Iterator[list]:
    """Every record, once the chain up to it is verified; the last item is the head digest."""
    if file.readline(64) != MAGIC:
        raise SystemExit("this is no transcript of version 3")
    digest, number = hashlib.sha256(MAGIC).digest(), 0
    while prefix := file.read(4):
        size = int.from_bytes(prefix, "big")
        frame, stated = file.read(size), file.read(32)
        if len(prefix) < 4 or len(frame) < size or len(stated) < 32:
            raise SystemExit(f"record {number} is cut short")
        digest = hashlib.sha256(digest + frame).digest()
        if digest != stated:
            raise SystemExit(f"the chain breaks at record {number}")
        record = msgpack.unpackb(frame)
        if record[1] != number:
            raise SystemExit(f"record {number} says that it is number {record[1]}")
        yield record
        number += 1
    yield [None, digest]


def kind_of(sent: bool, head: bytes) -> str:
    """What a message is, by the bytes that begin it (docs/spec.md, sections 7 and 12)."""
    if not sent:
        return MESSAGES.get(head[2], "unknown") if len(head) > 2 else "unknown"
    fields = 3 if head[:1] == b"\xdc" else 1  # arrays of 16 fields and more have a longer header
    kind = dict(enumerate(KINDS, 33)).get(head[fields + 1]) or "unknown"
    if kind == "relay":  # version, kind, and the message as a byte string of 1, 2 or 4 length bytes
        start = fields + 3 + {0xC4: 1, 0xC5: 2, 0xC6: 4}[head[fields + 2]]
        return MESSAGES.get(head[start + 2], "unknown")
    return kind


def main() -> None:
    """Print a table of everything in the transcript, and check its head if one is given."""
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    kinds: dict[int, str] = {}  # of the messages that others repeat, by number of the record
    rounds, lost, sums = 0, set[int](), 0
    with open(sys.argv[1], "rb") as file:
        for record in frames(file):
            if record[0] == OPENING:
                print(f"run {record[2].hex()}, {record[3]}")
            elif record[0] == MESSAGE:
                _, number, _round, sent, _peer, size, sha256, head = record
                if isinstance(head, int):
                    kind = kinds[head]
                else:
                    if len(head) == size and hashlib.sha256(head).digest() != sha256:
                        raise SystemExit(f"record {number} has another digest than its message")
                    kind = kinds[number] = kind_of(sent, head)
                counts["sent" if sent else "received", kind] += 1
                sizes["sent" if sent else "received", kind] += size
            sums += record[0] == SUM
            rounds = record[2] if record[0] == BEGIN else rounds
            lost.update(range(record[2] + 1, rounds + 1) if record[0] == RESUMED else ())
            head_digest = record[1].hex() if record[0] is None else ""
    for (direction, kind), count in sorted(counts.items()):
        print(f"{direction:<9} {kind:<22} {count:>9} {sizes[direction, kind]:>13} bytes")
    print(f"{rounds} rounds, {len(lost)} lost, {sums} sums; head {head_digest}")
    if len(sys.argv) > 2 and sys.argv[2] != head_digest:
        raise SystemExit(f"the head is not {sys.argv[2]}")


if __name__ == "__main__":
    main()
