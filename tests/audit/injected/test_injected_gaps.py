"""What is easily left out of a record, and the one thing that the auditor calls by another name."""

from dataclasses import replace

import pytest
from leaks_by_devices import (
    UPDATE,
    VICTIM,
    a_second_advertisement_with_other_keys,
    losses_behind_masked_vectors,
)
from leaks_by_servers import SameModelStage
from leaks_in_searches import SmallTailStage
from staged_runs import Edit, Kind, OneQuestionStage, Over, SignedStage, Stage, played, write

from deltafl.secagg import Adversary
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.chain import ChainWriter, read_chain
from deltafl.sim.record.transcript import TRANSCRIPT


class LongStage(OneQuestionStage):
    """An honest run whose masked vectors are longer than what is kept of them in headers."""

    length = 240


def bytes_beyond_what_is_kept(edit):
    """All vectors are longer by the same, which their sizes tell."""
    for entry in edit.find(1, Kind.MASKED):
        edit.put_data(entry, entry.data + b"12345678")


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
    (bytes_beyond_what_is_kept, LongStage, "headers"),
    (a_question_that_is_left_out, Stage, "full"),
    (a_request_that_is_left_out, Stage, "full"),
    (the_end_of_a_round_that_is_left_out, Stage, "full"),
    (a_second_advertisement_with_other_keys, Stage, "full"),
    (a_message_of_a_stranger, Stage, "full"),
]


@pytest.mark.parametrize(("lie", "stage", "mode"), GAPS, ids=lambda v: getattr(v, "__name__", v))
def test_it_is_found_by_any_rule(tmp_path, lie, stage, mode):
    edit = Edit(played(stage))
    lie(edit)
    write(edit.entries, tmp_path / "t.bin", mode)
    assert {finding.rule for finding in audit(tmp_path / "t.bin").findings} - {"search.narrow"}


def test_nothing_follows_the_closing(tmp_path):
    write(Edit(played(Stage)).entries, tmp_path / "whole.bin", "full")
    with ChainWriter(tmp_path / "t.bin", TRANSCRIPT, TRANSCRIPT.start) as longer:
        *_, closing = (
            longer.append(link.kind, *link.fields) or link
            for link in read_chain(tmp_path / "whole.bin", TRANSCRIPT)
        )
        longer.append(closing.kind, *closing.fields)
    assert not serious(tmp_path / "whole.bin")
    assert serious(tmp_path / "t.bin") == {"record.malformed": closing.number + 1}


def serious(path):
    return {
        finding.rule: finding.evidence[0].record
        for finding in audit(path, Options(min_cohort=5)).findings
        if finding.severity >= Severity.MEDIUM
    }


@pytest.mark.xfail(reason="numbers in binary behind a message are called unknown, not values")
def test_numbers_behind_a_message_are_values(tmp_path):
    edit = Edit(played(Stage))
    losses_behind_masked_vectors(edit)
    write(edit.entries, tmp_path / "t.bin")
    assert "clear.values" in {finding.rule for finding in audit(tmp_path / "t.bin").findings}


def severities(stage, lie, rule, folder, options=None):
    """How bad the findings of a rule are, in a run in which somebody lies."""
    edit = Edit(played(stage))
    lie(edit)
    write(edit.entries, folder / "t.bin")
    report = audit(folder / "t.bin", options)
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


@pytest.mark.parametrize(("answers", "severity"), [(True, Severity.HIGH), (False, Severity.LOW)])
def test_a_small_tail_is_worse_where_devices_answer(tmp_path, answers, severity):
    update = SmallTailStage.max_queries
    lie = (lambda _: None) if answers else nobody_answers(1, Kind.SLOT, slot=update)
    assert severity in severities(SmallTailStage, lie, "search.small-tail", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("accepts", "severity"), [(False, Severity.HIGH), (True, Severity.LOW)])
def test_searches_that_are_not_verified_may_be_accepted(tmp_path, accepts, severity):
    options = Options(adversary=Adversary.ACTIVE, unverified_if_active=accepts)
    found = severities(SignedStage, lambda _: None, "search.unverified", tmp_path, options)
    assert found == {severity}
