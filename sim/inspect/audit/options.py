"""The options of an audit, and the limits and commands that follow from them."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Adversary
from deltafl.sim.inspect.audit.expected import DEFAULT_FALSE_ALARM_RATE, DEFAULT_MIN_TAIL, Expected
from deltafl.sim.inspect.audit.source import Source


@dataclass(frozen=True, slots=True)
class Options:
    """What a person may set.

    Attributes:
        truth: A truth file of the same run.
        head: The digest that the transcript must end with, 32 bytes.
        adversary: What the server may be; by default what the run's settings say, else curious.
        colluding: Share of devices that may collude; by default as the run's settings say.
        min_cohort: Fewest devices in a sum; by default as the run's settings say.
        sparse_if_active: Whether sparse graphs are accepted from an active server; where the run's
            settings ask for one, they are.
        unverified_if_active: Whether searches of an active server are accepted that devices cannot
            check.
        min_difference: Fewest devices by which sums of the same inputs may differ; by default 3.
        min_tail: Fewest devices that may pass a filter.
        false_alarm_rate: Of the tests of masked bytes, all together.
    """

    truth: Path | None = None
    head: bytes | None = None
    adversary: Adversary | None = None
    colluding: float | None = None
    min_cohort: int | None = None
    sparse_if_active: bool = False
    unverified_if_active: bool = False
    min_difference: int = 3
    min_tail: int = DEFAULT_MIN_TAIL
    false_alarm_rate: float = DEFAULT_FALSE_ALARM_RATE


def expected_of(source: Source, options: Options) -> Expected:
    """The limits that a run is held to: those given, else those of its settings."""
    privacy = source.config.privacy if source.config else None
    default = RoundPolicy()
    adversary = options.adversary
    if adversary is None:
        adversary = Adversary(privacy.adversary) if privacy else default.adversary
    colluding = options.colluding
    if colluding is None:
        colluding = privacy.colluding if privacy else default.colluding_rate
    floor = options.min_cohort
    if floor is None:
        floor = privacy.min_cohort if privacy else default.min_cohort
    policy = RoundPolicy(
        adversary=adversary,
        colluding_rate=colluding,
        dropout_rate=privacy.expected_dropout if privacy else default.dropout_rate,
        min_cohort=floor,
        min_tail=privacy.min_tail if privacy else default.min_tail,
        sparse_if_active=options.sparse_if_active
        or (privacy is not None and privacy.graph == "sparse"),
        unverified_if_active=options.unverified_if_active,
    )
    return Expected(policy, options.min_difference, options.min_tail, options.false_alarm_rate)


def reproduce(source: Source, options: Options) -> tuple[str, ...]:
    """The commands that make this report again."""
    given = shlex.quote(str(source.given))
    arguments, default = ["deltafl", "audit", given], Options()
    for flag, name in (
        ("--truth", "truth"),
        ("--head", "head"),
        ("--adversary", "adversary"),
        ("--colluding", "colluding"),
        ("--min-cohort", "min_cohort"),
        ("--min-difference", "min_difference"),
        ("--min-tail", "min_tail"),
        ("--false-alarms", "false_alarm_rate"),
    ):
        value = getattr(options, name)
        if value != getattr(default, name):
            shown = value.hex() if isinstance(value, bytes) else str(value)
            arguments += [flag, shlex.quote(shown)]
    if options.sparse_if_active:
        arguments.append("--sparse-if-active")
    if options.unverified_if_active:
        arguments.append("--unverified-if-active")
    command = " ".join(arguments)
    return (command, f"{command} --json", f"{command} --html report.html")
