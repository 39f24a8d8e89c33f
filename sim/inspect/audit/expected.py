"""The limits that the auditor applies to a run, set by somebody other than the server."""

from dataclasses import dataclass

from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Adversary
from deltafl.sim.inspect.audit.flags import FALSE_ALARMS


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
    false_alarm_rate: float = FALSE_ALARMS
    looser: tuple[str, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether the server may depart from the protocol."""
        return self.policy.adversary is Adversary.ACTIVE
