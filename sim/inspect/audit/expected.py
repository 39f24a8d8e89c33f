"""The limits that the auditor applies to a run, set by somebody other than the server."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from deltafl.protocol.policy import RoundPolicy
from deltafl.sim.errors import ConfigError
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.run.algorithms import looser_limits, policy_of
from deltafl.sim.settings.config_io import assignment, build_config


@dataclass(frozen=True, slots=True)
class Expected:
    """The limits of an audit.

    Attributes:
        policy: What devices were to insist on.
        min_difference: Two released sums of the same inputs may not differ by fewer devices.
        looser: Limits that the run's settings make looser than devices usually have them.
    """

    policy: RoundPolicy
    min_difference: int
    looser: tuple[str, ...] = ()


def expected_of(source: Source, options: Options) -> Expected:
    """The limits that a run is held to: those given, else its settings', else the usual ones.

    Raises:
        ConfigError: a limit that was given is unknown, or not in its range.
    """
    # Nothing but settings says which share may be missing from a sparse session. What its own
    # min_cohort lets be missing, its bounds have to cover in any case.
    policy = RoundPolicy(dropout_rate=0.9) if source.config is None else policy_of(source.config)
    given: dict[str, Any] = {
        "adversary": options.adversary,
        "colluding_rate": options.colluding,
        "min_cohort": options.min_cohort,
        "min_honest_tail": options.min_honest_tail,
        **_limits(options.limits),
    }
    held = replace(policy, **{name: value for name, value in given.items() if value is not None})
    return Expected(held, options.min_difference, looser_limits(policy))


def _limits(given: Sequence[str]) -> dict[str, Any]:
    """The limits by name, read as settings of a run are."""
    tables = [assignment(text) for text in given]
    if others := {name for table in tables for name in table} - {"policy"}:
        raise ConfigError(f"--set {min(others)}.…: an audit takes only limits, of section policy")
    config = build_config(tables)
    return {name: getattr(config.policy, name) for table in tables for name in table["policy"]}
