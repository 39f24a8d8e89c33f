"""What `deltafl audit` does; its arguments are in `flags`, what it prints is in `text`.

Exit codes: 0 nothing found at or above `--fail-on`, 1 something found, 2 nothing to be audited.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Final

from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.html import render
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.inspect.audit.options import Options, reproduce
from deltafl.sim.inspect.audit.report import AuditReport
from deltafl.sim.inspect.audit.sarif import to_sarif
from deltafl.sim.inspect.audit.source import find_source
from deltafl.sim.inspect.audit.text import describe
from deltafl.sim.progress import Bar
from deltafl.sim.record.labels import read_comparison
from deltafl.sim.record.own_files import write_file
from deltafl.sim.record.rundir import RunDirectory, check_output

_DIGEST_HEX: Final = 64
_LEAST: Final = {"min_cohort": 2, "min_difference": 1, "min_honest_tail": 0}


def main(options: argparse.Namespace) -> int:
    """Audit and report; the exit code.

    Raises:
        UserError: there is nothing to audit, an argument is out of its range, or the report would
            replace what is audited.
    """
    chosen, source = _options(options), options.source
    written = [path for path in (options.html, options.sarif) if path is not None]
    for path in written:
        check_output(path, [one for one in (source, chosen.truth) if one is not None])
    reports = _audited(source, chosen, quiet=options.quiet or options.json)
    if options.html is not None:
        write_file(options.html, render(*reports).encode())
    if options.sarif is not None:
        write_file(options.sarif, to_sarif(*reports).encode())
    if options.json:
        print(json.dumps(_as_json(reports), indent=2, allow_nan=False))
    else:
        print(describe(*reports))
        for path in written:
            print(f"\nThe whole report on {source} is in {path}.")
    found = [finding.severity for report in reports for finding in report.findings]
    return int(any(one >= Severity[options.fail_on.upper()] for one in found))


def _audited(source: Path, chosen: Options, *, quiet: bool) -> list[AuditReport]:
    """The reports on all runs that are meant; runs in clear beside private ones are baselines."""
    reports: list[AuditReport] = []
    runs = list(_runs(source))
    if len(runs) > 1 and not RunDirectory(source).is_run and (chosen.truth or chosen.head):
        raise UserError(f"--truth and --head are of one run: audit one of those in {source}")
    is_private = any(not find_source(run).is_in_clear for run in runs)
    first = replace(chosen, is_baseline=is_private)
    for number, run in enumerate(runs):
        with _Progress(quiet=quiet) as bar:
            report = audit(run, replace(first, truth=None, head=None) if number else first, bar)
        reports.append(replace(report, reproduce=reproduce(source, chosen)))
    return reports


def _runs(path: Path) -> Iterator[Path]:
    """A record; a run, and the further ones of its experiment; or those of all runs of a folder."""
    if not path.is_dir():
        yield path
    elif RunDirectory(path).is_run or not (compared := read_comparison(path)):
        yield path
        for one in find_source(path).arms[1:]:
            arm = RunDirectory(path).arm(one.federation.algorithm, one.experiment.seed)
            if arm.is_run:
                yield arm.path
    else:
        for name in compared:
            yield from _runs(path / name)


def _as_json(reports: Sequence[AuditReport]) -> dict[str, object]:
    if len(reports) == 1:
        return {"verdict": asdict(verdict(*reports)), **reports[0].to_json()}
    return {"verdict": asdict(verdict(*reports)), "runs": [_as_json([one]) for one in reports]}


def _options(given: argparse.Namespace) -> Options:
    for name, low in _LEAST.items():
        value = getattr(given, name)
        if value is not None and value < low:
            raise UserError(f"--{name.replace('_', '-')} {value} is below {low}")
    if given.colluding is not None and not 0 <= given.colluding < 1:
        raise UserError(f"--colluding {given.colluding} is not in [0, 1)")
    if not 0 < given.false_alarm_rate < 1:
        raise UserError(f"--false-alarms {given.false_alarm_rate} is not in (0, 1)")
    if given.truth is not None and not given.truth.is_file():
        raise UserError(f"{given.truth} does not exist: give the truth.sqlite of the run")
    values = {one.name: getattr(given, one.name, one.default) for one in fields(Options)}
    return Options(**values | {"head": _head(given.head), "limits": tuple(given.limits)})


def _head(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        head = bytes.fromhex(text)
    except ValueError:
        head = b""
    if len(text) != _DIGEST_HEX or len(head) * 2 != _DIGEST_HEX:
        raise UserError(f"--head {text!r} is not {_DIGEST_HEX} hex digits")
    return head


class _Progress:
    """A progress bar on stderr, for long records."""

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
