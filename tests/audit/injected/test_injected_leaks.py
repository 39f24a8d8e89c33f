"""Every leak is found, under its own rule and in its place; the run without it is clean."""

import json

import pytest
from every_leak import LEAKS

from deltafl.sim.inspect.audit.cli import describe
from deltafl.sim.inspect.audit.findings import Severity

FAST = {
    "a_cohort_of_two",
    "a_key_of_a_small_number",
    "a_roster_for_a_device_that_was_not_invited",
    "a_roster_without_one_device",
    "a_round_given_up_by_a_server_that_had_its_sums",
    "a_signature_of_other_survivors",
    "a_signature_that_never_came",
    "a_slot_opened_again_with_another_question",
    "a_sum_that_is_not_recorded",
    "an_answer_that_was_not_committed_to",
    "less_noise_from_the_second_round_on",
    "no_signatures_against_an_active_server",
    "shares_for_a_whole_slot",
    "the_same_session_again",
}
"""With those that seeded faults name, they reach nearly all of the rules' code."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("twins")


@pytest.mark.parametrize(
    "leak",
    [
        pytest.param(one, id=one.name, marks=() if one.name in FAST else pytest.mark.slow)
        for one in LEAKS
    ],
)
def test_it_is_found(leak, tmp_path):
    edit, report = leak.edited(), leak.audit(tmp_path)
    assert json.dumps(report.to_json(), allow_nan=False)
    assert describe(report)
    found = [finding for finding in report.findings if finding.rule in leak.rules]
    assert found, [finding.rule for finding in report.findings]
    places = [place for finding in found for place in finding.evidence]
    if leak.round is not None:
        assert leak.round in {place.round for place in places}
    numbers = {edit.record_number(entry) for entry in edit.touched}
    if numbers:
        assert numbers & {place.record for place in places}, (numbers, places)


@pytest.mark.slow
@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
def test_without_it_nothing_is_found(leak, folder):
    report = leak.audit_of_twin(folder)
    serious = [f for f in report.findings if f.severity >= Severity.MEDIUM]
    assert {finding.rule for finding in serious} <= set(leak.common)
    assert not {finding.rule for finding in report.findings} & set(leak.rules)


def test_fast_cases_are_cases():
    assert {leak.name for leak in LEAKS} >= FAST


def test_an_alarm_is_of_its_own_rule(tmp_path):
    (biased,) = [leak for leak in LEAKS if leak.name == "masked_bytes_without_their_top_bit"]
    found = {finding.rule for finding in biased.audit(tmp_path).findings}
    assert {rule for rule in found if rule.startswith(("masks.", "metadata."))} == {"masks.biased"}
