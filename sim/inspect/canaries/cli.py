"""`deltafl audit canaries`: a lower bound on ε, measured, beside what the settings claim.

Exit codes: 0 the bound is below the claim, and above it without noise; 1 one of both is not so;
2 nothing could be measured.
"""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from deltafl.sim.errors import UserError
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.run.accounting import rounded_down, rounded_up
from deltafl.sim.settings.config import Sums
from deltafl.sim.settings.given import add_flags, add_settings, config_of

if TYPE_CHECKING:  # loads torch and scipy, which help and refusals do not need
    from deltafl.sim.inspect.canaries.experiment import Comparison, Measured

_DESCRIPTION: Final = """\
Measure a lower bound on ε, and compare it with the ε that a run of these settings claims.

The run is played with canaries in place of devices: each sends an update of the largest size, or
its opposite, by a coin. Whoever guesses the coins from what the server sees is right more often the
less noise there is, and so many right guesses refute every ε below some bound, at a confidence of
95 % (Steinke, Nasr, Jagielski 2023). Then the same run is played as a control, with the least noise
that settings may ask for in updates: it hides no canary, and is called "without noise" below.

A bound above the claim would show that noise or accountant are wrong. A bound below it proves no
privacy: other guesses might be better. Canaries test the sums of updates, and not the searches.
Only the shape of the data matters; no model is trained.
"""

_EXAMPLES: Final = """\
examples:
  deltafl audit canaries --preset population-100k-dp --sums ideal
      a thousand canaries in twenty rounds (seconds); masked sums are the same integers
  deltafl audit canaries my.toml --set dp.noise=1/2 --rounds 5
      your own settings, with less noise
  deltafl audit canaries --preset population-100k-dp --json
      the same for programs, with masks

exit codes: 0 the bound is below the claim, and without noise above it; 1 it is not; 2 nothing can
be measured (no noise in the settings, other settings that do not fit).
docs/how-to/differentially-private-runs.md explains the figures.
"""

_SETTINGS: Final = {
    "--rounds": ("N", "number of rounds", str),
    "--seed": ("S", "seed of cohorts, drop-outs and coins", str),
    "--sums": ("|".join(Sums), "secure sums with cryptography, or without (faster)", str),
}
_FLAGS: Final = {"rounds": "federation.rounds", "seed": "experiment.seed", "sums": "privacy.sums"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.usage = "deltafl audit canaries [CONFIG.toml] [--preset NAME] [more flags]"
    add_settings(parser)
    add_flags(parser, _SETTINGS)
    add_json(parser)
    add_quiet(parser)


def main(options: argparse.Namespace) -> int:
    """Measure and print; the exit code.

    Raises:
        UserError: nothing can be measured with these settings.
    """
    config = config_of(options, flags=_FLAGS)
    if not config.dp.noise:
        raise UserError(
            "dp.noise = 0: such a run claims no ε; set dp.noise, or begin with "
            "--preset population-100k-dp"
        )
    from deltafl.sim.inspect.canaries.experiment import measure

    found = measure(config, quiet=options.quiet or options.json)
    if options.json:
        verdict = {"holds": found.holds, "control": found.control}
        print(json.dumps({**asdict(found), **verdict}, indent=2, allow_nan=False))
    else:
        print(describe(found))
    return 0 if found.holds and found.control else 1


def describe(found: "Comparison") -> str:
    """What was found, for people."""
    on, off = found.with_noise, found.without_noise
    rows = [
        ("claimed", f"ε = {rounded_up(found.claimed)} at δ = {found.delta:g}, by the accountant"),
        ("measured", f"ε ≥ {rounded_down(on.epsilon)}: {_guesses(on)}"),
        ("without noise", f"ε ≥ {rounded_down(off.epsilon)}: {_guesses(off)}"),
        (
            "played",
            f"{found.rounds} rounds, each canary in {found.participations} at most; "
            f"confidence {found.confidence:.0%}",
        ),
    ]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join([*(f"{name:<{width}}{text}" for name, text in rows), "", _verdict(found)])


def _guesses(one: "Measured") -> str:
    return f"{one.right:,} of {one.guesses:,} guesses right, of {one.canaries:,} canaries"


def _verdict(found: "Comparison") -> str:
    if not found.holds:
        return (
            "The sums tell more than the settings claim: the noise or the accountant is wrong, or "
            f"this is one of the {1 - found.confidence:.0%} of the cases in which a bound is."
        )
    if not found.control:
        return (
            "Nothing refutes the claim, but nothing could: even without noise, so few canaries do "
            "not show as much as the settings claim. Take more devices, rounds or parameters."
        )
    return "Nothing refutes the claim; the same canaries refute it without noise."
