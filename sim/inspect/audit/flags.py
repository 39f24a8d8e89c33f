"""The arguments of `deltafl audit`; nothing heavy is loaded for its help."""

import argparse
from pathlib import Path
from typing import Final

from deltafl.secagg.threat import Adversary
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.inspect.audit.findings import Severity

FALSE_ALARMS: Final = 1e-6
"""How often the tests of masked bytes, all together, report perfectly random ones."""

_DESCRIPTION: Final = """\
Read what the server of a run sent and received, and find out what it saw, which guarantees held,
and what follows from the sums that were released.

A record is all that is needed. Server and run are played again on it, and must do the same to the
byte; masked bytes are tested. With the file of truth, which only simulations write, devices are
played again too. Of a folder of runs, all are audited, into one report and one exit code.
"""

_EXAMPLES: Final = """\
examples:
  deltafl audit runs/quickstart
      a run of this program by its settings, and its baselines
  deltafl audit record.sqlite --adversary active --min-cohort 20 --head 5f0a…
      a record by itself, held to what you know of it
  deltafl audit runs/audited --truth runs/audited/truth.sqlite --html report.html
      a simulation that kept the truth (`deltafl run --transcript full --truth`)
  deltafl audit runs/audited --sarif findings.sarif
      findings for code hosts and CI
  deltafl audit leakage --methods all --cohort 3,5,10,30,100
      what the methods of the search give away, measured

exit codes: 0 nothing found at or above --fail-on; 1 something found; 2 nothing that can be audited
(no such file, another format or version, a truth file of another run).
Every finding is explained in docs/audit.md.
"""

_WITH_VALUES: Final = (
    ("--head", str, "HEX", "digest that the record must end with, 64 hex digits"),
    ("--colluding", float, "SHARE", "devices that may collude with it (as the run says, else 0.1)"),
    (
        "--min-cohort",
        int,
        "M",
        "fewest devices in a sum, and in a search (as the run says, else 5 and 10)",
    ),
    (
        "--min-difference",
        int,
        "M",
        "fewest devices by which sums of the same inputs may differ (3)",
    ),
    (
        "--min-honest-tail",
        int,
        "M",
        "fewest devices of a tail that do not collude (as the run says)",
    ),
)
_FILES: Final = (
    ("--truth", "truth.sqlite of the run"),
    ("--data", "where the run's data are: no file is opened because a record names it"),
    ("--html", "write the report as one page"),
    ("--sarif", "write the findings as SARIF 2.1.0, for code hosts and CI"),
)
_ACCEPTED: Final = (
    ("--sparse-if-active", "sparse graphs from an active server too (docs/limitations.md, item 8)"),
    ("--unverified-if-active", "searches from an active server too that devices cannot check"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.add_argument(
        "source", type=Path, metavar="RUN", help="a run directory, a folder of runs, or a record"
    )
    for flag, text in _FILES:
        parser.add_argument(flag, type=Path, metavar="FILE", help=text)
    add_json(parser)
    parser.add_argument(
        "--fail-on",
        choices=[severity.name.lower() for severity in Severity],
        default=Severity.MEDIUM.name.lower(),
        help="severity from which findings make the exit code 1 (medium)",
    )
    parser.add_argument(
        "--adversary",
        choices=[str(adversary) for adversary in Adversary],
        help="what the server may be (as the run says, else curious)",
    )
    for flag, kind, metavar, text in _WITH_VALUES:
        parser.add_argument(flag, type=kind, metavar=metavar, help=text)
    parser.set_defaults(min_difference=3)
    parser.add_argument(
        "--set",
        dest="limits",
        action="append",
        default=[],
        metavar="policy.KEY=VALUE",
        help="another limit of the devices, such as policy.max_pivots=320; repeat as needed",
    )
    for flag, text in _ACCEPTED:
        parser.add_argument(flag, action="store_true", help=f"accept {text}")
    parser.add_argument(
        "--false-alarms",
        dest="false_alarm_rate",
        type=float,
        default=FALSE_ALARMS,
        metavar="P",
        help=f"how often all tests of masked bytes may report perfect ones ({FALSE_ALARMS:g})",
    )
    parser.add_argument(
        "--independent",
        action="store_true",
        help="compute all sums once more, by code that server and devices do not share (slow)",
    )
    add_quiet(parser)


def main(options: argparse.Namespace) -> int:
    """Audit and report; the exit code."""
    from deltafl.sim.inspect.audit import cli

    return cli.main(options)
