"""The arguments of `deltafl watch`; nothing heavy is loaded for its help."""

import argparse
from pathlib import Path
from typing import Final

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

A run may be begun later: the page waits for it. RUN may also be the folder of `deltafl federation
up`: the run in it is shown. `deltafl report` writes a page to a file, of runs in progress too. On
another machine, forward the port:
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


def main(options: argparse.Namespace) -> int:
    """Show the page until the user ends it; the exit code."""
    from deltafl.sim.view import watch

    return watch.main(options)
