"""Computes a session's number of neighbours k and threshold t from its threat model.

The caller says what it expects: colluding share γ, drop-out share δ, adversary class. Degree and
threshold follow from the bad events of Bell et al. (CCS 2020, sections 3.2–3.5). Each is bounded by
a union bound over the devices, with 40 bits of security and 20 bits of correctness:

- the honest survivors' graph falls apart: two disjoint runs of k/2 devices on the ring are all
  colluding or gone;
- some device has so many colluding neighbours that they could help rebuild its secrets;
- some device keeps fewer than t surviving neighbours, so that the sum is lost.

A device has k neighbours, not counting itself. They hold the shares of its secrets; on a complete
graph the device itself also holds one.

An honest-but-curious server needs t colluding holders to rebuild a secret that it should not see.
An active server can also lie: it tells some holders that a device survived, and others that it
dropped out. It then collects shares of both of the device's secrets, which together reveal its
vector: one share from every honest holder, and two from every colluding one. With h holders, c of
them colluding, it gets at most h + c shares and needs 2t. So if 2t > h + c, any two quorums of t
holders have an honest holder in common, which gives one kind of share and signs one list.

For the sparse graph this is the published semi-malicious analysis: the server may lie about who
dropped out, but it neither chooses the graph nor chooses whom to call lost by their place in it. A
server that does can cut the ring where two runs of k/2 devices contain t − 1 − k/2 or more
colluding ones each, and learn the sums of both parts. Such runs are rare, but not by 40 bits: by 30
for n = 1000 and γ = δ = 0.1. The complete graph has no such limit.

Spec: §3.4, §3.5, §3.6, §14.2, §14.4.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real
from typing import Final, NamedTuple

from deltafl.secagg.errors import UsageError

SECURITY_BITS: Final = 40
CORRECTNESS_BITS: Final = 20
MAX_DEVICES: Final = 1_000_000
_FEASIBLE: Final = 0.9  # the analysis covers γ + δ, or γ + 2δ if active, up to this
_INSECURE: Final = 2.0 ** -(SECURITY_BITS + 1)  # of each of two bad events
_ROUNDING: Final = 1e-14  # keeps floating-point error of rate × n from rounding the unsafe way


class Adversary(StrEnum):
    """What the server may do beyond reading what it receives; each names a `Profile`.

    NONCOLLUDING: honest-but-curious; it follows the protocol, and no device helps it.
    CURIOUS: honest-but-curious; it follows the protocol and shares its view with colluding devices.
    ACTIVE: malicious; it may deviate from the protocol in any way, and devices collude with it.
    """

    NONCOLLUDING = "noncolluding"
    CURIOUS = "curious"
    ACTIVE = "active"


class Profile(NamedTuple):
    """What follows from an adversary, for whoever expects it.

    Attributes:
        counts_colluding: A share γ of the devices colludes. Else γ counts as 0.
        is_active: Sessions are signed, and two quorums have an honest device in common.
        takes_sparse: Sparse graphs are accepted. Their analysis assumes a server that does not
            choose the roster to suit the graph's seed.
        takes_unverified: A device answers a search whose sums it cannot check, or clips by the
            server's radius. A server that lies can then single out the device with the largest
            loss; by two radii over models that hardly differ, it can find the longest update.
        repeats_rounds: A lost round over a model may be repeated. The device has only the server's
            word that its sum is lost.
    """

    counts_colluding: bool
    is_active: bool
    takes_sparse: bool
    takes_unverified: bool
    repeats_rounds: bool

    def num_colluding(self, colluding_rate: float, num_devices: int) -> int:
        """The largest number of the devices that may collude."""
        return at_most(colluding_rate, num_devices) if self.counts_colluding else 0


PROFILES: Final = {
    Adversary.NONCOLLUDING: Profile(False, False, True, True, True),
    Adversary.CURIOUS: Profile(True, False, True, True, True),
    Adversary.ACTIVE: Profile(True, True, False, False, False),
}
"""What devices insist on, by whom they expect."""


@dataclass(frozen=True, slots=True)
class ThreatModel:
    """What a session must withstand.

    Attributes:
        colluding_rate: Share γ of devices that pool their secrets with the server, in [0, 1).
        dropout_rate: Share δ of devices expected to vanish, in [0, 1).
        adversary: The server's power.
    """

    colluding_rate: float = 0.1
    dropout_rate: float = 0.1
    adversary: Adversary = Adversary.CURIOUS

    def __post_init__(self) -> None:
        # A configuration file gives a string, which is not a member of the enum.
        object.__setattr__(self, "adversary", Adversary(self.adversary))
        for name in ("colluding_rate", "dropout_rate"):
            rate = getattr(self, name)
            if not isinstance(rate, Real):
                raise UsageError(f"{name}={rate!r} is not a number")
            if not 0 <= float(rate) < 1:
                raise UsageError(f"{name}={rate} is not in [0, 1)")
        # The overlap of two quorums is 2t less the holders, so a lost device counts twice.
        times = 2 if self.adversary is Adversary.ACTIVE else 1
        if self.colluding_rate + times * self.dropout_rate > _FEASIBLE:
            twice = "twice " if times == 2 else ""
            raise UsageError(
                f"colluding_rate={self.colluding_rate} and {twice}dropout_rate="
                f"{self.dropout_rate} add up to more than {_FEASIBLE}: no parameters are safe"
            )

    def num_colluding(self, num_devices: int) -> int:
        """The largest number of the devices that may collude."""
        return PROFILES[self.adversary].num_colluding(self.colluding_rate, num_devices)

    def num_dropped(self, num_devices: int) -> int:
        """The largest number of devices expected to vanish."""
        return at_most(self.dropout_rate, num_devices)

    def num_surviving(self, num_devices: int) -> int:
        """The smallest number of devices expected to stay."""
        return math.ceil((1 - self.dropout_rate - _ROUNDING) * num_devices)


def at_most(rate: float, num_devices: int) -> int:
    """The largest number of devices that a rate allows, rounded the safe way."""
    return math.floor((rate + _ROUNDING) * num_devices)


def complete_threshold(num_devices: int, threat: ThreatModel) -> int:
    """The threshold of a complete graph, where everyone holds a share of everyone's secrets.

    The threshold is a majority, or more if many devices collude: a device's masks depend on at
    least t − 1 others, who must outnumber the colluding ones. If many devices vanish, less than a
    majority is enough against a curious server. Against an active one, t is the smallest number
    with 2t > n + c; this also holds for any roster of fewer than n devices.

    Spec: §3.4.

    Raises:
        UsageError: colluding and vanishing devices leave no room for a threshold.
    """
    _check_size(num_devices)
    colluding = threat.num_colluding(num_devices)
    survivors = threat.num_surviving(num_devices)
    if threat.adversary is Adversary.ACTIVE:
        quorum = _overlapping(num_devices, colluding)
    else:
        quorum = min(_overlapping(num_devices, 0), survivors)
    threshold = max(quorum, colluding + 2)
    if threshold > survivors:
        raise UsageError(
            f"{num_devices} devices of which {colluding} collude and "
            f"{num_devices - survivors} vanish: no threshold is both safe and reachable; "
            "take a larger cohort or smaller rates"
        )
    return threshold


def sparse_parameters(num_devices: int, threat: ThreatModel) -> tuple[int, int]:
    """The smallest safe degree of a sparse graph, and its threshold.

    They are safe as long as at most ⌊δn⌋ of the n devices are missing in all, whether they never
    came or vanished later (`SessionParams.min_cohort` sees to that).

    Spec: §3.5.

    Returns:
        (k, t), k even and below num_devices − 1 − ⌊δn⌋.

    Raises:
        UsageError: no sparse graph over so few devices is safe; the complete graph may be.
    """
    _check_size(num_devices)
    smallest = num_devices - threat.num_dropped(num_devices)
    for degree in range(2, smallest - 1, 2):
        threshold = _sparse_threshold(num_devices, smallest, degree, threat)
        if threshold is not None:
            return degree, threshold
    raise UsageError(
        f"no sparse graph over {num_devices} devices withstands "
        f"colluding_rate={threat.colluding_rate} and dropout_rate={threat.dropout_rate}; "
        "take the complete graph, a larger cohort or smaller rates"
    )


@dataclass(frozen=True, slots=True)
class SparseEvents:
    """What may befall a sparse graph: whom it is drawn over, who colludes, who is missing.

    Colluding devices always come, so devices that stay away raise their share. Of the rosters, the
    smallest one is the least safe.

    Attributes:
        num_devices: Devices invited.
        smallest: The smallest roster.
        colluding: Devices that collude, of those invited.
        missing: Most devices that never came or vanished later, together.
        adversary: The server's power.
    """

    num_devices: int
    smallest: int
    colluding: int
    missing: int
    adversary: Adversary

    def safe_threshold(self, degree: int) -> int | None:
        """The smallest safe threshold; None if the honest survivors may fall apart.

        The cost does not depend on the number of devices.

        Spec: §3.5, §3.7.

        Args:
            degree: At most `smallest` − 2.
        """
        # Two bad events share the security bits evenly, so each needs one more bit.
        if self._log_disconnected(degree) >= math.log(_INSECURE):
            return None
        # A roster may be smaller than the number that collude; then they can be all of it.
        among = min(self.colluding, self.smallest)
        colluding = _hypergeometric(self.smallest, among, degree)
        unlikely = _INSECURE / self.num_devices
        most_colluding = degree
        tail = 0.0
        while most_colluding >= 0 and tail + colluding[most_colluding] <= unlikely:
            tail += colluding[most_colluding]
            most_colluding -= 1
        if self.adversary is Adversary.ACTIVE:
            return _overlapping(degree, most_colluding)
        return most_colluding + 1

    def _log_disconnected(self, degree: int) -> float:
        """Log of the bound on the honest survivors' ring being cut in two places."""
        gone = min(self.colluding + self.missing, self.num_devices)
        if degree > gone:
            return -math.inf
        pairs_of_gaps = self.num_devices * (self.num_devices - degree - 1) / 2
        return (
            math.log(pairs_of_gaps)
            + _log_choose(self.num_devices - degree, gone - degree)
            - _log_choose(self.num_devices, gone)
        )


