"""`deltafl audit leakage`: how much the search for the threshold gives away, by experiment."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Final

from deltafl.fl.nearest import meant
from deltafl.fl.read.exact import exact_number
from deltafl.fl.superquantile import parse_theta
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.inspect.leakage.experiment import (
    METHODS,
    Cell,
    Plan,
    Row,
    VanishingRow,
    Weights,
    run_vanishing,
)
from deltafl.sim.inspect.leakage.experiment import run as run_plan
from deltafl.sim.inspect.leakage.measure import Leakage
from deltafl.sim.inspect.leakage.mitigations import MITIGATIONS, NONE, Mitigation
from deltafl.sim.progress import Bar

_LOST: Final = """
A device vanishes in the middle of a search, and the search ends (the protocol's frozen cohort) or
goes on over the rest. What the server then knows of that device:"""

Record = dict[str, str | int | float | None]
"""A row of a table by its columns."""

_LARGEST_COHORT: Final = 1000
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
  bits                log2 of how much better the attacker's forecast of the i-th smallest loss is
                      after the search, mean over i; a loss known to the tick has lost 14 to 17
  labelled bits       the same about the loss of device k: who has it is asked as well
  error, prior error  mean error of the sorted estimates in nats, and that of a guess without sums
  recovered           losses that the attacker claims to within 0.001 nats, and rightly; then the
                      same about named devices
  exact               searches from which every loss was recovered exactly
  queries             secure sums; certified: the kept devices are proved to be the right ones;
                      same kept: they are those of Algorithm 2; rank error: share of the weight by
                      which the threshold is off, beyond one device

  search bits         for noisy: bits and labelled bits of its answer alone; the sums of the update
                      are exact whatever the noise, and the first columns include them
  rho                 for noisy: what a search costs in zero-concentrated differential privacy

methods: plain is Algorithm 2, in which devices tell their losses; the others are of Algorithm 3.
  noisy asks once for counts in 17 bins, with the noise of --noise and equal weights whatever the
  scenario; at least 8 searches of a kind, several over a cohort where there are fewer cohorts.
weights: equal; known (101 to 447 samples, the server knows how many each device has); unknown (the
  same, but it does not). Mitigations are measured against the server that knows weights.
mitigations:
{mitigations}

examples:
  deltafl audit leakage --cohort 3,5 --methods mm --mitigations none
      the exact losses of small cohorts come out of Algorithm 3's own sums (seconds)
  deltafl audit leakage --cohort 30 --methods bracketed,histogram --mitigations all
      what helps, and what it costs
  deltafl audit leakage --methods all --cohort 3,5,10,30,100 --mitigations all --json
      everything, for programs (some minutes)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    width = max(len(one.name) for one in MITIGATIONS)
    listed = "\n".join(f"  {one.name:<{width}}  {one.text}" for one in MITIGATIONS)
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOGUE.format(mitigations=listed)
    parser.add_argument(
        "--methods", default="all", metavar="all|LIST", help=f"some of {', '.join(METHODS)} (all)"
    )
    parser.add_argument(
        "--cohort", default="3,5,10,30,100", metavar="LIST", help="devices (3,5,10,30,100)"
    )
    parser.add_argument(
        "--mitigations",
        default="all",
        metavar="all|none|LIST",
        help="what to try against it; none is always measured beside them (all)",
    )
    parser.add_argument(
        "--weights",
        default="all",
        metavar="all|LIST",
        help=f"some of {', '.join(Weights)} (all)",
    )
    parser.add_argument(
        "--noise",
        default="1,2,4",
        metavar="LIST",
        help="σ of noisy: standard deviation of each count, of all noise that is due, in devices "
        "(1,2,4)",
    )
    parser.add_argument("--theta", default="0.5", metavar="θ", help="conformity level (0.5)")
    parser.add_argument(
        "--repeats",
        type=int,
        metavar="N",
        help="cohorts of each size (20 up to 5 devices, 12 up to 10, 6 up to 30, then 4)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="of cohorts and starts (1)"
    )
    add_json(parser)
    add_quiet(parser)


def main(options: argparse.Namespace) -> int:
    """Run the experiment and print what was measured; the exit code."""
    try:
        plan = plan_of(options)
    except ValueError as error:
        print(f"deltafl: {error}", file=sys.stderr)
        return 2
    rows, vanishing = _measured(plan)
    searches, lost = records(rows), vanishing_records(vanishing)
    if options.json:
        about = {"theta": str(plan.theta), "seed": plan.seed}
        print(json.dumps({**about, "searches": searches, "vanishing": lost}, indent=2))
        return 0
    print(f"# What the search gives away (θ = {plan.theta}, seed {plan.seed})\n")
    print(as_markdown(searches))
    if lost:
        print(_LOST, as_markdown(lost), sep="\n\n")
    return 0


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan that these arguments ask for.

    Raises:
        ValueError: An argument is unknown or out of its range.
    """
    sizes = []
    for text in _listed(options.cohort):
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _LARGEST_COHORT:
            raise ValueError(f"--cohort: {text!r} is not a number from 1 to {_LARGEST_COHORT}")
        sizes.append(int(text))
    if not sizes:
        raise ValueError("--cohort: name at least one number of devices, such as 3,10")
    theta: Fraction = parse_theta(options.theta)
    if theta == 1:
        raise ValueError("--theta: at θ = 1 nothing is searched; choose one below")
    if options.repeats is not None and options.repeats < 1:
        raise ValueError(f"--repeats={options.repeats} is less than 1")
    if options.seed < 0:
        raise ValueError(f"--seed={options.seed} is negative")
    return Plan(
        methods=_chosen("--methods", options.methods, METHODS),
        cohorts=tuple(sizes),
        mitigations=_mitigations(options.mitigations),
        weights=tuple(Weights(one) for one in _chosen("--weights", options.weights, list(Weights))),
        theta=theta,
        seed=options.seed,
        repeats=options.repeats,
        noise=_noises(options.noise),
    )


def _noises(text: str) -> tuple[Fraction, ...]:
    noises = []
    for part in _listed(text):
        try:
            noise = exact_number(part)
        except ValueError:
            noise = Fraction(0)
        if not _LEAST_NOISE <= noise <= _MOST_NOISE:
            raise ValueError(
                f"--noise: {part!r} is not a number from {_LEAST_NOISE} to {_MOST_NOISE}"
            )
        noises.append(noise)
    if not noises:
        raise ValueError("--noise: name at least one standard deviation, such as 1,4")
    return tuple(noises)


def _mitigations(text: str) -> tuple[Mitigation, ...]:
    names = [one.name for one in MITIGATIONS]
    chosen = {NONE, *_chosen("--mitigations", text, names)}
    return tuple(one for one in MITIGATIONS if one.name in chosen)


def _chosen(flag: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    names = [str(name) for name in known]
    wanted = names if text == "all" else _listed(text)
    for name in wanted:
        if name not in names:
            raise ValueError(
                f"{flag}: unknown {name!r}; choose from {', '.join(names)}, or all"
                f"{meant(name, names)}"
            )
    if not wanted:
        raise ValueError(f"{flag}: name at least one of {', '.join(names)}, or all")
    return tuple(name for name in names if name in wanted)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _measured(plan: Plan) -> tuple[list[Row], list[VanishingRow]]:
    num_cells = sum(1 for _ in plan.cells())
    with Bar(total=num_cells, unit="cell", desc="searches") as bar:

        def told(cell: Cell) -> None:
            bar.set_description(f"{cell.cohort} devices, {cell.label}, {cell.mitigation.name}")
            bar.update()

        rows = run_plan(plan, told=told)
        bar.set_description("devices that vanish")
        return rows, run_vanishing(plan)


def records(rows: Sequence[Row]) -> list[Record]:
    """The rows as flat records; those from "search_bits" on are None but for `noisy`.

    "bits" and "labelled_bits" include the update; "search_bits" and "search_labelled_bits" do not.
    """
    return [
        {
            "devices": row.cell.cohort,
            "weights": row.cell.weights.value,
            "method": row.cell.method,
            "noise": None if row.cell.noise is None else float(row.cell.noise),
            "mitigation": row.cell.mitigation.name,
            "repeats": row.repeats,
            **_rounded(row.leakage),
            **_rounded(row),
        }
        for row in rows
    ]


def vanishing_records(rows: Sequence[VanishingRow]) -> list[Record]:
    """The same for devices that drop out."""
    return [
        {"cohort": row.cohort, "method": row.method, "repeats": row.repeats, **_rounded(row)}
        for row in rows
    ]


def as_markdown(flat: Sequence[Record]) -> str:
    """Records as a Markdown table."""
    headings = [name.replace("_", " ") for name in flat[0]]
    cells = [
        [f"{value:.3g}" if isinstance(value, float) else str(value or "") for value in row.values()]
        for row in flat
    ]
    lines = [headings, ["---"] * len(headings), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rounded(row: Leakage | Row | VanishingRow) -> Record:
    """The fields that are numbers with a fraction, or may be, without ever giving -0."""
    values = {each.name: getattr(row, each.name) for each in fields(row)}
    return {
        name: value if value is None else round(value, 6) + 0.0
        for name, value in values.items()
        if value is None or isinstance(value, float)
    }
