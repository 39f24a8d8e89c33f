"""The report says what was there: messages, steps, checks, findings; as plain data."""

import json
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from honest_runs import config_of, play_honestly

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.preface import without_truth
from deltafl.sim.inspect.audit.report import harm_of
from deltafl.sim.inspect.audit.rules import MAX_PLACES, Fault, Harm, Rules
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.record.record import write_record
from deltafl.sim.record.transcript import Message, Sum, TranscriptWriter, read_transcript

COHORT = 7
LISTED = 200  # findings of one rule
SETTINGS = {"federation": {"cohort_size": COHORT}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return play_honestly(tmp_path_factory.mktemp("run"), rounds=2, length=8, **SETTINGS)


@pytest.fixture(scope="module")
def report(run):
    return audit(run.transcript, Options(truth=run.truth))


@pytest.fixture(scope="module")
def records(run):
    return list(read_transcript(run.transcript))


def test_everything_that_passed_is_counted_once(report, records):
    messages = [record for record in records if isinstance(record, Message)]
    sums = [record for record in records if isinstance(record, Sum)]
    (released,) = (kind for kind in report.observed if kind.kind == "Sum")
    observed = [kind for kind in report.observed if kind is not released]
    assert sum(kind.count for kind in observed) == len(messages)
    assert sum(kind.size for kind in observed) == sum(message.size for message in messages)
    assert [kind.kind for kind in observed[:3]] == ["SessionOpen", "AdvertiseKeys", "RosterMessage"]
    for sent in (True, False):
        count = sum(kind.count for kind in observed if kind.sent == sent)
        assert count == sum(message.sent == sent for message in messages)
    for kind in report.observed:
        assert kind.smallest * kind.count <= kind.size <= kind.largest * kind.count
    assert released.count == len(sums)
    assert released.size == 8 * sum(record.length for record in sums)
    assert len({(kind.kind, kind.sent) for kind in report.observed}) == len(report.observed)
    assert "unknown" not in {kind.kind for kind in report.observed}


def test_the_report_is_json_with_all_its_texts(report):
    plain = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert plain["records"] == report.records
    assert plain["checks"][0]["outcome"] == str(report.checks[0].outcome)
    assert len(plain["findings"]) == len(report.findings) > 0
    for finding, stated in zip(report.findings, plain["findings"], strict=True):
        assert stated["rule"] == finding.rule
        assert stated["severity"] == finding.severity.name.lower()
        assert stated["detail"]
        rule = asdict(RULES[finding.rule]) | {"severity": stated["severity"]}
        assert rule.items() <= stated.items()
        assert stated["harm"] == harm_of(finding)
        assert [place["record"] for place in stated["evidence"]] == [
            place.record for place in finding.evidence
        ]


def test_findings_are_sorted_and_have_places(report):
    severities = [finding.severity for finding in report.findings]
    assert severities == sorted(severities, reverse=True)
    assert all(finding.evidence for finding in report.findings)


def test_a_finding_names_a_few_places_and_counts_all():
    places = [Evidence(1, number) for number in range(MAX_PLACES + 4)]
    finding = RULES.found("clear.values", "seen", iter(places))
    assert (len(finding.evidence), finding.count) == (MAX_PLACES, MAX_PLACES + 4)
    assert finding.evidence == tuple(places[:MAX_PLACES])
    assert finding.severity is RULES["clear.values"].severity
    assert RULES.found("clear.values", "seen", places, Severity.INFO).severity is Severity.INFO


def test_every_rule_has_its_texts():
    for rule in RULES.values():
        texts = (rule.title, rule.consequence, rule.remedy, rule.attack)
        assert all(text and text == text.strip() for text in texts)
        assert rule.consequence.endswith(".")
        assert rule.remedy.endswith(".")
        assert not rule.title.endswith(".")


TABLE = """\
a.first high record A24: the first
    What follows,
    in two lines.
a.second info design A14: the second: a colon
    What follows.
"""


def test_rules_are_read_from_a_table():
    rules = Rules.read(TABLE)
    assert list(rules) == ["a.first", "a.second"]
    assert (rules["a.first"].severity, rules["a.first"].remedy) == (Severity.HIGH, Fault.RECORD)
    assert rules["a.first"].consequence == "What follows, in two lines."
    assert rules["a.second"].title == "the second: a colon"
    assert rules["a.second"].attack == "A14"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a.second", "a.first"),
        ("    What follows.\n", ""),
        ("a.first high", "a.first"),
        ("high", "worse"),
        ("record", "nobody"),
        ("A24:", "24:"),
    ],
)
def test_a_table_that_is_none_is_refused(old, new):
    with pytest.raises((ValueError, KeyError)):
        Rules.read(TABLE.replace(old, new))


