"""What is easily left out of a record, and the one thing that the auditor calls by another name."""

from dataclasses import replace

import pytest
import records
from leaks_by_devices import (
    UPDATE,
    VICTIM,
    a_second_advertisement_with_other_keys,
    losses_behind_masked_vectors,
)
from leaks_by_servers import SameModelStage
from staged_runs import Edit, Kind, Over, SignedStage, Stage, played, write

from deltafl.secagg import Adversary
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.options import Options


def a_question_that_is_left_out(edit):
    """What a server has told one device differently, it takes out of its record."""
    edit.remove(*edit.find(1, Kind.SLOT, slot=UPDATE, peer=VICTIM))


def a_request_that_is_left_out(edit):
    edit.remove(*edit.find(1, Kind.REQUEST, slot=UPDATE, peer=VICTIM))


def the_end_of_a_round_that_is_left_out(edit):
    edit.remove(edit.end(1))


def a_message_of_a_stranger(edit):
    entry = edit.find(1, Kind.MASKED, slot=UPDATE)[-1]
    edit.insert_after(entry, replace(entry, peer=999))


GAPS = [
    (a_question_that_is_left_out, Stage),
    (a_request_that_is_left_out, Stage),
    (the_end_of_a_round_that_is_left_out, Stage),
    (a_second_advertisement_with_other_keys, Stage),
    (a_message_of_a_stranger, Stage),
]


@pytest.mark.parametrize(("lie", "stage"), GAPS, ids=lambda v: getattr(v, "__name__", v))
def test_it_is_found_by_any_rule(tmp_path, lie, stage):
    edit = Edit(played(stage))
    lie(edit)
    write(edit.entries, tmp_path / "t.sqlite")
    assert {finding.rule for finding in audit(tmp_path / "t.sqlite").findings} - {"search.narrow"}


def test_nothing_follows_the_closing(tmp_path):
    path = tmp_path / "t.sqlite"
    write(Edit(played(Stage)).entries, path)
    assert not serious(path)
    rows = records.rows_of(path)
    records.write_rows(path, [*rows, rows[-1]])
    assert serious(path) == {"record.malformed": len(rows)}


def serious(path):
    return {
        finding.rule: finding.evidence[0].record
        for finding in audit(path, Options(min_cohort=5)).findings
        if finding.severity >= Severity.MEDIUM
    }


def test_numbers_behind_a_message_are_values(tmp_path):
    edit = Edit(played(Stage))
    losses_behind_masked_vectors(edit)
    write(edit.entries, tmp_path / "t.sqlite")
    assert "clear.values" in {finding.rule for finding in audit(tmp_path / "t.sqlite").findings}


def severities(stage, lie, rule, folder, options=None):
    """How bad the findings of a rule are, in a run in which somebody lies."""
    edit = Edit(played(stage))
    lie(edit)
    write(edit.entries, folder / "t.sqlite")
    report = audit(folder / "t.sqlite", options)
    return {finding.severity for finding in report.findings if finding.rule == rule}


def nobody_answers(number, kind, **at):
    """All that follows a message in a round is left out; the round was given up.

    So are the answers that came before.
    """

    def lie(edit):
        (*_, last) = edit.find(number, kind, **at)
        begins, end = edit.place(last) + 1, edit.place(edit.end(number))
        edit.remove(*edit.entries[begins:end])
        edit.remove(*edit.find(number, Kind.MASKED, **at))
        edit.put(edit.end(number), Over(number, "all devices refuse"))

    return lie


@pytest.mark.parametrize(("answers", "severity"), [(True, Severity.HIGH), (False, Severity.LOW)])
def test_a_model_that_is_shown_again_is_worse_where_devices_answer_again(
    tmp_path, answers, severity
):
    lie = (lambda _: None) if answers else nobody_answers(2, Kind.OPEN)
    assert severities(SameModelStage, lie, "retry.one-model", tmp_path) == {severity}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adversary", "found"), [(Adversary.ACTIVE, {Severity.HIGH}), (Adversary.CURIOUS, set())]
)
def test_searches_that_are_not_verified_may_be_accepted(tmp_path, adversary, found):
    options = Options(adversary=adversary)
    write(played(SignedStage).entries, tmp_path / "t.sqlite")
    findings = audit(tmp_path / "t.sqlite", options).findings
    said = (one.severity for one in findings if "the search is not verified" in one.detail)
    assert set(said) == found
