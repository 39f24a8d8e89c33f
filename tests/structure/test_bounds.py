"""Every field of a server's messages has a row in docs/spec.md that says what bounds it."""

import re
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

import pytest
from spec_tables import SPEC

from deltafl.protocol.messages import Envelope
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg.messages import ServerMessage

TEXT = SPEC.read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)\.(\w+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
KINDS = {"–", "own", "format", "policy"}


def within(*types):
    """All dataclasses that values of these types may hold."""
    found, waiting = set(), [*types]
    while waiting:
        one = waiting.pop()
        waiting += [part for part in get_args(one) if part is not Ellipsis]
        if is_dataclass(one) and one not in found:
            found.add(one)
            waiting += [get_type_hints(one)[field.name] for field in fields(one) if field.init]
    return found


def sent():
    """Every field of every message of a server, as the table names it."""
    messages = within(*get_args(ServerMessage), *get_args(Envelope))
    return {
        f"{one.__name__}.{field.name}" for one in messages for field in fields(one) if field.init
    }


def table(text):
    """The rows of the page: what bounds a field, and by what."""
    part = text[text.index("<!-- bounds:begin -->") : text.index("<!-- bounds:end -->")]
    rows = ROW.findall(part)
    assert len(rows) == part.count("\n| `")
    found = {f"{of}.{name}": (set(kinds.split(", ")), by) for of, name, kinds, by in rows}
    assert len(found) == len(rows)
    return found


def differences(text):
    """Fields without a row, rows without a field, and limits that bound nothing or do not exist."""
    rows = table(text)
    limits = {field.name for field in fields(RoundPolicy)}
    by_policy = {
        name
        for kinds, by in rows.values()
        if "policy" in kinds
        for name in re.findall(r"`(\w+)`", by)
    }
    mentioned = {name for _, by in rows.values() for name in re.findall(r"`(m\w+_\w+)`", by)}
    return {
        "fields": sent() ^ rows.keys(),
        "limits": limits - by_policy,
        "unknown": mentioned - limits,
        "kinds": {name for name, (kinds, _) in rows.items() if not kinds <= KINDS},
        "no limit named": {
            name for name, (kinds, by) in rows.items() if "policy" in kinds and "`" not in by
        },
    }


def test_every_field_of_a_servers_messages_has_a_row_and_every_limit_bounds_one():
    assert {what: found for what, found in differences(TEXT).items() if found} == {}


def test_the_messages_are_found():
    assert {"SlotSpec.length", "LossGrid.bound", "Noise.variance", "Query.pivots"} <= sent()
    assert "SessionParams.digest" not in sent()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("| `UpdateParams.clip` | policy |", "| `UpdateParams.clips` | policy |", "fields"),
        ("`min_update_clip`, `max_update_clip` |", "`min_update_clip` |", "limits"),
        ("`min_update_clip`, `max", "`min_update_clips`, `max", "unknown"),
        ("| `UpdateParams.clip` | policy |", "| `UpdateParams.clip` | nobody |", "kinds"),
    ],
)
def test_a_wrong_table_is_found(old, new, what):
    assert TEXT.count(old) == 1
    assert differences(TEXT.replace(old, new))[what]
