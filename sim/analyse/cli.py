"""`deltafl analyse`: a statistic of devices' tables, by secure sums."""

import argparse
import json
import math
import re
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from deltafl.fl.read.exact import exact_number
from deltafl.sim.errors import UserError
from deltafl.sim.flags import add_json
from deltafl.sim.run.bound import rounded_up
from deltafl.sim.settings.argument import whole

if TYPE_CHECKING:  # loads NumPy, which help does not need
    from deltafl.sim.analyse.analysis import Answer
    from deltafl.sim.analyse.question import Question

STATISTICS = ("quantile", "histogram", "mean", "variance", "count")

_DESCRIPTION = """\
Find a statistic of a column of the devices' own tables, from secure sums alone.
All devices are simulated in this process, with real keys and masks, out of one
table with a column that says whose each row is.
"""

_EPILOG = """\
examples:
  deltafl analyse mean --data visits.csv --user hospital --column age --range 0 120
  deltafl analyse quantile --data visits.csv --user hospital --column days \\
      --range 0 60 --level 0.9
  deltafl analyse histogram --data app.parquet --user person --column minutes \\
      --range 0 180 --bins 12 --cap 7 --noise 2
  deltafl analyse count --data visits.csv --user hospital --column age \\
      --range 65 120 --out analyses/over-65 && deltafl audit analyses/over-65

Values outside of the range count as its nearest end, and a secure sum says how
many these were; count leaves them out. --cap bounds how many rows of one device
count, the first ones; with --of devices, each device has one value, the mean of
its rows. Values are rounded to a 262,144th of the range or less; whole numbers of
a smaller range that begins at one are not rounded. Without --noise, sums are
exact, which is not differential privacy. With it, they are rounded to a 1,024th,
and the ± is about one standard deviation. --out keeps a record of what the server
sees, for `deltafl audit`.
exit codes: 0 success, 2 invalid request, or too few devices.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.usage = (
        "deltafl analyse STATISTIC --data PATH --user NAME --column NAME --range LOW HIGH "
        "[more flags]"
    )
    # so that -1e3 is a number, and no flag
    parser._negative_number_matcher = re.compile(r"-\.?\d|-inf$", re.ASCII)
    parser.add_argument("statistic", choices=STATISTICS, help=f"one of {', '.join(STATISTICS)}")
    parser.add_argument("--data", required=True, metavar="PATH", help="a .csv or .parquet file")
    parser.add_argument("--user", required=True, metavar="NAME", help="column of the device")
    parser.add_argument("--column", required=True, metavar="NAME", help="column of the values")
    parser.add_argument(
        "--range",
        required=True,
        nargs=2,
        type=float,
        metavar=("LOW", "HIGH"),
        help="where values lie",
    )
    parser.add_argument("--where", metavar="NAME=VALUE", help="only rows with this value")
    parser.add_argument(
        "--of", default="samples", metavar="samples|devices", help="whose distribution it is"
    )
    parser.add_argument(
        "--cap", type=whole("[1, inf)"), default=100, metavar="N", help="most rows of a device"
    )
    parser.add_argument(
        "--bins", type=whole("[1, inf)"), metavar="N", help="of a histogram, and of noisy quantiles"
    )
    parser.add_argument("--level", default="0.5", metavar="Q", help="of the quantile, in (0, 1)")
    parser.add_argument(
        "--noise",
        default="0",
        metavar="Z",
        help="σ of the noise of each sum, in units of what one device can change in it",
    )
    parser.add_argument(
        "--min-cohort",
        type=whole("[2, inf)"),
        default=10,
        metavar="N",
        help="fewest devices, with a row that counts too",
    )
    parser.add_argument(
        "--expected-dropout", type=float, default=0.1, metavar="P", help="share that may vanish"
    )
    parser.add_argument(
        "--colluding", type=float, default=0.1, metavar="P", help="share that may collude"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep a record of what the server sees, in here"
    )
    add_json(parser)


def main(options: argparse.Namespace) -> int:
    """Analyse and print; the exit code.

    Raises:
        UserError: the request is wrong, or there are too few devices.
    """
    from deltafl.fl.errors import DataError
    from deltafl.secagg import ThreatModel, UsageError
    from deltafl.sim.analyse.analysis import Guard, analyse_tables
    from deltafl.sim.analyse.asking import About
    from deltafl.sim.analyse.question import Question
    from deltafl.sim.analyse.tables import read_tables

    bins = options.bins or (10 if options.statistic == "histogram" else 64)
    question = Question(
        options.statistic,
        options.range[0],
        options.range[1],
        of=options.of,
        cap=options.cap,
        bins=bins,
        level=_number("--level", options.level),
        noise=_number("--noise", options.noise),
    )
    try:
        threat = ThreatModel(options.colluding, options.expected_dropout)
        tables = read_tables(
            Path(options.data), options.user, options.column, _where(options.where)
        )
    except (DataError, UsageError) as error:
        raise UserError(str(error)) from error
    guard = Guard(options.min_cohort, threat)
    answer = analyse_tables(
        dict(enumerate(tables.values())),
        question,
        guard,
        out=options.out,
        about=About(options.user, options.column, options.where or ""),
    )
    if options.json:
        print(json.dumps(asdict(answer), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(as_text(answer, question))
    return 0


def as_text(answer: "Answer", question: "Question") -> str:
    """The answer for people."""
    rows = [*_value(answer, question), *_bounds(answer)]
    rows.append(
        (
            "revealed",
            f"{answer.secure_sums} secure sums over {answer.devices:,} devices, of which "
            f"{answer.holders:,.6g} have rows that count",
        )
    )
    if answer.epsilon is None:
        rows.append(("privacy", "sums are exact: this is not differential privacy"))
    else:
        told = (
            f"ε = {rounded_up(answer.epsilon)} at δ = {answer.delta:g}, for all that a device has"
        )
        rows.append(("privacy", told))
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{text}" for name, text in rows)


def _value(answer: "Answer", question: "Question") -> list[tuple[str, str]]:
    what = f"{question.of}, each in [{question.low:.15g}, {question.high:.15g}]"
    about = f" ± {answer.plus_minus:.{6 if answer.epsilon is None else 2}g}"
    about = about if answer.plus_minus else ""
    if isinstance(answer.value, list):
        ends = zip(answer.edges, answer.edges[1:], answer.value, strict=False)
        named = [(f"[{low:g}, {high:g})", count) for low, high, count in ends]
        named[-1] = (named[-1][0][:-1] + "]", named[-1][1])
        return [
            ("histogram", f"of {what}"),
            *((name, f"{count:,.6g}{about}") for name, count in named),
        ]
    name = answer.statistic
    if name == "quantile":
        name = f"{float(question.level):g}-quantile"
    if answer.value is None:
        return [(name, f"none: nothing counted; of {what}")]
    found = [(name, f"{_digits(answer.value, question)}{about}, of {what}")]
    if answer.statistic != "count":
        found.append(("count", f"{answer.count:,.6g}"))
    return found


def _digits(value: float, question: "Question") -> str:
    """A value to six digits, or to as many as its rounding leaves."""
    ratio = max(-question.low, question.high) / float(question.step)
    digits = 6 if question.statistic in ("count", "variance") else math.ceil(math.log10(ratio))
    return f"{value:,.{min(max(digits, 6), 17)}g}"


def _bounds(answer: "Answer") -> list[tuple[str, str]]:
    if answer.outside is None or answer.left_out is None:
        return []
    return [
        ("outside", f"{answer.outside:,} values were outside of the range"),
        ("left out", f"{answer.left_out:,} rows were beyond the cap"),
    ]


def _number(flag: str, text: str) -> Fraction:
    try:
        return exact_number(text)
    except ValueError:
        raise UserError(f"{flag} {text[:40]}: must be a number such as 0.5 or 1/3") from None


def _where(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UserError(f"--where {text[:40]}: must have the form NAME=VALUE")
    return name, value
