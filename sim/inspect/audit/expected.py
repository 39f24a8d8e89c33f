"""The limits that the auditor applies to a run, set by somebody other than the server."""

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Final

from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Adversary

_NONE_AT_0: Final = {"max_participations", "max_rounds_per_day"}  # limits that are none at 0
DEFAULT_FALSE_ALARM_RATE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Expected:
    """The limits of an audit.

    Attributes:
        policy: What devices were to insist on.
        min_difference: Two released sums of the same inputs may not differ by fewer devices.
        looser: Limits that the run's settings make looser than devices usually have them.
        false_alarm_rate: Probability that the tests of masked bytes report perfect ones.
    """

    policy: RoundPolicy
    min_difference: int
    false_alarm_rate: float = DEFAULT_FALSE_ALARM_RATE
    looser: tuple[str, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether the server may depart from the protocol."""
        return self.policy.adversary is Adversary.ACTIVE


def looser_limits(policy: RoundPolicy) -> tuple[str, ...]:
    """The limits of a policy that are looser than the usual ones, each with the usual value."""
    usual = RoundPolicy()
    values = ((one.name, getattr(policy, one.name)) for one in fields(usual))
    return tuple(
        f"{name}={value} (usually {getattr(usual, name)})"
        for name, value in values
        if _is_looser(name, value, getattr(usual, name))
    )


def _is_looser(name: str, value: object, usual: object) -> bool:
    if name in _NONE_AT_0 and 0 in (value, usual):
        return value == 0 != usual
    match value, usual:
        case bool(), bool():
            return value > usual
        case ((int() | float() | Fraction()), (int() | float() | Fraction())):
            fewer = name.startswith("min_") or name == "colluding_rate"
            return value < usual if fewer else name.startswith("max_") and value > usual
        case _:
            return False
