"""Made-up audit reports, to look at and to test their presentation with.

`python tests/audit/example_reports.py FOLDER` writes each as a page.
"""

import dataclasses
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.collected import Findings
from deltafl.sim.inspect.audit.facts import (
    CheckResult,
    GivenAwayFacts,
    Outcome,
    SingleFacts,
    SolvableFacts,
    StatisticsFacts,
)
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.html import render
from deltafl.sim.inspect.audit.inventory import Observed
from deltafl.sim.inspect.audit.report import AuditReport
from deltafl.sim.inspect.leakage.measure import SearchFacts

DEVICES = 30
QUERIES = 6
VECTOR = 640 * 3 + 12
"""Bytes of a masked update."""

SCRIPT = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>"
MARKUP = SCRIPT + "\"'&{{ 7 * 7 }}\u202e\udcff\x00</text></svg></style>"
"""What a hostile transcript might write wherever it can write."""


def rule(severity):
    """Some rule of that severity, or any where there is none."""
    return next((name for name in RULES if RULES[name].severity == severity), next(iter(RULES)))


def finding(severity, detail="A detail.", *, of=None, **fields):
    """A finding in one place."""
    evidence = (Evidence(round=3, record=70),)
    return Finding(of or rule(severity), severity, detail, evidence, **fields)


def ordered(findings):
    """Findings in the order of a report."""
    kept = Findings()
    kept.add_all(findings)
    return kept.sorted()


def clean():
    """Everything was checked, and there was nothing."""
    return AuditReport(
        source="runs/quickstart/private-delta-fl/seed-1",
        record="runs/quickstart/private-delta-fl/seed-1/record.sqlite",
        head="7d1c0fb0a1b54d4f2f2d9e6f7c1a1e9c4f0a3e55c2a96a1b4dd1e0a3b8c7f9d2",
        run_id="a4c4c6ce3ab5d0a1",
        facts=(
            ("Algorithm", "private-delta-fl, θ = 0.5, quantile by bracketed queries"),
            ("Adversary", "curious, complete graph, γ = 0.1, threshold 17 of 30"),
            ("Model", "linear, 640 parameters"),
        ),
        rounds=60,
        full_rounds=60,
        records=60 * DEVICES * (6 + 4 * (QUERIES + 1)),
        size=48_311_902,
        sums_released=60 * (QUERIES + 1),
        sums_replayed=60 * (QUERIES + 1),
        has_truth=True,
        is_silent=False,
        checks=(
            CheckResult(
                "Chain of the record", Outcome.PASSED, "61,200 records, to the head digest"
            ),
            CheckResult("Sums follow from the messages", Outcome.PASSED, "420 of 420 sums"),
            CheckResult("Both shares of one device", Outcome.PASSED, "12,600 unmasking answers"),
        ),
        findings=(),
        observed=_observed(),
        searches=tuple(_searches(60)),
        statistics=StatisticsFacts(3_412, 2.1e-4, 1e-6, 24_340_680),
        given_away=GivenAwayFacts(
            60, 420, 0, 0, 3, 15, 7, updates=SolvableFacts(60, 60, 0, 2, True, 4)
        ),
        not_checked=(),
        limits=(
            "The audit reads what was recorded. A server that keeps messages out of its record "
            "from the start, and says so in no digest, is not caught by it.",
            "Masked bytes that pass the tests may come from a generator that is weak in another "
            "way.",
            "Time is not recorded: a device that trains answers later, and the server sees it.",
        ),
        reproduce=(
            "deltafl run --preset quickstart --out runs/quickstart",
            "deltafl audit runs/quickstart/private-delta-fl/seed-1 --html audit.html",
        ),
    )


def rich():
    """Something in every part of the page, as a run that went wrong might have it."""
    report = clean()
    seen = (
        (
            "record.head-differs",
            Severity.HIGH,
            1,
            1,
            "it is 7d1c0f, not a1b54d",
        ),
        (
            "shares.both-kinds",
            Severity.CRITICAL,
            3,
            3,
            "Shares of both secrets of device 17 came to the server in slot 4; its masked vector "
            "of 640 words can be unmasked, and its update is known.",
        ),
        (
            "broadcast.announcement",
            Severity.HIGH,
            2,
            2,
            "Devices 3 and 8 were told that devices 17 and 21 survived slot 4; the others were "
            "told that device 17 did not.",
        ),
        (
            "sums.differ",
            Severity.HIGH,
            1,
            1,
            "In slot 2, word 0 of the sum is 1,204,113 as the server says, and 1,204,112 as the "
            "messages add up.",
        ),
        (
            "sums.differ",
            Severity.HIGH,
            14,
            43,
            "In slot 6, 43 words of the sum are other than the messages add up to.",
        ),
        (
            "boxes.exchanged",
            Severity.MEDIUM,
            2,
            2,
            "The box from device 5 to device 9 is not the one that device 5 sent.",
        ),
        (
            "input.late",
            Severity.LOW,
            1,
            1,
            "The masked vector of device 22 came after its masks had been rebuilt.",
        ),
        (
            "search.narrow",
            Severity.INFO,
            1,
            60,
            "60 searches gave away 2.1 bits per device and round on average.",
        ),
    )
    places = tuple(Evidence(3, 3_070 + i) for i in range(14))
    findings = [
        Finding(name, severity, detail, places[:shown], many)
        for name, severity, shown, many, detail in seen
    ]
    checks = (
        CheckResult("Chain of the record", Outcome.PASSED, "61,200 records, to the head digest"),
        CheckResult("Wire format", Outcome.PASSED, "59,180 messages, each the canonical bytes"),
        CheckResult(
            "Sums follow from the messages",
            Outcome.FAILED,
            "419 of 420 sums; one differs from what the server says",
        ),
        CheckResult("Both shares of one device", Outcome.FAILED, "12,591 unmasking answers"),
        CheckResult("Reuse of masks and keys", Outcome.PASSED, "1,800 devices and rounds"),
        CheckResult(
            "Weak seeds",
            Outcome.PARTIAL,
            "1,750 of 1,800 seeds; the rest belong to devices that vanished",
        ),
        CheckResult("Lists that devices were told", Outcome.FAILED, "38,400 lists in 420 slots"),
        CheckResult("Differences of cohorts", Outcome.PASSED, "420 sums in 60 families"),
        CheckResult(
            "Independence of inputs",
            Outcome.SKIPPED,
            "no round has both its messages and true inputs",
        ),
    )
    return replace(
        report,
        full_rounds=52,
        sums_replayed=419,
        not_checked=tuple(f"{one.name}: {one.detail}" for one in checks[5::3]),
        checks=checks,
        findings=ordered(findings),
        given_away=GivenAwayFacts(
            60,
            420,
            360,
            7,
            3,
            15,
            7,
            SingleFacts(2, 1, 0.25, 59),
            SingleFacts(5, 9, 0.125, 20),
            SolvableFacts(60, 60, 1, 4, False, 1),
            SolvableFacts(60, 60, 2, 4, False, 1),
            12.5,
            1e-5,
        ),
    )


