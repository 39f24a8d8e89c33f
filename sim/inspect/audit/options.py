"""The options of an audit, and the limits and commands that follow from them."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Adversary
from deltafl.sim.errors import ConfigError
from deltafl.sim.inspect.audit.expected import Expected
from deltafl.sim.inspect.audit.flags import FALSE_ALARMS
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.run.algorithms import looser_limits, policy_of
from deltafl.sim.settings.config_io import assignment, build_config


@dataclass(frozen=True, slots=True)
class Options:
    """What a person may set.

    Attributes:
        truth: A truth file of the same run.
        data: Where the data of its settings are; by default, no file is opened that these name.
        head: The digest that the transcript must end with, 32 bytes.
        adversary: What the server may be; by default what the run's settings say, else curious.
        colluding: Share of devices that may collude; by default as the run's settings say.
        min_cohort: Fewest devices in a sum, and in a search; by default as the run's settings say.
        limits: Other limits of devices, as `policy.key=value`; see `PolicyConfig`.
        sparse_if_active: Whether sparse graphs are accepted from an active server; where the run's
            settings ask for one, they are.
        unverified_if_active: Whether searches of an active server are accepted that devices cannot
            check.
        min_difference: Fewest devices by which sums of the same inputs may differ; by default 3.
        min_honest_tail: Fewest devices of a tail beside those that may collude; by default as the
            run's settings say.
        false_alarm_rate: Of the tests of masked bytes, all together.
        independent: Whether sums are computed once more, by code of its own.
        is_baseline: Whether the run is audited beside another, as its baseline: it may be in clear.
    """

    truth: Path | None = None
    data: Path | None = None
    head: bytes | None = None
    adversary: Adversary | None = None
    colluding: float | None = None
    min_cohort: int | None = None
    limits: tuple[str, ...] = ()
    sparse_if_active: bool = False
    unverified_if_active: bool = False
    min_difference: int = 3
    min_honest_tail: int | None = None
    false_alarm_rate: float = FALSE_ALARMS
    independent: bool = False
    is_baseline: bool = False


_FLAGS: Final = {"limits": "--set", "false_alarm_rate": "--false-alarms"}
"""Flags of other names than their options."""


def expected_of(source: Source, options: Options) -> Expected:
    """The limits that a run is held to: those given, else its settings', else the usual ones.

    Raises:
        ConfigError: a limit that was given is unknown, or not in its range.
    """
    # Nothing but settings says which share may be missing from a sparse session. What its own
    # min_cohort lets be missing, its bounds have to cover in any case.
    policy = RoundPolicy(dropout_rate=0.9) if source.config is None else policy_of(source.config)
    looser = looser_limits(policy)
    if options.adversary is not None:
        policy = replace(policy, adversary=options.adversary)
    if options.colluding is not None:
        policy = replace(policy, colluding_rate=options.colluding)
    if options.min_cohort is not None:
        fewest = options.min_cohort
        policy = replace(policy, min_cohort=fewest, min_search_cohort=fewest)
    if options.min_honest_tail is not None:
        policy = replace(policy, min_honest_tail=options.min_honest_tail)
    policy = replace(
        policy,
        **_given(options.limits),
        sparse_if_active=options.sparse_if_active or policy.sparse_if_active,
        unverified_if_active=options.unverified_if_active,
    )
    return Expected(policy, options.min_difference, options.false_alarm_rate, looser)


def _given(limits: Sequence[str]) -> dict[str, Any]:
    """The limits by name, read as settings of a run are."""
    tables = [assignment(text) for text in limits]
    if others := {name for table in tables for name in table} - {"policy"}:
        raise ConfigError(f"--set {min(others)}.…: an audit takes only limits, of section policy")
    config = build_config(tables)
    return {name: getattr(config.policy, name) for table in tables for name in table["policy"]}


def reproduce(given: Path, options: Options) -> tuple[str, ...]:
    """The commands that make this report again.

    Args:
        given: What is audited.
        options: The limits that are applied.
    """
    words = ["deltafl", "audit", str(given)]
    for one in fields(Options):
        value = getattr(options, one.name)
        if value == one.default or one.name == "is_baseline":
            continue
        flag = _FLAGS.get(one.name, f"--{one.name.replace('_', '-')}")
        for each in value if isinstance(value, tuple) else (value,):
            shown = each.hex() if isinstance(each, bytes) else str(each)
            words += [flag] if each is True else [flag, shown]
    command = shlex.join(words)
    return (command, f"{command} --json", f"{command} --html report.html")