def _check_size(num_devices: int) -> None:
    if not 2 <= num_devices <= MAX_DEVICES:
        raise UsageError(f"num_devices={num_devices} is not in [2, {MAX_DEVICES}]")


def _sparse_threshold(
    num_devices: int, smallest: int, degree: int, threat: ThreatModel
) -> int | None:
    """The smallest safe threshold at this degree; None if too few survivors would reach it.

    The published parameters are those of a smallest roster of all devices.
    """
    colluding, dropped = threat.num_colluding(num_devices), threat.num_dropped(num_devices)
    events = SparseEvents(num_devices, smallest, colluding, dropped, threat.adversary)
    threshold = events.safe_threshold(degree)
    if threshold is None:
        return None
    surviving = _hypergeometric(num_devices, threat.num_surviving(num_devices), degree)
    incorrect = 2.0**-CORRECTNESS_BITS / num_devices
    fewest_surviving = 0
    tail = surviving[0]
    while tail < incorrect:
        fewest_surviving += 1
        tail += surviving[fewest_surviving]
    # As published, t is raised to 2 after the comparison. If nobody is expected to collude, the sum
    # is then lost slightly more often than correctness requires; nothing else is at stake.
    return max(threshold, 2) if threshold <= fewest_surviving else None


def _overlapping(holders: int, colluding: int) -> int:
    """The smallest t with 2t > holders + colluding: any two quorums share an honest device."""
    return (holders + colluding) // 2 + 1


def _hypergeometric(total: int, marked: int, drawn: int) -> list[float]:
    """Probabilities of 0 … drawn marked ones among `drawn` of `total`."""
    everything = _log_choose(total, drawn)
    return [
        math.exp(_log_choose(marked, i) + _log_choose(total - marked, drawn - i) - everything)
        for i in range(drawn + 1)
    ]


def _log_choose(total: int, chosen: int) -> float:
    """Log of the binomial coefficient; −inf where it is zero."""
    if not 0 <= chosen <= total:
        return -math.inf
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
