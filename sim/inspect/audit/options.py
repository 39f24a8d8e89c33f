"""What a person may set of an audit: the arguments of `deltafl audit`, and what follows from them.

Nothing heavy is loaded for its help.
"""

import argparse
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from deltafl.secagg.threat import Adversary
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.settings.given import add_flags, within

_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Options:
    """What a person may set.

    Attributes:
        truth: A truth file of the same run.
        data: Where the run's data are; no file is opened because a record names it.
        head: The digest that the transcript must end with, 32 bytes.
        adversary: What the server may be; by default as the run's settings say.
        colluding: Share of the devices that may collude; by default as the run's settings say.
        min_cohort: Fewest devices in a sum; by default as the run's settings say.
        min_difference: Fewest devices by which sums of the same inputs may differ.
        min_honest_tail: Fewest devices of a tail beside those that may collude; by default as the
            run's settings say.
        limits: Other limits of devices, as `policy.key=value`; see `PolicyConfig`.
        false_alarm_rate: How often the tests of masked bytes, all together, may report perfectly
            random ones.
        independent: Whether sums are computed once more, by code of its own.
        is_baseline: Whether the run is audited beside another, as its baseline: it may be in clear.
    """

    truth: Path | None = None
    data: Path | None = None
    head: bytes | None = None
    adversary: Adversary | None = None
    colluding: float | None = None
    min_cohort: int | None = None
    min_difference: int = 3
    min_honest_tail: int | None = None
    limits: tuple[str, ...] = ()
    false_alarm_rate: float = 1e-6
    independent: bool = False
    is_baseline: bool = False


_DESCRIPTION: Final = """\
Read what the server of a run sent and received, and find out what it saw, which guarantees held,
and what follows from the sums that were released. A record is all that is needed. With the file of
truth, which only simulations write, devices are played again too. Of a folder of runs, all are
audited.
"""
_EXAMPLES: Final = """\
examples:
  deltafl audit runs/quickstart
      a run of this program by its settings, and its baselines
  deltafl audit record.sqlite --adversary active --min-cohort 20 --head 5f0a…
      a record by itself, held to what you know of it
  deltafl audit runs/audited --truth runs/audited/truth.sqlite --html report.html
      a simulation that kept the truth (`deltafl run --transcript full --truth`)
exit codes: 0 nothing found at or above --fail-on; 1 something found; 2 nothing that can be audited.
Every finding is explained in docs/audit.md.
"""


def _digest(text: str) -> bytes:
    """The digest that 64 hex digits are."""
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != _DIGEST_BYTES or digest.hex() != text.lower():
        raise argparse.ArgumentTypeError(f"{text!r} is not {2 * _DIGEST_BYTES} hex digits")
    return digest


_WITH_VALUES: Final[Mapping[str, tuple[str, str, Callable[[str], object]]]] = {
    "--html": ("FILE", "write the report as one page", Path),
    "--sarif": ("FILE", "write the findings as SARIF 2.1.0, for code hosts and CI", Path),
    "--truth": ("FILE", "truth.sqlite of the run", Path),
    "--data": (
        "FILE",
        "where the run's data are: none are opened because a record names them",
        Path,
    ),
    "--head": ("HEX", "digest that the record must end with, 64 hex digits", _digest),
    "--adversary": ("|".join(Adversary), "what the server may be", Adversary),
    "--colluding": (
        "SHARE",
        "devices that may collude with it (else 0.1)",
        within("[0, 1)", float),
    ),
    "--min-cohort": ("M", "fewest devices in sums and searches (else 10)", within("[2, inf)")),
    "--min-difference": ("M", "fewest devices by which sums may differ (3)", within("[1, inf)")),
    "--min-honest-tail": ("M", "fewest devices of a tail that do not collude", within("[0, inf)")),
    "--false-alarms": ("P", "false alarms of all tests together (1e-6)", within("(0, 1)", float)),
}
_WITHOUT: Final = {
    "--independent": "compute all sums once more, by code that nothing else shares (slow)",
}
_OTHERWISE: Final = {"limits": "--set", "false_alarm_rate": "--false-alarms"}


def _flag(option: str) -> str:
    return _OTHERWISE.get(option, f"--{option.replace('_', '-')}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    told = "a run directory, a folder of runs, or a record"
    parser.add_argument("source", type=Path, metavar="RUN", help=told)
    add_flags(parser, _WITH_VALUES)
    levels = [severity.name.lower() for severity in Severity]
    told = "severity from which findings make the exit code 1 (medium)"
    parser.add_argument("--fail-on", choices=levels, default="medium", help=told)
    told = "another limit of the devices, such as policy.max_pivots=320; repeat as needed"
    parser.add_argument("--set", action="append", default=[], metavar="policy.KEY=VALUE", help=told)
    for flag, told in _WITHOUT.items():
        parser.add_argument(flag, action="store_true", help=told)
    add_json(parser)
    add_quiet(parser)


def given(arguments: argparse.Namespace) -> Options:
    """What the arguments of the command say."""
    values = {one.name: getattr(arguments, one.name, None) for one in fields(Options)}
    values |= {"limits": tuple(arguments.set), "false_alarm_rate": arguments.false_alarms}
    return Options(**{name: value for name, value in values.items() if value is not None})


def main(arguments: argparse.Namespace) -> int:
    """Audit and report; the exit code."""
    from deltafl.sim.inspect.audit import cli

    return cli.main(arguments)


def reproduce(source: Path, options: Options) -> tuple[str]:
    """The command that makes this report again.

    Args:
        source: What is audited.
        options: The limits that are applied.
    """
    words = ["deltafl", "audit", str(source)]
    for one in fields(Options):
        value = getattr(options, one.name)
        if value == one.default or one.name == "is_baseline":
            continue
        for each in value if isinstance(value, tuple) else (value,):
            shown = each.hex() if isinstance(each, bytes) else str(each)
            words += [_flag(one.name)] if each is True else [_flag(one.name), shown]
    return (shlex.join(words),)
