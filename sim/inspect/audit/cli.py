"""What `deltafl audit` does; its arguments are in `options`, what it prints is in `text`.

Exit codes: 0 nothing found at or above `--fail-on`, 1 something found, 2 nothing to be audited.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path

from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.html import render
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.inspect.audit.options import Options, given, reproduce
from deltafl.sim.inspect.audit.report import AuditReport
from deltafl.sim.inspect.audit.sarif import to_sarif
from deltafl.sim.inspect.audit.source import find_source
from deltafl.sim.inspect.audit.text import describe
from deltafl.sim.progress import Bar
from deltafl.sim.record.labels import read_comparison
from deltafl.sim.record.own_files import write_file
from deltafl.sim.record.rundir import RunDirectory, check_output


def main(arguments: argparse.Namespace) -> int:
    """Audit and report; the exit code.

    Raises:
        UserError: there is nothing to audit, or the report would replace what is audited.
    """
    options, source = given(arguments), arguments.source
    if options.truth is not None and not options.truth.is_file():
        raise UserError(f"{options.truth} does not exist: give the truth.sqlite of the run")
    written = {arguments.html: render, arguments.sarif: to_sarif}
    written.pop(None, None)
    for path in written:
        check_output(path, [source, *filter(None, [options.truth])])
    reports = _audited(source, options, quiet=arguments.quiet or arguments.json)
    for path, text_of in written.items():
        write_file(path, text_of(*reports).encode())
    if arguments.json:
        print(json.dumps(_as_json(reports), indent=2, allow_nan=False))
    else:
        print(describe(*reports))
        for path in written:
            print(f"\nThe whole report on {source} is in {path}.")
    found = [finding.severity for report in reports for finding in report.findings]
    return int(any(one >= Severity[arguments.fail_on.upper()] for one in found))


def _audited(source: Path, options: Options, *, quiet: bool) -> list[AuditReport]:
    """The reports on all runs that are meant; runs in clear beside private ones are baselines."""
    reports: list[AuditReport] = []
    runs = list(_runs(source))
    if len(runs) > 1 and not RunDirectory(source).is_run and (options.truth or options.head):
        raise UserError(f"--truth and --head are of one run: audit one of those in {source}")
    are_mixed = len({find_source(run).is_in_clear for run in runs}) > 1
    each = replace(options, is_baseline=are_mixed)
    for run in runs:
        with Bar(unit="row", unit_scale=True, desc="audit", quiet=quiet) as bar:
            report = audit(run, each, partial(_advance, bar))
        reports.append(replace(report, reproduce=reproduce(source, options)))
        each = replace(each, truth=None, head=None)  # these are of the first
    return reports


def _runs(path: Path) -> Iterator[Path]:
    """A record; a run, and the further ones of its experiment; or those of all runs of a folder."""
    if not path.is_dir():
        yield path
    elif RunDirectory(path).is_run or not (compared := read_comparison(path)):
        yield path
        for _, arm in islice(RunDirectory(path).runs(find_source(path).arms), 1, None):
            if arm.is_run:
                yield arm.path
    else:
        for name in compared:
            yield from _runs(path / name)


def _as_json(reports: Sequence[AuditReport]) -> dict[str, object]:
    said = asdict(verdict(*reports))
    del said["not_checked"]  # it is in the reports
    if len(reports) == 1:
        return {"verdict": said, **reports[0].to_json()}
    return {"verdict": said, "runs": [_as_json([one]) for one in reports]}


def _advance(bar: Bar, done: int, rows: int, round_number: int) -> None:
    """Draw how far an audit is."""
    bar.total = rows
    bar.set_postfix_str(f"round {round_number}", refresh=False)
    bar.update(done - bar.n)
