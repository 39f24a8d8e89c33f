"""Every field of every message and record has a row in the auditor's table, and says what it is."""

import dataclasses

import pytest
from audit_tables import PAGE, fields_table

from deltafl.protocol import messages as of_rounds
from deltafl.secagg import messages as of_sessions
from deltafl.sim.inspect.audit.fields import FIELDS, FieldKind
from deltafl.sim.record import transcript, truth

NOT_ON_RECORD = {
    truth.Told,
    truth.NotedDraws,
    transcript.TranscriptWriter,
    transcript._Placed,
    transcript.BegunRound,
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


def rows_missing(one: type) -> set[str]:
    """The fields of a class that have no row, and the rows that have no field."""
    return {field.name for field in dataclasses.fields(one)} ^ set(FIELDS.get(one, {}))


@pytest.mark.parametrize("one", CLASSES, ids=lambda one: one.__name__)
def test_every_field_has_a_row(one):
    assert rows_missing(one) == set()


def test_every_row_is_of_a_class():
    assert set(FIELDS) == set(CLASSES)


def test_every_row_says_how_it_is_checked():
    rows = [field for fields in FIELDS.values() for field in fields.values()]
    assert all(field.check and not field.check.endswith(".") for field in rows)
    assert {field.kind for field in rows} == set(FieldKind)


def test_the_table_is_on_the_page():
    assert fields_table() in PAGE.read_text(encoding="utf-8")
    assert "| `AdvertiseKeys` | `sealing_key` | random |" in fields_table()


def test_a_field_without_a_row_is_noticed():
    """Control: a message with one more field, and a message that nobody thought of."""
    more = dataclasses.make_dataclass("ShareReceipt", ["refused", "battery"])
    assert rows_missing(more) == {"refused", "battery"}
    assert set(FIELDS[of_sessions.ShareReceipt]) ^ {f.name for f in dataclasses.fields(more)} == {
        "battery"
    }
