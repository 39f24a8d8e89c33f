"""What a device insists on, whatever the server says. Nothing on the wire can lower it."""

from dataclasses import dataclass

from secagg.errors import PeerError, Refusal
from secagg.params import SessionParams


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """A device's own limits; it refuses a session that asks for less safety or more work.

    Attributes:
        min_cohort: Smallest cohort that the device is summed with.
        min_threshold: Fewest devices that must pool shares to rebuild a secret.
        min_threshold_share: Smallest t / (k + 1): the share of a device's closed neighbourhood
            that must collude to rebuild its secrets.
        max_cohort: Most devices to keep a roster of.
        max_degree: Most neighbours to share secrets with.
        max_slots: Most sums of one session.
        max_length: Most elements of one vector.
        max_ring_bits: Widest ring.
    """

    min_cohort: int = 5
    min_threshold: int = 3
    min_threshold_share: float = 0.25
    max_cohort: int = 1 << 20
    max_degree: int = 1 << 12
    max_slots: int = 256
    max_length: int = 1 << 26
    max_ring_bits: int = 64

    def check(self, params: SessionParams) -> None:
        """Accept a session's parameters.

        Raises:
            PeerError: they fall short of this policy; says which value and the limit.
        """
        degree = min(params.degree, params.num_invited - 1)
        share = params.threshold / (degree + 1)
        longest = max(slot.length for slot in params.slots)
        widest = max(slot.ring_bits for slot in params.slots)
        _at_least("min_cohort", params.min_cohort, self.min_cohort)
        _at_least("threshold", params.threshold, self.min_threshold)
        _at_least("threshold / (degree + 1)", share, self.min_threshold_share)
        _at_most("number of invited devices", params.num_invited, self.max_cohort)
        _at_most("degree", degree, self.max_degree)
        _at_most("number of slots", len(params.slots), self.max_slots)
        _at_most("vector length", longest, self.max_length)
        _at_most("ring bits", widest, self.max_ring_bits)


def _at_least(name: str, value: float, limit: float) -> None:
    if value < limit:
        raise PeerError(Refusal.POLICY, f"{name}={value:g} is below the device's {limit:g}")


def _at_most(name: str, value: float, limit: float) -> None:
    if value > limit:
        raise PeerError(Refusal.POLICY, f"{name}={value:g} is above the device's {limit:g}")
