"""Findings as SARIF: what the schema of version 2.1.0 asks for, and what code hosts do besides."""

import json
from dataclasses import replace
from urllib.parse import unquote, urlsplit

import example_reports
import pytest

from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.findings import Evidence, Severity
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.inspect.audit.sarif import to_sarif

LEVELS = ("none", "note", "warning", "error")
RANGES = {
    Severity.CRITICAL: (9.0, 10.0),
    Severity.HIGH: (7.0, 8.9),
    Severity.MEDIUM: (4.0, 6.9),
    Severity.LOW: (0.1, 3.9),
    Severity.INFO: (0.0, 0.0),
}
"""What code hosts call a severity, by numbers."""


def faults(log):
    """What a log has otherwise than the essential parts of the schema, and code hosts, ask for."""
    if set(log) - {"$schema", "version", "runs"} or log.get("version") != "2.1.0":
        yield "log"
    for run in log["runs"]:
        driver = run["tool"]["driver"]
        if not driver.get("name"):
            yield "tool without a name"
        ids = [rule["id"] for rule in driver["rules"]]
        if len(set(ids)) != len(ids):
            yield "two rules of one id"
        for rule in driver["rules"]:
            if not all(
                rule[part]["text"] for part in ("shortDescription", "fullDescription", "help")
            ):
                yield "rule without a text"
            if rule["defaultConfiguration"]["level"] not in LEVELS:
                yield "level of a rule"
            if not isinstance(rule["properties"]["security-severity"], str):
                yield "security-severity"
        for one in run["invocations"]:
            if type(one["executionSuccessful"]) is not bool:
                yield "invocation"
            notes = one["toolExecutionNotifications"]
            if not all(note["message"]["text"] and note["level"] in LEVELS for note in notes):
                yield "notification"
        for result in run["results"]:
            yield from faults_of_result(result, run, ids)


def faults_of_result(result, run, ids):
    if ids[result["ruleIndex"]] != result["ruleId"]:
        yield "ruleIndex"
    if result["level"] not in LEVELS:
        yield "level"
    if not result["message"]["text"]:
        yield "message"
    if result["occurrenceCount"] < 1:
        yield "occurrenceCount"
    if not all(isinstance(one, str) for one in result["partialFingerprints"].values()):
        yield "partialFingerprints"
    if not result["locations"]:
        yield "no location"
    for place in result["locations"]:
        physical = place["physicalLocation"]
        file = physical["artifactLocation"]
        if run["artifacts"][file["index"]]["location"]["uri"] != file["uri"]:
            yield "artifact"
        if not file["uri"] or set(file["uri"]) & set(' <>"{}|\\^`\n') or not file["uri"].isascii():
            yield "uri"
        if physical["region"]["startLine"] < 1:
            yield "startLine"
        if not all(one["fullyQualifiedName"] for one in place["logicalLocations"]):
            yield "logical location"


@pytest.fixture(scope="module")
def log():
    return json.loads(to_sarif(example_reports.rich()))


@pytest.mark.parametrize("name", sorted(example_reports.EXAMPLES))
def test_a_log_has_what_the_schema_and_code_hosts_ask_for(name):
    written = to_sarif(example_reports.EXAMPLES[name]())
    assert list(faults(json.loads(written))) == []
    assert written == to_sarif(example_reports.EXAMPLES[name]())
    assert all(one.isprintable() or one == "\n" for one in written)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda log: log.update(version="2.0.0"), "log"),
        (lambda log: log["runs"][0]["results"][1].update(ruleIndex=0), "ruleIndex"),
        (lambda log: log["runs"][0]["results"][0].update(level="high"), "level"),
        (lambda log: log["runs"][0]["results"][0].update(locations=[]), "no location"),
        (lambda log: log["runs"][0]["artifacts"][0]["location"].update(uri="x"), "artifact"),
        (lambda log: log["runs"][0]["tool"]["driver"].update(name=""), "tool without a name"),
    ],
)
def test_control_a_log_with_a_fault_is_noticed(spoil, fault):
    log = json.loads(to_sarif(example_reports.rich()))
    spoil(log)
    assert fault in faults(log)


def test_a_result_says_what_was_seen_where_and_how_bad_it_is(log):
    (run,) = log["runs"]
    (result,) = [one for one in run["results"] if one["ruleId"] == "shares.both-kinds"]
    rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
    assert (result["level"], result["properties"]["severity"]) == ("error", "critical")
    assert "device 17" in result["message"]["text"]
    assert result["properties"]["harm"].startswith("a device's own value is known")
    assert result["locations"][0]["logicalLocations"][0] == {
        "name": "round 3, record 3,070",
        "fullyQualifiedName": "rounds/3/rows/3070",
    }
    known = RULES["shares.both-kinds"]
    assert rule["help"]["text"] == f"{known.consequence} {known.remedy}"
    assert known.attack in rule["properties"]["tags"]


def test_the_most_harmful_result_is_the_first(log):
    harms = [one["properties"]["harm"] for one in log["runs"][0]["results"]]
    assert harms[0].startswith("a device's own value")
    assert harms == sorted(harms, key=list(dict.fromkeys(harms)).index)


@pytest.mark.parametrize("severity", list(Severity))
def test_severities_are_those_that_code_hosts_show(severity):
    finding = example_reports.finding(severity)
    log = json.loads(to_sarif(replace(example_reports.clean(), findings=(finding,))))
    (rule,) = log["runs"][0]["tool"]["driver"]["rules"]
    low, high = RANGES[RULES[finding.rule].severity]
    assert low <= float(rule["properties"]["security-severity"]) <= high
    assert rule["defaultConfiguration"]["level"] == log["runs"][0]["results"][0]["level"]


def test_the_record_is_named_by_a_uri_and_may_have_any_name():
    for name in ("a run/ö%20.sqlite", "/var/a run/ö.sqlite"):
        log = json.loads(to_sarif(replace(example_reports.rich(), record=name)))
        assert list(faults(log)) == []
        uri = log["runs"][0]["artifacts"][0]["location"]["uri"]
        assert unquote(urlsplit(uri).path) == name


def test_what_was_not_checked_and_the_verdict_are_in_it(log):
    report = example_reports.rich()
    (run,) = log["runs"]
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [one["message"]["text"] for one in notes] == list(report.not_checked)
    assert run["properties"]["verdict"] == verdict(report).sentence


def test_each_run_has_a_run_of_its_own():
    log = json.loads(to_sarif(example_reports.clean(), example_reports.rich()))
    assert [len(run["results"]) > 0 for run in log["runs"]] == [False, True]


def test_a_finding_keeps_its_fingerprint_where_it_moves():
    finding = example_reports.finding(Severity.HIGH)
    moved = replace(finding, evidence=(Evidence(4, 90),))
    other = replace(finding, detail="Another.")
    prints = []
    for one in (finding, moved, other):
        log = json.loads(to_sarif(replace(example_reports.clean(), findings=(one,))))
        prints.append(log["runs"][0]["results"][0]["partialFingerprints"])
    assert prints[0] == prints[1] != prints[2]
