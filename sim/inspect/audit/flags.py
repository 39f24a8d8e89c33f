"""The arguments of `deltafl audit`; nothing heavy is loaded for its help."""

import argparse
from pathlib import Path
from typing import Final

from deltafl.secagg.threat import Adversary
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.inspect.audit.findings import Severity

FALSE_ALARMS: Final = 1e-6
"""How often the tests of masked bytes, all together, report perfectly random ones."""

_LEVELS: Final = tuple(severity.name.lower() for severity in Severity)
_DESCRIPTION: Final = """\
Read what the server of a run sent and received, and find out what it saw, which guarantees held,
and what follows from the sums that were released.

A transcript is all that is needed: every message is decoded, every sum is computed again from the
messages, every question and every model from the sums; lists, keys, shares, signatures, cohorts and
sizes are compared; masked bytes are tested. With a run directory, the run's own account is compared
too; with a truth file, which only simulations write, masked bytes are compared with what they hide.
"""

_EXAMPLES: Final = """\
examples:
  deltafl audit runs/quickstart
      a run of this program, by its settings
  deltafl audit transcript.bin --adversary active --min-cohort 20 --head 5f0a…
      a transcript by itself, held to what you know of it
  deltafl audit runs/audited --truth runs/audited/truth.bin --html report.html
      a simulation that kept the truth (`deltafl run --transcript full --truth`)
  deltafl audit leakage --methods all --cohort 3,5,10,30,100
      what the methods of the search give away, measured

exit codes: 0 nothing found at or above --fail-on; 1 something found; 2 nothing that can be audited
(no such file, another format or version, a truth file of another run).
Every finding is explained in docs/audit.md.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.add_argument(
        "source",
        type=Path,
        metavar="RUN_OR_TRANSCRIPT",
        help="a run directory or transcript.bin",
    )
    parser.add_argument("--truth", type=Path, metavar="FILE", help="truth file of the same run")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="where the run's data are: no file is opened because a record names it",
    )
    add_json(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page")
    parser.add_argument(
        "--fail-on",
        choices=_LEVELS,
        default=Severity.MEDIUM.name.lower(),
        help="severity from which findings make the exit code 1 (medium)",
    )
    parser.add_argument(
        "--head", metavar="HEX", help="digest that the transcript must end with, 64 hex digits"
    )
    parser.add_argument(
        "--adversary",
        choices=[str(adversary) for adversary in Adversary],
        help="what the server may be (by the run's settings, else curious)",
    )
    parser.add_argument(
        "--colluding",
        type=float,
        metavar="SHARE",
        help="devices that may collude with it (by the run's settings, else 0.1)",
    )
    parser.add_argument(
        "--min-cohort",
        type=int,
        metavar="M",
        help="fewest devices in a sum, and in a search (by the run's settings, else 5 and 10)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="policy.KEY=VALUE",
        help="another limit of the devices, such as policy.max_pivots=320; repeat as needed",
    )
    parser.add_argument(
        "--sparse-if-active",
        action="store_true",
        help="accept sparse graphs from an active server too (docs/limitations.md, item 8)",
    )
    parser.add_argument(
        "--unverified-if-active",
        action="store_true",
        help="accept searches from an active server too whose sums devices cannot check",
    )
    parser.add_argument(
        "--min-difference",
        type=int,
        default=3,
        metavar="M",
        help="fewest devices by which two sums of the same inputs may differ (3)",
    )
    parser.add_argument(
        "--min-honest-tail",
        type=int,
        metavar="M",
        help="fewest devices of a tail beside those that may collude (as the run's settings say)",
    )
    parser.add_argument(
        "--false-alarms",
        type=float,
        default=FALSE_ALARMS,
        metavar="P",
        help="probability that the tests of masked bytes, all together, report perfect ones "
        f"({FALSE_ALARMS:g})",
    )
    add_quiet(parser)


def main(options: argparse.Namespace) -> int:
    """Audit and report; the exit code."""
    from deltafl.sim.inspect.audit import cli

    return cli.main(options)
