"""`deltafl audit canaries`: a lower bound on ε, measured, beside what the settings claim.

Exit codes: 0 the bound is below the claim, and above it without noise; 1 one of both is not so;
2 nothing could be measured.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from deltafl.sim.errors import RunError, UserError
from deltafl.sim.flags import add_json, add_quiet
from deltafl.sim.run.accounting import rounded_down, rounded_up
from deltafl.sim.settings.config import RunConfig, Sums
from deltafl.sim.settings.given import add_settings, config_of

if TYPE_CHECKING:  # loads torch and scipy, which help and refusals do not need
    from deltafl.sim.inspect.canaries.rounds import Told

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

_FLAGS: Final = {
    "rounds": "federation.rounds",
    "sums": "privacy.sums",
    "seed": "experiment.seed",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What guesses came to.

    Attributes:
        canaries: Coins tossed.
        guesses: Coins guessed.
        right: Guesses that were right.
        epsilon: The bound that follows.
    """

    canaries: int
    guesses: int
    right: int
    epsilon: float

    @classmethod
    def of(cls, told: "Told", num_guesses: int, delta: float) -> "Measured":
        """Guess so many coins."""
        from deltafl.sim.inspect.canaries.bound import epsilon_at_least

        number, right = len(told.coins), told.right(num_guesses)
        bound = epsilon_at_least(right, num_guesses, number, delta)
        return cls(number, num_guesses, right, bound)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two bounds, and the claim between them.

    Attributes:
        claimed: ε of the settings, by the accountant.
        delta: δ of all three.
        confidence: Of each bound.
        rounds: Rounds played.
        participations: In how many of them a device is invited at most.
        with_noise: The run as it is.
        without_noise: The control.
    """

    claimed: float
    delta: float
    confidence: float
    rounds: int
    participations: int
    with_noise: Measured
    without_noise: Measured

    @property
    def holds(self) -> bool:
        """Whether nothing refutes the claim."""
        return self.with_noise.epsilon <= self.claimed

    @property
    def control(self) -> bool:
        """Whether the canaries would have told that noise is missing."""
        return self.without_noise.epsilon > self.claimed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.usage = "deltafl audit canaries [CONFIG.toml] [--preset NAME] [more flags]"
    add_settings(parser)
    parser.add_argument("--rounds", metavar="N", help="number of rounds")
    parser.add_argument("--seed", metavar="S", help="seed of cohorts, drop-outs and coins")
    parser.add_argument(
        "--sums",
        metavar="|".join(Sums),
        help="secure sums with cryptography, or without (faster)",
    )
    add_json(parser)
    add_quiet(parser)


def main(options: argparse.Namespace) -> int:
    """Measure and print; the exit code.

    Raises:
        UserError: nothing can be measured with these settings.
    """
    config = _config(options)
    if not config.dp.noise:
        raise UserError(
            "dp.noise = 0: such a run claims no ε; set dp.noise, or begin with "
            "--preset population-100k-dp"
        )
    found = measure(config, quiet=options.quiet or options.json)
    if options.json:
        verdict = {"holds": found.holds, "control": found.control}
        print(json.dumps({**asdict(found), **verdict}, indent=2, allow_nan=False))
    else:
        print(describe(found))
    return 0 if found.holds and found.control else 1


def measure(config: RunConfig, *, quiet: bool = False) -> Comparison:
    """Play a run with canaries, with noise and without.

    Args:
        config: Settings with noise in the sums of updates.
        quiet: Whether to show no progress.

    Raises:
        UserError: the settings, or the data that they name, do not fit together.
    """
    from deltafl.fl.errors import DataError
    from deltafl.protocol.errors import ProtocolError
    from deltafl.secagg.errors import SecAggError

    try:
        return _measure(next(iter(config.arms())), quiet=quiet)
    except (DataError, RunError, ProtocolError, SecAggError) as error:
        raise UserError(str(error)) from error


def _measure(config: RunConfig, *, quiet: bool) -> Comparison:
    from deltafl.secagg.session import NoObserver
    from deltafl.sim.data.dataset import build_dataset
    from deltafl.sim.inspect.canaries.bound import CONFIDENCE, guesses_to_make
    from deltafl.sim.inspect.canaries.rounds import play, signal, without_noise
    from deltafl.sim.progress import Bar
    from deltafl.sim.run.accounting import account_of
    from deltafl.sim.run.algorithms import build_rounds
    from deltafl.sim.run.fitting import check_fit
    from deltafl.sim.run.simulated import first_model, spec_of

    dataset = build_dataset(config.data)
    spec = spec_of(config, dataset)
    check_fit(config, dataset, spec)
    number, length = len(dataset.train), first_model(config, spec).size
    account, rounds = account_of(config, number, length), config.federation.rounds
    if account is None:
        raise TypeError("a run with noise has no account: this is a bug")
    account.check(rounds)
    spent = account.after(rounds)
    with Bar(total=2 * rounds, unit="round", desc="canaries", quiet=quiet) as bar:
        told = play(config, number, length, build_rounds(config, NoObserver()), bar.update)
        bar.set_description("canaries without noise")
        off = without_noise(config)
        bare = play(off, number, length, build_rounds(off, NoObserver()), bar.update)
    if not len(told.coins) or not len(bare.coins):
        raise UserError("all rounds were lost, so nothing was summed: lower faults.dropout")
    strength = signal(config, length, spent.participations)
    guesses = guesses_to_make(strength, len(told.coins), spent.delta)
    return Comparison(
        claimed=spent.epsilon,
        delta=spent.delta,
        confidence=CONFIDENCE,
        rounds=rounds,
        participations=spent.participations,
        with_noise=Measured.of(told, guesses, spent.delta),
        without_noise=Measured.of(bare, len(bare.coins), spent.delta),
    )


def describe(found: Comparison) -> str:
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


def _guesses(one: Measured) -> str:
    return f"{one.right:,} of {one.guesses:,} guesses right, of {one.canaries:,} canaries"


def _verdict(found: Comparison) -> str:
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


def _config(options: argparse.Namespace) -> RunConfig:
    return config_of(options, flags=_FLAGS)
