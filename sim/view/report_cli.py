"""The command `deltafl report`. What is heavy is loaded when it runs, so that help is instant."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltafl.sim.errors import UserError
from deltafl.sim.record.labels import named_runs
from deltafl.sim.record.own_files import write_file
from deltafl.sim.record.rundir import check_output
from deltafl.sim.settings.given import add_flags, add_runs
from deltafl.sim.visible import say

if TYPE_CHECKING:
    from deltafl.sim.record.snapshot import Method

_DESCRIPTION: Final = """\
Write the results of runs as one page that can be sent to somebody: a single HTML file that loads
nothing and runs nothing. It has the charts of `deltafl watch`, what was run on which data and with
which versions, and the methods with paired differences and their intervals. Of runs in progress, it
has what there is, and says so.
"""

_EXAMPLES: Final = """\
examples:
  deltafl report runs/quickstart --out quickstart.html
  deltafl report slow=runs/a fast=runs/b --out both.html --baseline slow
      several runs on one page; runs on the same devices and seeds are compared in pairs
  deltafl report runs/quickstart --out quickstart.html --figures figures/
      also figures for a paper: PDF and SVG, as wide as one column and as two, and their captions
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add_runs(parser)
    add_flags(parser, {"--out": ("FILE.html", "where to write the page", Path)}, required=True)
    add_flags(parser, {"--figures": ("DIR", "write figures for a paper here", Path)})
    parser.add_argument(
        "--audit", action="store_true", help="audit the first run, and show the verdict (minutes)"
    )


def main(options: argparse.Namespace) -> int:
    """Write the page; the exit code.

    Raises:
        UserError: a run is not there, or a file of a run would be replaced.
    """
    from deltafl.sim.inspect.audit.auditor import audit
    from deltafl.sim.inspect.audit.html.verdict import verdict
    from deltafl.sim.record.snapshot import Reader
    from deltafl.sim.view.page import page_of_results
    from deltafl.sim.view.sections import AuditState, Page

    runs = named_runs(options.runs)
    snapshots = [Reader(one.path, one.given).read() for one in runs]
    check_output(options.out)
    page = Page(snapshots, wanted=options.baseline)
    try:
        baseline = page.baseline
    except ValueError as error:
        raise UserError(f"--baseline {error}") from error
    if options.audit:
        page = replace(page, asked=AuditState("done", 1.0, verdict(audit(runs[0].path))))
    write_file(options.out, page_of_results(page).encode())
    say(f"The page is in {options.out}.")
    if options.figures is not None:
        _draw(options.figures, page.methods, baseline)
    return 0


def _draw(folder: Path, methods: "Sequence[Method]", baseline: "Method | None") -> None:
    from deltafl.sim.charts.files import write_paper  # loads the plotting library
    from deltafl.sim.view.pairs import pairs_of

    if folder.exists() and not folder.is_dir():
        raise UserError(f"--figures {folder}: it is not a folder; name another")
    if folder.is_dir():  # otherwise it is made
        check_output(folder / "captions.txt")
    written = write_paper(folder, methods, pairs_of(methods, baseline))
    say(f"{len(written)} files with figures and captions are in {folder}.")
