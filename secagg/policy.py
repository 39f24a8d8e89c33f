"""The limits that a device enforces, whatever the server says. No message can lower them.

Spec: §3.7.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import ClassVar, Final, NamedTuple

from deltafl.secagg.errors import PeerError, Refusal, UsageError, whole_number
from deltafl.secagg.messages import SHARES_PER_SLOT
from deltafl.secagg.params import SessionParams
from deltafl.secagg.shamir import NUM_LIMBS
from deltafl.secagg.threat import PROFILES, Adversary, Profile, SparseEvents, at_most


class Range(NamedTuple):
    """What a limit may be: in [least, most] where `most` is allowed, else in [least, most).

    By default, every finite number from the least one on.
    """

    least: int
    most: float = math.inf
    is_closed: bool = False

    def __str__(self) -> str:
        return f"[{self.least}, {self.most}{']' if self.is_closed else ')'}"

    def has(self, value: float | Fraction) -> bool:
        """Whether a number is in the range; NaN is in none."""
        return self.least <= value < self.most or (self.is_closed and value == self.most)


_RATE: Final = Range(0, 1)


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """A device's own limits; it refuses a session that asks for less safety or more work.

    Attributes:
        adversary: How the server may misbehave: which row of `PROFILES` holds. Against an ACTIVE
            one, the device only takes part in signed sessions over the complete graph whose
            threshold is too high for two quorums without a common honest device: 2t > (1 + γ)h,
            where h devices hold shares of one device's secrets.
        colluding_rate: γ, the share of devices that the device expects to collude with the server;
            a NONCOLLUDING one has none. A cohort of `min_cohort` must contain at least two that do
            not, and t of a complete graph must be more than the others by two. Degree and t of a
            sparse graph must withstand them.
        dropout_rate: δ, the share of devices that may be missing from a session over a sparse
            graph: min_cohort must be all invited devices but these.
        min_cohort: Smallest cohort that the device may be summed with.
        max_cohort: Most devices in a roster.
        max_degree: Most neighbours to share secrets with.
        max_slots: Most sums of one session.
        max_length: Most elements of one vector.
        max_sharing_work: Most multiplications to share the secrets of a session: 18·U·h·t for U
            tolerant slots and h holders. A roster makes the device do them all at once; with
            h = t = 4096 and U = 14, which is just within, that took 7.3 seconds of a core.
        max_mask_elements: Most elements of pairwise masks in a session: neighbours times the
            lengths of all slots. A few bytes open a slot and make the device compute its masks.
        max_verified_length: Most elements of a verified slot. Each takes a generator, which costs a
            fifth of a millisecond once, and a third of a kilobyte as long as the process lives.

    Raises:
        UsageError: a limit is not in its range, or of another type.
    """

    adversary: Adversary = Adversary.CURIOUS
    colluding_rate: float = 0.1
    dropout_rate: float = 0.1
    min_cohort: int = 5
    max_cohort: int = 1 << 20
    max_degree: int = 1 << 12
    max_slots: int = 256
    max_length: int = 1 << 26
    max_sharing_work: int = 1 << 32
    max_mask_elements: int = 1 << 32
    max_verified_length: int = 1 << 13

    _ranges: ClassVar[Mapping[str, Range]] = {
        "colluding_rate": _RATE,
        "dropout_rate": _RATE,
        "min_cohort": Range(2),
        "max_cohort": Range(2),
        "max_degree": Range(1),
        "max_slots": Range(1),
        "max_length": Range(1),
    }
    """Limits that are not just any number from 0 on."""

    def __post_init__(self) -> None:
        # A configuration file gives a string, which is not a member of the enum.
        object.__setattr__(self, "adversary", Adversary(self.adversary))
        for limit in fields(self):
            value, allowed = getattr(self, limit.name), self._ranges.get(limit.name, Range(0))
            if isinstance(limit.default, str):
                continue
            if isinstance(limit.default, int):
                value = whole_number(limit.name, value)
                object.__setattr__(self, limit.name, value)
            if not (isinstance(value, int | float | Fraction) and allowed.has(value)):
                raise UsageError(f"{limit.name}={value!r} is not in {allowed}")

    def check(self, params: SessionParams) -> None:
        """Accept a session's parameters.

        Raises:
            PeerError: they fall short of this policy; the message names the value and the limit.
        """
        degree = min(params.degree, params.num_invited - 1)
        longest = max(slot.length for slot in params.slots)
        colluding = self.num_colluding(params.num_invited)
        honest = params.min_cohort - colluding
        self._check_limit("min_cohort", params.min_cohort, "min_cohort")
        self._at_least("min_cohort without colluding devices", honest, 2)
        if params.is_complete:
            # A device's masks depend on t - 1 others, who have to outnumber the colluding ones.
            self._at_least("threshold without colluding devices", params.threshold - colluding, 2)
        self._at_most("number of invited devices", params.num_invited, self.max_cohort)
        self._at_most("degree", degree, self.max_degree)
        self._at_most("number of slots", len(params.slots), self.max_slots)
        self._at_most("vector length", longest, self.max_length)
        # Each of these alone is within its bound, and the product may still take hours.
        elements = degree * sum(slot.wire_length for slot in params.slots)
        work = _sharing_work(params)
        self._at_most("multiplications to share secrets", work, self.max_sharing_work)
        self._at_most("elements of masks", elements, self.max_mask_elements)
        proved = max((slot.length for slot in params.slots if slot.verified), default=0)
        self._at_most("length of a verified slot", proved, self.max_verified_length)
        self._insist(
            params.is_complete or self.profile.takes_sparse,
            f"degree={params.degree} is not that of the complete graph over "
            f"{params.num_invited} devices",
        )
        if self.expects_active:
            self._check_active(params)
        if not params.is_complete:
            self._check_sparse(params)

    @property
    def expects_active(self) -> bool:
        """Whether the device expects a server that may say anything."""
        return self.profile.is_active

    @property
    def profile(self) -> Profile:
        """What the device insists on by the server that it expects."""
        return PROFILES[self.adversary]

    def num_colluding(self, num_devices: int) -> int:
        """The largest number of the devices that may collude."""
        return self.profile.num_colluding(self.colluding_rate, num_devices)

    def _at_least(self, name: str, value: float, limit: float) -> None:
        self._insist(
            value >= limit, f"{name}={_shown(value)} is below the device's {_shown(limit)}"
        )

    def _at_most(self, name: str, value: float, limit: float) -> None:
        self._insist(
            value <= limit, f"{name}={_shown(value)} is above the device's {_shown(limit)}"
        )

    @staticmethod
    def _insist(holds: bool, otherwise: str) -> None:
        """Refuse what a server announced, unless a comparison with a limit holds.

        Raises:
            PeerError: it does not.
        """
        if not holds:
            raise PeerError(Refusal.POLICY, otherwise)

    def _check_limit(self, name: str, value: float, limit: str) -> None:
        """Refuse what is above a limit, or below one that is called a minimum."""
        own: float = getattr(self, limit)
        is_least = limit.startswith("min_")
        side, whose = "below" if is_least else "above", "the device's " if limit == name else ""
        self._insist(
            value >= own if is_least else value <= own,
            f"{name}={_shown(value)} is {side} {whose}{limit}={_shown(own)}",
        )

    def _check_active(self, params: SessionParams) -> None:
        self._insist(params.signed, "the session is not signed: the device insists on it")
        holders = params.num_holders
        colluding = self.num_colluding(holders)
        self._insist(
            2 * params.threshold > holders + colluding,
            f"threshold={params.threshold} is not above ({holders} + {colluding}) / 2: two "
            f"quorums of {holders} holders, {colluding} of them colluding, need not share an "
            "honest one",
        )

    def _check_sparse(self, params: SessionParams) -> None:
        """Refuse a sparse graph that colluding and missing devices may cut or outnumber."""
        invited, smallest = params.num_invited, max(params.min_cohort, params.min_roster)
        # With fewer devices the graph would be complete after all, and have one more holder.
        self._at_least("smallest roster of a sparse graph", smallest, params.degree + 2)
        fewest = invited - at_most(self.dropout_rate, invited)
        self._at_least("min_cohort of a sparse graph", params.min_cohort, fewest)
        colluding, missing = self.num_colluding(invited), invited - params.min_cohort
        events = SparseEvents(invited, smallest, colluding, missing, self.adversary)
        least = events.safe_threshold(params.degree)
        shortfall = f"threshold={params.threshold} is below {least}"
        if least is None:
            shortfall = f"degree={params.degree} is too small: the honest survivors may fall apart"
        self._insist(
            least is not None and params.threshold >= least,
            f"the sparse graph over {invited} devices: {shortfall}, where {colluding} may "
            f"collude and {missing} be missing",
        )


def _sharing_work(params: SessionParams) -> int:
    """Multiplications to share a device's seeds and mask keys: limbs times holders times t."""
    limbs = SHARES_PER_SLOT * NUM_LIMBS * len(params.columns)
    return limbs * params.num_holders * params.threshold


def _shown(value: float) -> str:
    """A number in a message: whole ones with all their digits."""
    return str(value) if isinstance(value, int) else f"{float(value):g}"
