"""The tables of a run's record and of its truth: all that the two files can hold.

docs/record.md says what stands in them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from deltafl.sim.record.chain import Tables
from deltafl.sim.record.database import Form

_HAPPENED: Final = {
    "rounds": ("round INTEGER", "what TEXT", "said TEXT", "data BLOB"),
    "messages": (
        "round INTEGER",
        "trip INTEGER",
        "sent INTEGER",
        "peer INTEGER",
        "size INTEGER",
        "sha256 BLOB",
    ),
    "sums": (
        "round INTEGER",
        "slot INTEGER",
        "length INTEGER",
        "sha256 BLOB",
        "contributors BLOB",
        "words BLOB",
    ),
    "events": ("round INTEGER", "event TEXT"),
    "evaluations": (
        "round INTEGER",
        "theta TEXT",
        "split TEXT",
        "device TEXT",
        "num_samples INTEGER",
        "loss REAL",
        "error REAL",
    ),
}
_TRUE: Final = {
    "run": ("id BLOB", "salt BLOB"),
    "devices": (
        "round INTEGER",
        "device INTEGER",
        "loss REAL",
        "weight INTEGER",
        "passed INTEGER",
        '"update" BLOB',
    ),
    "seeds": ("round INTEGER", "device INTEGER", "tag BLOB", "seed BLOB", "identity BLOB"),
}
_DERIVED: Final = (
    "CREATE TABLE bodies (number INTEGER PRIMARY KEY, data BLOB)",
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE arrays (owner TEXT, name TEXT, dtype TEXT, shape TEXT, data BLOB,"
    " PRIMARY KEY (owner, name))",
    "CREATE TABLE measured (round INTEGER, level INTEGER, result TEXT, PRIMARY KEY (round, level))",
    "CREATE TABLE attackers (number INTEGER PRIMARY KEY, round INTEGER, line TEXT)",
)


def _made(tables: Mapping[str, Sequence[str]], **uncovered: str) -> list[str]:
    return [
        f"CREATE TABLE {name} (number INTEGER PRIMARY KEY, digest BLOB, {', '.join(columns)}"
        + (f", {uncovered[name]})" if name in uncovered else ")")
        for name, columns in tables.items()
    ]


def _columns(tables: Mapping[str, Sequence[str]]) -> Tables:
    return {
        name: tuple(column.partition(" ")[0] for column in columns)
        for name, columns in tables.items()
    }


RECORD: Final = Form(
    "record", 0x64464C52, 1, (*_made(_HAPPENED, messages="body INTEGER"), *_DERIVED)
)
HAPPENED: Final = _columns(_HAPPENED)
"""The tables of the record's chain."""

TRUTH: Final = Form("truth", 0x64464C54, 1, _made(_TRUE))
TRUE: Final = _columns(_TRUE)
"""Those of the truth's."""
