"""The verdict of an audit as one value, for people (`html`) and programs (JSON).

Everything here is plain data: numbers, texts and tuples. A report can therefore be stored, compared
and shown without the transcript that it describes.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.facts import (
    CheckResult,
    ParticipationFacts,
    SearchFacts,
    StatisticsFacts,
)
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.rules import Harm

REPORT_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class Observed:
    """All messages of one kind, or what the server derived from them.

    Attributes:
        kind: What they are, as docs/spec.md calls them.
        sent: Whether the server sent them; else it received them.
        individual: What they tell about a single device: "nothing", "public key", …
        count: Number of messages.
        size: Their total size, in bytes.
        smallest: Size of the smallest, in bytes.
        largest: Size of the largest, in bytes.
    """

    kind: str
    sent: bool
    individual: str
    count: int
    size: int
    smallest: int
    largest: int


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """Messages of one kind that followed one another in a round, as the server saw them.

    Attributes:
        label: What they are.
        sent: Whether the server sent them.
        devices: Number of devices at the other end.
        size: Their total size, in bytes.
        first_record: Sequence number of the first.
        last_record: Sequence number of the last.
        slot: The slot of the session; None during set-up.
        revealed: What the server learnt from them, in a few words; or "".
    """

    label: str
    sent: bool
    devices: int
    size: int
    first_record: int
    last_record: int
    slot: int | None
    revealed: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        source: The file or run directory that was audited.
        record: The file that holds the record.
        head: Digest of the last record, hex; it identifies what was audited.
        run_id: Id of the run, hex.
        facts: What the run says about itself: name and value, both texts.
        rounds: Rounds in the record.
        full_rounds: Rounds whose messages the record holds.
        records: Records read.
        size: Length of the file, in bytes.
        sums_released: Sums that the server says it learnt.
        sums_replayed: How many of them were computed again from the messages, and agree.
        has_truth: Whether a truth file was compared.
        is_silent: Whether the record keeps sums only, so that no message was played again.
        checks: Every check and its outcome.
        findings: What was found, worst first.
        observed: Everything that passed through the server, by kind.
        timeline: One round as the server saw it.
        timeline_round: The number of that round; None if there is none.
        searches: What each search gave away.
        statistics: The tests of masked bytes.
        participation: Which devices were in which sum.
        not_checked: What could have been checked, or is beside what is, and was not: phrases.
        limits: What the audit cannot show, in sentences.
        reproduce: Commands that reproduce this report.
    """

    source: str
    record: str
    head: str
    run_id: str
    facts: tuple[tuple[str, str], ...]
    rounds: int
    full_rounds: int
    records: int
    size: int
    sums_released: int
    sums_replayed: int
    has_truth: bool
    is_silent: bool
    checks: tuple[CheckResult, ...]
    findings: tuple[Finding, ...]
    observed: tuple[Observed, ...]
    timeline: tuple[TimelineStep, ...]
    timeline_round: int | None
    searches: tuple[SearchFacts, ...]
    statistics: StatisticsFacts
    participation: ParticipationFacts
    not_checked: tuple[str, ...]
    limits: tuple[str, ...]
    reproduce: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """The report as JSON values; each finding includes the texts of its rule, and its harm."""
        report = _object(self)
        report["version"] = REPORT_VERSION
        report["findings"] = [
            {**_object(finding), "harm": str(harm_of(finding)), **RULES[finding.rule].texts()}
            for finding in by_harm(self.findings)
        ]
        return report


def harm_of(finding: Finding) -> Harm:
    """What a finding comes to.

    Raises:
        KeyError: its rule does not exist.
    """
    return RULES[finding.rule].harm(finding.severity)


def by_harm(findings: Iterable[Finding]) -> list[Finding]:
    """Findings, the most harmful first; those of one harm in their order."""
    order = list(Harm)
    return sorted(findings, key=lambda finding: order.index(harm_of(finding)))


def _object(value: object) -> dict[str, object]:
    plain = _plain(value)
    assert isinstance(plain, dict)  # noqa: S101 - for mypy: a dataclass becomes a dict
    return plain


def _plain(value: object) -> object:
    if isinstance(value, Severity):
        return value.name.lower()
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
