"""Every field of every message and record has a row in docs/audit.md, and says what it is."""

import dataclasses
import re
from collections import defaultdict

import pytest
from audit_tables import PAGE

from deltafl.protocol import messages as of_rounds
from deltafl.secagg import messages as of_sessions
from deltafl.sim.record import transcript, truth

NOT_ON_RECORD = {
    truth.Told,
    transcript.TranscriptWriter,
    transcript._Row,
}
"""Classes of these modules that are no messages or records."""

CLASSES = [
    value
    for module in (of_sessions, of_rounds, transcript, truth)
    for value in vars(module).values()
    if dataclasses.is_dataclass(value)
    and value.__module__ == module.__name__
    and value not in NOT_ON_RECORD
]


ROW = re.compile(
    r"^\| `(\w+)` \| `(\w+)` \| (random|derived|public|private) \| (.*\S) \|$", re.MULTILINE
)


def rows_of(page: str) -> dict[str, dict[str, str]]:
    """How each field is checked, by class and name."""
    rows: dict[str, dict[str, str]] = defaultdict(dict)
    for owner, name, _, how in ROW.findall(page):
        assert name not in rows[owner], f"{owner}.{name} has two rows"
        rows[owner][name] = how
    return dict(rows)


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))


def rows_missing(one: type) -> set[str]:
    """The fields of a class that have no row, and the rows that have no field."""
    return {field.name for field in dataclasses.fields(one)} ^ set(ROWS.get(one.__name__, {}))


@pytest.mark.parametrize("one", CLASSES, ids=lambda one: one.__name__)
def test_every_field_has_a_row(one):
    assert rows_missing(one) == set()


def test_every_row_is_of_a_class():
    assert set(ROWS) == {one.__name__ for one in CLASSES}


def test_a_field_without_a_row_is_noticed():
    """Control: a message with one more field, and a message that nobody thought of."""
    more = dataclasses.make_dataclass("ShareReceipt", ["links", "battery"])
    assert rows_missing(more) == {"battery"}
    assert rows_missing(dataclasses.make_dataclass("Telemetry", ["battery"])) == {"battery"}
    assert rows_of("| `A` | `b` | secret | how |") == {}