def test_harm_follows_from_severity_and_of_a_record_that_is_false_from_who_wrote_it():
    wrong, false = RULES["sums.differ"], RULES["record.edited"]
    assert (wrong.severity, false.severity) == (Severity.HIGH, Severity.HIGH)
    assert wrong.harm(Severity.HIGH) is Harm.HIGH
    assert false.harm(Severity.HIGH) is Harm.RECORD
    lesser = [severity for severity in Severity if severity is not Severity.HIGH]
    assert [false.harm(one) for one in lesser] == [wrong.harm(one) for one in lesser]
    assert len({wrong.harm(one) for one in Severity}) == len(Severity)


def test_the_same_finding_over_and_over_is_counted_and_not_listed(tmp_path, run):
    """A session in which a device shouts in clear all the time does not fill the memory."""
    with write_record(tmp_path / "r.sqlite") as record:
        writer = TranscriptWriter(record, "full", is_durable=False)
        writer.begin_round(1, [1])
        for number in range(LISTED + 50):
            writer.message(sent=False, peer=number, data=b'{"loss": 1}')
        writer.end_round(None)
        writer.finish(1)
        record.keep()
    shouted = [f for f in audit(tmp_path / "r.sqlite").findings if f.rule == "clear.values"]
    assert len(shouted) == LISTED
    assert sum(finding.count for finding in shouted) == LISTED + 50


def test_of_a_record_of_sums_it_is_said_first_that_no_message_was_played_again(tmp_path):
    run = play_honestly(tmp_path, mode="sums", rounds=1, length=8, **SETTINGS)
    report = audit(run.transcript)
    assert (report.full_rounds, report.rounds, report.is_silent) == (0, 1, True)
    assert verdict(report).sentence.startswith("No message was played again")
    outcomes = {check.name: check.outcome for check in report.checks}
    assert outcomes["values in clear"] is outcomes["masked bytes"] is Outcome.SKIPPED
    told = " ".join(report.not_checked)
    assert all(told.count(name) == 1 for name in ("values in clear", "masked bytes"))


def test_where_devices_are_real_their_seeds_are_nowhere():
    source = Source(Path("run"), Path("run/record.sqlite"), config_of())
    assert "no truth file was given" in without_truth(source)
    remote = replace(source, config=config_of(federation={"devices": "remote"}))
    assert "the devices are real, and their seeds" in without_truth(remote)
    for one in (source, remote):
        assert "No device was played again" in without_truth(one)


@pytest.mark.slow
def test_a_limit_that_is_broken_makes_its_check_fail_and_no_other(run):
    report = audit(run.transcript, Options(min_cohort=COHORT + 1))
    failed = [check.name for check in report.checks if check.outcome is Outcome.FAILED]
    assert failed == ["floors and parameters"]
    assert {f.rule for f in report.findings if f.severity >= Severity.MEDIUM} == {
        "cohort.below-floor",
        "parameters.below-policy",
    }


def test_a_limit_that_is_kept_is_no_finding(run):
    report = audit(run.transcript, Options(min_cohort=COHORT))
    assert "cohort.below-floor" not in {finding.rule for finding in report.findings}


@pytest.mark.slow
def test_progress_ends_at_the_end(run):
    calls = []
    audit(run.transcript, Options(), lambda *call: calls.append(call))
    rows = run.mark.num_frames
    done = [one for one, _, _ in calls]
    assert done == sorted(done)
    assert calls[-1] == (rows, rows, 2)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rounds(tmp_path):
    """It is that of one round, whose vectors are long here, and of short notes on the others."""
    peaks = {}
    for rounds in (2, 6):
        (tmp_path / str(rounds)).mkdir()
        run = play_honestly(
            tmp_path / str(rounds),
            rounds=rounds,
            length=8_000,
            federation={"cohort_size": 5, "theta": 1},
            privacy={"expected_dropout": 0.0, "colluding": 0.0},
        )
        audit(run.transcript)  # what is loaded once is loaded
        tracemalloc.start()
        report = audit(run.transcript)
        peaks[rounds] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert report.sums_replayed == rounds
    vectors = 8_000 * 4 * 5
    assert peaks[6] < peaks[2] + 2 * vectors  # where there are 20 vectors more
