"""What `deltafl audit` does and prints; its arguments are in `flags`.

Exit codes: 0 nothing found at or above `--fail-on`, 1 something found, 2 nothing to be audited.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deltafl.secagg import Adversary
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.checks.clear import ValuesInClear
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.html import render
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.inspect.audit.in_clear import BY_DESIGN
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.report import AuditReport
from deltafl.sim.inspect.audit.source import find_source
from deltafl.sim.progress import Bar
from deltafl.sim.record.own_files import write_file
from deltafl.sim.record.rundir import RunDirectory, check_output
from deltafl.sim.visible import on_one_line
from deltafl.sim.writing import count

_DIGEST_HEX: Final = 64
_MARKS: Final = {
    Outcome.PASSED: "passed ",
    Outcome.FAILED: "FAILED ",
    Outcome.PARTIAL: "partial",
    Outcome.SKIPPED: "skipped",
    Outcome.EMPTY: "nothing",
}
_SHOWN: Final = 20


def main(options: argparse.Namespace) -> int:
    """Audit and report; the exit code.

    Raises:
        UserError: there is nothing to audit, an argument is out of its range, or the report would
            replace what is audited.
    """
    chosen, source = _options(options), options.source
    if options.html is not None:
        check_output(options.html, [path for path in (source, chosen.truth) if path is not None])
    quiet = options.quiet or options.json
    with _Progress(quiet=quiet) as bar:
        report = audit(source, chosen, bar)
    others, bare = [], dataclasses.replace(chosen, truth=None)
    for arm in _arms(source):
        with _Progress(quiet=quiet) as bar:
            others.append(_as_baseline(audit(arm, bare, bar)))
    if options.html is not None:
        write_file(options.html, render(report).encode())
    if options.json:
        told = {**_as_json(report), "arms": [_as_json(one) for one in others]}
        print(json.dumps(told, indent=2, allow_nan=False))
    else:
        print(describe(report))
        if others:
            print(_describe_others(report, others))
        if options.html is not None:
            print(f"\nThe whole report on {source} is in {options.html}.")
    found = [finding.severity for one in (report, *others) for finding in one.findings]
    return int(any(one >= Severity[options.fail_on.upper()] for one in found))


def _arms(source: Path) -> list[Path]:
    """The directories of the further runs of an experiment."""
    if not source.is_dir():
        return []
    top = RunDirectory(source)
    runs = find_source(source).arms[1:]
    folders = [top.arm(one.federation.algorithm, one.experiment.seed) for one in runs]
    return [one.path for one in folders if one.is_run]


def _as_baseline(report: AuditReport) -> AuditReport:
    """The same without what a baseline is by design: a run in clear that the settings ask for."""
    kept = tuple(one for one in report.findings if one.rule != BY_DESIGN)
    if len(kept) == len(report.findings):
        return report
    checks = tuple(one for one in report.checks if one.name != ValuesInClear.name)
    return dataclasses.replace(report, findings=kept, checks=checks)


def _as_json(report: AuditReport) -> dict[str, object]:
    return {"verdict": dataclasses.asdict(verdict(report)), **report.to_json()}


def _describe_others(report: AuditReport, others: Sequence[AuditReport]) -> str:
    """A line for each further run of the experiment with its findings, and the verdict on all."""
    lines = ["", f"The {count(len(others), 'further run')} of this experiment:"]
    for one in others:
        lines.append(f"  {one.source}: {verdict(one).sentence}")
        told = [finding for finding in one.findings if finding.severity > Severity.INFO]
        for finding in told[:_SHOWN]:
            lines += [f"  {line}" for line in _finding(finding)]
    worst = max((report, *others), key=_worst)
    runs = count(1 + len(others), "run")
    lines += ["", f"Verdict on all {runs}: {verdict(worst).sentence}"]
    return "\n".join(map(on_one_line, lines))


def _worst(report: AuditReport) -> Severity:
    return max((finding.severity for finding in report.findings), default=Severity.INFO)


def describe(report: AuditReport) -> str:
    """The report for a terminal: verdict, checks, findings."""
    lines = [
        f"{report.source}: {report.records} records, {report.rounds} rounds, {_played(report)}",
        f"{report.statistics.tests} tests of {report.statistics.bytes_tested} masked bytes; false "
        f"alarms: {report.statistics.false_alarm_rate:g}",
        "",
    ]
    width = max(len(check.name) for check in report.checks)
    lines += [f"  {_MARKS[c.outcome]}  {c.name:<{width}}  {c.detail}" for c in report.checks]
    lines.append("")
    for finding in report.findings[:_SHOWN]:
        lines += _finding(finding)
    if len(report.findings) > _SHOWN:
        lines.append(f"… and {len(report.findings) - _SHOWN} more: use --json or --html.")
    reached = verdict(report)
    lines += [f"{reached.sentence}", reached.coverage]
    if reached.not_checked:
        lines += ["", "Not checked:", *(f"  - {one}" for one in reached.not_checked)]
    lines += ["", "What no audit shows (more with --json or --html):"]
    lines += [f"  - {limit.partition('. ')[0].rstrip('.')}" for limit in report.limits]
    return "\n".join(map(on_one_line, lines))


def _played(report: AuditReport) -> str:
    if report.full_rounds or not report.rounds:
        return f"{report.full_rounds} of them whole"
    return "and no message was played again: the record has sums only"


def _finding(finding: Finding) -> list[str]:
    rule = RULES[finding.rule]
    more = f" ({finding.count} places)" if finding.count > 1 else ""
    return [
        f"{finding.severity.name:<8} {finding.rule}: {rule.title}{more}",
        f"         {finding.detail}",
        f"         at {'; '.join(map(_place, finding.evidence[:3]))}  [{rule.attack}]",
        f"         {rule.consequence}",
        f"         Remedy: {rule.remedy}",
        "",
    ]


def _place(place: Evidence) -> str:
    parts = [
        f"{name} {value}"
        for name, value in (
            ("round", place.round),
            ("record", place.record),
        )
        if value is not None
    ]
    return ", ".join(parts) or "the whole run"


def _options(options: argparse.Namespace) -> Options:
    head = None
    if options.head is not None:
        try:
            head = bytes.fromhex(options.head)
        except ValueError:
            head = b""
        if len(options.head) != _DIGEST_HEX or len(head) * 2 != _DIGEST_HEX:
            raise UserError(f"--head {options.head!r} is not {_DIGEST_HEX} hex digits")
    for name, low in (("min_cohort", 2), ("min_difference", 1), ("min_honest_tail", 0)):
        value = getattr(options, name)
        if value is not None and value < low:
            raise UserError(f"--{name.replace('_', '-')} {value} is below {low}")
    if options.colluding is not None and not 0 <= options.colluding < 1:
        raise UserError(f"--colluding {options.colluding} is not in [0, 1)")
    if not 0 < options.false_alarms < 1:
        raise UserError(f"--false-alarms {options.false_alarms} is not in (0, 1)")
    if options.truth is not None and not options.truth.is_file():
        raise UserError(f"{options.truth} does not exist: give the truth.sqlite of the run")
    return Options(
        truth=options.truth,
        data=options.data,
        head=head,
        adversary=Adversary(options.adversary) if options.adversary else None,
        colluding=options.colluding,
        min_cohort=options.min_cohort,
        limits=tuple(options.set),
        sparse_if_active=options.sparse_if_active,
        unverified_if_active=options.unverified_if_active,
        min_difference=options.min_difference,
        min_honest_tail=options.min_honest_tail,
        false_alarm_rate=options.false_alarms,
    )


class _Progress:
    """A progress bar on stderr, for long transcripts."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Bar | None = None

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, done: int, rows: int, round_number: int) -> None:
        if self._bar is None:
            self._bar = Bar(
                total=rows, unit="row", unit_scale=True, desc="audit", quiet=self._quiet
            )
        self._bar.set_postfix_str(f"round {round_number}", refresh=False)
        self._bar.update(done - self._bar.n)