def unchecked():
    """A record of sums: nothing was found, and not much was looked at."""
    report = clean()
    skipped = replace(
        report.checks[1], outcome=Outcome.SKIPPED, detail="no round holds its messages"
    )
    return replace(
        report,
        full_rounds=0,
        sums_replayed=0,
        has_truth=False,
        is_silent=True,
        checks=(report.checks[0], skipped),
        not_checked=(f"{skipped.name}: {skipped.detail}",),
        statistics=StatisticsFacts(0, None, 1e-6, 0),
        searches=(),
    )


def hostile():
    """Markup in every text that may come from a transcript."""
    soiled = _soil(rich())
    assert isinstance(soiled, AuditReport)
    return replace(soiled, searches=tuple(_extreme_searches(soiled.searches)))


def crowded():
    """A long table of searches."""
    return replace(rich(), searches=tuple(_searches(3_000)))


def empty():
    """As little as a report can hold."""
    return replace(
        unchecked(),
        source="",
        record="",
        facts=(),
        rounds=0,
        records=0,
        size=0,
        sums_released=0,
        checks=(),
        observed=(),
        given_away=GivenAwayFacts(),
        limits=(),
        reproduce=(),
    )


def _observed():
    sums = 60 * (QUERIES + 1)
    rows = (
        ("SessionOpen", True, 1_800, 412, 412),
        ("AdvertiseKeys", False, 1_800, 106, 106),
        ("RosterMessage", True, 1_800, 2_164, 2_164),
        ("ShareKeys", False, 1_800, 4_310, 4_310),
        ("ShareDelivery", True, 1_800, 4_310, 4_310),
        ("ShareReceipt", False, 1_800, 44, 44),
        ("OpenSlot", True, 30 * sums, 61, 61),
        ("MaskedInput", False, 30 * sums - 7, 52, VECTOR),
        ("UnmaskRequest", True, 30 * sums - 7, 48, 48),
        ("UnmaskShares", False, 30 * sums - 9, 1_480, 1_490),
        ("Sum", False, sums, 24, 5_144),
    )
    return tuple(
        Observed(kind, sent, many, many * (least + most) // 2, least, most)
        for kind, sent, many, least, most in rows
    )


def _searches(rounds):
    generator = np.random.default_rng(7)
    for number in range(1, rounds + 1):
        middle = 0.4 + 1.6 * math.exp(-number / 25)
        half = 0.02 * float(generator.gamma(2, 0.5)) + 1e-4
        queries = int(generator.integers(5, 10)) if number > 1 else 15
        bits = 1.1 + 0.12 * queries + float(generator.normal(0, 0.08))
        yield SearchFacts(
            round=number,
            method="bracketed",
            devices=DEVICES,
            queries=queries,
            numbers=3 * queries,
            buckets=queries + 1,
            smallest_bucket=int(generator.integers(1, 4)),
            threshold_low=middle - half,
            threshold_high=middle + half,
            bits=None if number == 30 else bits,
            error=0.09 * middle + float(generator.normal(0, 0.008)),
            prior_error=0.3 * middle + float(generator.normal(0, 0.02)),
            within=None,
        )


def _extreme_searches(searches):
    extremes = (float("nan"), float("inf"), -float("inf"), 1e308, 5e-324, -1.0, 0.0)
    for search, value in zip(searches, extremes, strict=False):
        yield replace(search, threshold_low=value, threshold_high=-value, bits=value, error=value)
    yield from searches[len(extremes) :]


def _soil(value):
    """The value with markup after every text; ids of rules and outcomes are the auditor's own."""
    if isinstance(value, (Outcome, Severity)):
        return value
    if isinstance(value, str):
        return value + MARKUP
    if isinstance(value, tuple):
        return tuple(_soil(item) for item in value)
    if isinstance(value, Finding):
        return replace(value, detail=_soil(value.detail))
    if dataclasses.is_dataclass(value):
        fields = {one.name: _soil(getattr(value, one.name)) for one in dataclasses.fields(value)}
        return type(value)(**fields)
    return value


EXAMPLES = {
    "clean": clean,
    "rich": rich,
    "unchecked": unchecked,
    "hostile": hostile,
    "empty": empty,
}

if __name__ == "__main__":
    for name, make in EXAMPLES.items():
        page = Path(sys.argv[1]) / f"report-{name}.html"
        page.write_text(render(make()), encoding="utf-8")
