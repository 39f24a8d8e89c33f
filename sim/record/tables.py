"""The tables of a run's record and of its truth: all that the two files can hold.

docs/record.md says what stands in them.
"""

from typing import Final

from deltafl.sim.record.chain import Tables
from deltafl.sim.record.database import Form

HAPPENED: Final[Tables] = {
    "rounds": "round INTEGER, what TEXT, said TEXT NULL, data BLOB NULL",
    "messages": "round INTEGER, trip INTEGER, sent INTEGER, peer INTEGER, size INTEGER,"
    " sha256 BLOB",
    "sums": "round INTEGER, slot INTEGER, length INTEGER, sha256 BLOB, contributors BLOB,"
    " words BLOB",
    "events": "round INTEGER, event TEXT",
    "evaluations": "round INTEGER, theta TEXT, split TEXT, device TEXT, num_samples INTEGER,"
    " loss REAL, error REAL",
}
"""The tables of the record's chain."""

TRUE: Final[Tables] = {
    "run": "id BLOB, salt BLOB",
    "devices": "round INTEGER, device INTEGER, loss REAL NULL, weight INTEGER, passed INTEGER,"
    " delta BLOB NULL",
    "seeds": "round INTEGER, device INTEGER, tag BLOB, seed BLOB, identity BLOB",
}
"""Those of the truth's."""

_DERIVED: Final = {
    "bodies": "number INTEGER PRIMARY KEY, data BLOB",
    "about": "name TEXT PRIMARY KEY, value TEXT",
    "arrays": "owner TEXT, name TEXT, dtype TEXT, shape TEXT, data BLOB, PRIMARY KEY (owner, name)",
    "measured": "round INTEGER, level INTEGER, result TEXT, PRIMARY KEY (round, level)",
    "attackers": "number INTEGER PRIMARY KEY, round INTEGER, line TEXT",
}


def _chained(tables: Tables) -> dict[str, str]:
    body = {"messages": ", body INTEGER"}  # where its bytes are, which the chain does not cover
    return {
        name: f"number INTEGER PRIMARY KEY, digest BLOB, {columns}{body.get(name, '')}"
        for name, columns in tables.items()
    }


RECORD: Final = Form("record", 0x64464C52, 1, {**_chained(HAPPENED), **_DERIVED})
TRUTH: Final = Form("truth", 0x64464C54, 1, _chained(TRUE))
