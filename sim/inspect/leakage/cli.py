"""`deltafl audit leakage`: how much the search for the threshold gives away, by experiment."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from fractions import Fraction
from typing import Final, TypeVar

from deltafl.fl.nearest import meant
from deltafl.fl.read.exact import exact_number
from deltafl.fl.superquantile import parse_theta
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.inspect.leakage.experiment import (
    METHODS,
    MITIGATIONS,
    Plan,
    Record,
    Weights,
    measured,
)
from deltafl.sim.progress import Bar
from deltafl.sim.settings.given import within

_Part = TypeVar("_Part")

_TRIED: Final = "what to try against it; none is always measured beside them"
_OF_NOISE: Final = (
    "σ of noisy: standard deviation of each count, of all noise that is due, in devices"
)
_LEAST_NOISE: Final = Fraction(1, 1000)
_MOST_NOISE: Final = 1000

_DESCRIPTION: Final = """\
Measure what the search for the loss threshold gives away, by playing an attacker in the server's
place. Cohorts of random losses (Gamma(2), mean 1 nat) are searched by every method; the attacker
gets what the server gets, sums at public pivots and the sums of the update, knows how losses are
distributed, and estimates every loss. No cryptography runs: masked sums are the same integers.
"""

_EPILOGUE: Final = """\
columns:
  bits                log2 of how much better the i-th smallest loss is forecast after the search,
                      mean over i; a loss known to the tick has lost 14 to 17
  labelled bits       the same about the loss of device k
  error, prior error  mean error of the sorted estimates in nats, and that of a guess without sums
  recovered           losses claimed to within 0.001 nats, and rightly; then those of named devices
  exact               searches from which every loss was recovered exactly
  queries             secure sums; certified: the kept devices are proved to be the right ones;
                      same kept: they are those of Algorithm 2; rank error: share of the weight by
                      which the threshold is off, beyond one device
  search bits         for noisy: bits and labelled bits of its answer alone; the first columns
                      include the sums of the update, which are exact whatever the noise
  rho                 for noisy: what a search costs in zero-concentrated differential privacy

methods: plain is Algorithm 2, in which devices tell their losses; the others are of Algorithm 3.
  noisy asks once for counts in 17 bins, with the noise of --noise and equal weights, in at least 8
  searches of a kind.
weights: equal; known (101 to 447 samples, the server knows how many each device has); unknown (the
  same, but it does not). Mitigations are measured against the server that knows weights.
mitigations:
{mitigations}

examples:
  deltafl audit leakage --cohort 3,5 --methods mm --mitigations none
      the exact losses of small cohorts come out of Algorithm 3's own sums (seconds)
  deltafl audit leakage --json
      everything, for programs (some minutes)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    tried, weights = {one.name: one for one in MITIGATIONS}, {one.value: one for one in Weights}
    methods, width = {one: one for one in METHODS}, max(map(len, tried))
    listed = "\n".join(f"  {name:<{width}}  {one.text}" for name, one in tried.items())
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOGUE.format(mitigations=listed)
    for flag, metavar, kind, usual, told in (
        ("--methods", "all|LIST", _some_of(methods), "all", f"some of {', '.join(METHODS)}"),
        ("--cohort", "LIST", _several(within("[1, 1000]")), "3,5,10,30,100", "devices"),
        ("--mitigations", "all|none|LIST", _some_of(tried), "all", _TRIED),
        ("--weights", "all|LIST", _some_of(weights), "all", f"some of {', '.join(Weights)}"),
        ("--noise", "LIST", _several(_sigma), "1,2,4", _OF_NOISE),
        ("--theta", "θ", _level, "0.5", "conformity level"),
        ("--seed", "S", within("[0, inf)"), 1, "of cohorts and starts"),
    ):
        help_ = f"{told} ({usual})"
        parser.add_argument(flag, metavar=metavar, type=kind, default=usual, help=help_)
    told = "cohorts of each size (20 up to 5 devices, 12 up to 10, 6 up to 30, then 4)"
    parser.add_argument("--repeats", type=within("[1, inf)"), metavar="N", help=told)
    add_json(parser)
    add_quiet(parser)


def main(options: argparse.Namespace) -> int:
    """Run the experiment and print what was measured; the exit code."""
    plan = plan_of(options)
    searches = _measured(plan)
    if options.json:
        about = {"theta": str(plan.theta), "seed": plan.seed}
        print(json.dumps({**about, "searches": searches}, indent=2))
        return 0
    print(f"# What the search gives away (θ = {plan.theta}, seed {plan.seed})\n")
    print(as_markdown(searches))
    return 0


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan that these arguments ask for."""
    asked = {one.name: getattr(options, one.name, None) for one in fields(Plan)}
    return Plan(**{**asked, "cohorts": options.cohort})


def _several(convert: Callable[[str], _Part]) -> Callable[[str], tuple[_Part, ...]]:
    """A type for `argparse`: values between commas."""

    def read(text: str) -> tuple[_Part, ...]:
        parts = tuple(convert(part.strip()) for part in text.split(",") if part.strip())
        if not parts:
            raise argparse.ArgumentTypeError(f"{text!r} names nothing: give at least one")
        return parts

    return read


def _some_of(known: Mapping[str, _Part]) -> Callable[[str], tuple[_Part, ...]]:
    """A type for `argparse`: what has all of these names, or some, in their order."""

    def named(name: str) -> _Part:
        if name not in known:
            told = f"unknown {name!r}; choose from {', '.join(known)}, or all{meant(name, known)}"
            raise argparse.ArgumentTypeError(told)
        return known[name]

    def read(text: str) -> tuple[_Part, ...]:
        wanted = known.values() if text == "all" else _several(named)(text)
        return tuple(one for one in known.values() if one in wanted)

    return read


def _sigma(text: str) -> Fraction:
    with suppress(ValueError):
        noise = exact_number(text)
        if _LEAST_NOISE <= noise <= _MOST_NOISE:
            return noise
    told = f"{text!r} is not a number from {_LEAST_NOISE} to {_MOST_NOISE}"
    raise argparse.ArgumentTypeError(told)


def _level(text: str) -> Fraction:
    try:
        theta: Fraction = parse_theta(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if theta == 1:
        raise argparse.ArgumentTypeError("at θ = 1 nothing is searched; choose one below")
    return theta


def _measured(plan: Plan) -> list[Record]:
    rows, cells = [], list(plan.cells())
    with Bar(cells, unit="cell", desc="searches") as bar:
        for cell in bar:
            bar.set_description(f"{cell.cohort} devices, {cell.label}, {cell.mitigation.name}")
            rows.append(measured(plan, cell))
    return rows


def as_markdown(flat: Sequence[Record]) -> str:
    """Records as a Markdown table."""
    headings = [name.replace("_", " ") for name in flat[0]]
    cells = [list(map(_cell, row.values())) for row in flat]
    lines = [headings, ["---"] * len(headings), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value or "")
