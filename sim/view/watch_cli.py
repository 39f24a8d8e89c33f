"""The command `deltafl watch`."""

import argparse
import contextlib
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from deltafl.sim.errors import UserError
from deltafl.sim.record.atomic import write_file
from deltafl.sim.record.rundir import DEVICES, FEDERATED, RunDirectory, check_output
from deltafl.sim.record.snapshot import Reader
from deltafl.sim.settings.given import address
from deltafl.sim.view.page import page_of_moment
from deltafl.sim.view.sections import Page, whole_traffic
from deltafl.sim.view.server import Server, Watched
from deltafl.sim.visible import visible

DEFAULT: Final = "127.0.0.1:8090"
"""Where the page is, by default."""

_DESCRIPTION: Final = """\
Show a run as a page for a browser: test errors by round with their spread over seeds, how they lie
over devices, who is helped and who is hurt, the search for the threshold, seconds and bytes,
drop-outs. The page follows a run in progress, and shows one that is over. It asks nobody but this
program, and changes nothing in the run directory.
"""

_EXAMPLES: Final = f"""\
examples:
  deltafl watch runs/quickstart
      then open http://{DEFAULT}/ ; Ctrl-C ends it
  deltafl watch runs/quickstart --listen 127.0.0.1:0
      at any port that is free; the command says which
  deltafl watch runs/quickstart --once now.html
      write the page as it is now to a file, and end

A run may be begun later: the page waits for it. RUN may also be the folder of `deltafl federation
up`: the run in it is shown. On another machine, forward the port:
  ssh -L 8090:127.0.0.1:8090 MACHINE deltafl watch RUN
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument(
        "--listen",
        default=DEFAULT,
        metavar="HOST:PORT",
        help=f"where the page is ({DEFAULT}); whoever reaches it sees the errors of single devices",
    )
    parser.add_argument(
        "--once", type=Path, metavar="FILE.html", help="write the page to a file instead"
    )


def main(options: argparse.Namespace) -> int:
    """Show the page until the user ends it; the exit code.

    Raises:
        UserError: there is no such run, or nothing can listen there.
    """
    if options.run.exists() and not options.run.is_dir():
        raise UserError(f"{options.run} is not a directory: name the directory of a run")
    run = _run_in(options.run)
    if options.once is not None:
        return _write(run, options.once)
    host, port = address(options.listen, "--listen")
    with Server(Watched(run), host, port) as server, contextlib.suppress(KeyboardInterrupt):
        _say(f"{run} is shown at {server.url} (Ctrl-C ends it)")
        if not _is_this_machine(host):
            _say("note: others can reach this address, and see the errors of single devices there")
        server.serve_forever()
    return 0


def _run_in(folder: Path) -> Path:
    """The run that is meant: the folder, or of a federation on this machine, the run in it."""
    is_run = RunDirectory(folder).config.exists()
    return folder / FEDERATED if not is_run and (folder / DEVICES).exists() else folder


def _write(run: Path, out: Path) -> int:
    directory = RunDirectory(run)
    if not directory.config.exists():
        raise UserError(f"{run} is not a run directory (it has no config.toml)")
    check_output(out, directory.files)
    snapshot = Reader(run).read()
    write_file(out, page_of_moment(Page([snapshot], whole_traffic(snapshot))).encode())
    _say(f"The page is in {out}.")
    return 0


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _say(sentence: str) -> None:
    print(visible(sentence), file=sys.stderr, flush=True)
