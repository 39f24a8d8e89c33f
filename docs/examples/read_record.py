"""Read and verify a run's record without this project: the standard library and msgpack do.

    python docs/examples/read_record.py runs/quickstart/record.sqlite [HEAD]

Prints what the server of a run received, sent and learnt, by kind of message; HEAD is the digest,
in hex, that the run's summary states. The format is in docs/record.md, and nothing here is shared
with the program that writes it.
"""

import hashlib
import sqlite3
import sys
from collections import Counter

import msgpack

TABLES = {
    "rounds": "round, what, said, data",
    "messages": "round, trip, sent, peer, size, sha256",
    "sums": "round, slot, length, sha256, contributors, words",
    "events": "round, event",
    "evaluations": "round, theta, split, device, num_samples, loss, error",
}
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


def head_of(db: sqlite3.Connection) -> str:
    """Verify the chain; its last digest."""
    rows = [
        (number, digest, table, fields)
        for table, columns in TABLES.items()
        for number, digest, *fields in db.execute(f"SELECT number, digest, {columns} FROM {table}")  # noqa: S608
    ]
    last = hashlib.sha256(b"deltafl record 1").digest()
    for expected, (number, digest, table, fields) in enumerate(sorted(rows, key=lambda r: r[0])):
        last = hashlib.sha256(last + msgpack.packb([table, number, *fields])).digest()
        if number != expected or digest != last:
            raise SystemExit(f"the chain breaks at row {expected}")
    return last.hex()


def kind_of(sent: bool, data: bytes) -> str:
    """What a message is, by the bytes that begin it (docs/spec.md, sections 7 and 12)."""
    if not sent:
        return MESSAGES.get(data[2], "unknown") if len(data) > 2 else "unknown"
    fields = 3 if data[:1] == b"\xdc" else 1  # arrays of 16 fields and more have a longer header
    kind = dict(enumerate(KINDS, 33)).get(data[fields + 1]) or "unknown"
    if kind == "relay":  # version, kind, and the message as a byte string of 1, 2 or 4 length bytes
        start = fields + 3 + {0xC4: 1, 0xC5: 2, 0xC6: 4}[data[fields + 2]]
        return MESSAGES.get(data[start + 2], "unknown")
    return kind


def main() -> None:
    """Print a table of everything that passed the server, and check the head if one is given."""
    db = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
    head = head_of(db)
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    passed = "SELECT m.number, sent, size, sha256, data FROM messages m LEFT JOIN bodies b"
    for number, sent, size, sha256, data in db.execute(f"{passed} ON b.number = body"):
        if data is not None and hashlib.sha256(data).digest() != sha256:
            raise SystemExit(f"row {number} has another digest than its message")
        what = "sent" if sent else "received", kind_of(sent, data) if data else "not kept"
        counts[what] += 1
        sizes[what] += size
    for (direction, kind), count in sorted(counts.items()):
        print(f"{direction:<9} {kind:<22} {count:>9} {sizes[direction, kind]:>13} bytes")
    rounds, lost = 0, set[int]()
    for number, what in db.execute("SELECT round, what FROM rounds ORDER BY number"):
        rounds = number if what == "begin" else rounds
        lost.update(range(number + 1, rounds + 1) if what == "resumed" else ())
    (sums,) = db.execute("SELECT count(*) FROM sums").fetchone()
    print(f"{rounds} rounds, {len(lost)} lost, {sums} sums; head {head}")
    if len(sys.argv) > 2 and sys.argv[2] != head:
        raise SystemExit(f"the head is not {sys.argv[2]}")


if __name__ == "__main__":
    main()
