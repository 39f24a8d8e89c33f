"""Findings as SARIF 2.1.0 (OASIS), which code hosts and CI show.

The same reports give the same file, byte for byte: it has no times. Texts of a record are escaped.
"""

import json
import os
from hashlib import sha256
from importlib import metadata
from typing import Final
from urllib.parse import quote

from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.inspect.audit.report import AuditReport, harm_of
from deltafl.sim.visible import visible

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Final = ("note", "note", "warning", "error", "error")
_SECURITY: Final = ("0.0", "2.0", "5.5", "8.0", "9.5")
"""By severity: numbers in the ranges that code hosts call low, medium, high and critical."""


def to_sarif(*reports: AuditReport) -> str:
    """The findings of some runs, a `run` of the log for each.

    Raises:
        KeyError: a finding names a rule that `catalogue.RULES` does not have.
    """
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [_run(one) for one in reports]}
    return json.dumps(log, indent=1, allow_nan=False) + "\n"


def _run(report: AuditReport) -> dict[str, object]:
    rules = list(dict.fromkeys(finding.rule for finding in report.findings))
    driver = {
        "name": "deltafl audit",
        "version": metadata.version("deltafl"),
        "rules": [_rule(rule) for rule in rules],
    }
    reached = verdict(report)
    unchecked = [{"level": "note", "message": _text(one)} for one in report.not_checked]
    return {
        "tool": {"driver": driver},
        "artifacts": [{"location": {"uri": _uri(report.record)}, "roles": ["analysisTarget"]}],
        "invocations": [
            {"executionSuccessful": True, "toolExecutionNotifications": unchecked},
        ],
        "results": [_result(one, rules.index(one.rule), report) for one in report.findings],
        "properties": {"verdict": reached.sentence, "coverage": reached.coverage},
    }


def _rule(rule: str) -> dict[str, object]:
    about = RULES[rule]
    return {
        "id": rule,
        "shortDescription": _text(about.title),
        "fullDescription": _text(about.consequence),
        "help": _text(f"{about.consequence} {about.remedy}"),
        "defaultConfiguration": {"level": _LEVELS[about.severity]},
        "properties": {
            "security-severity": _SECURITY[about.severity],
            "tags": ["security", about.attack],
        },
    }


def _result(finding: Finding, index: int, report: AuditReport) -> dict[str, object]:
    identity = sha256(f"{finding.rule}\n{finding.detail}".encode(errors="replace"))
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": _text(f"{RULES[finding.rule].title}: {finding.detail}"),
        "locations": [_location(place, report) for place in finding.evidence],
        "occurrenceCount": finding.count,
        "partialFingerprints": {"ruleAndDetail/v1": identity.hexdigest()},
        "properties": {"severity": finding.severity.name.lower(), "harm": str(harm_of(finding))},
    }


def _location(place: Evidence, report: AuditReport) -> dict[str, object]:
    names = (("rounds", place.round), ("rows", place.record))
    path = "/".join(f"{name}/{value}" for name, value in names if value is not None)
    return {
        # a record has no lines, and code hosts refuse a place without one
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(report.record), "index": 0},
            "region": {"startLine": 1},
        },
        "logicalLocations": [{"name": str(place), "fullyQualifiedName": path or "run"}],
    }


def _text(text: str) -> dict[str, str]:
    return {"text": visible(text)}


def _uri(path: str) -> str:
    return ("file://" if path.startswith("/") else "") + quote(os.fsencode(path))
