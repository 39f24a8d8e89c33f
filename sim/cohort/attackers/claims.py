"""What attackers claim of themselves: a loss, and a number of samples.

Sources: Δ-FL lets the devices with the largest claimed losses in (arXiv 2002.11223, Algorithm 2),
and weighs by claimed numbers of samples, as FedAvg does; that both can be claimed is stated in
docs/threat-model.md. The claims are ours.
"""

from typing import Final

from deltafl.sim.settings.attackers import Claim

RAISE: Final = 2.0
"""By what `Claim.RAISE_ETA` multiplies the last η."""


def claimed_loss(claim: Claim, eta: float | None, bound: float, tick: float) -> float | None:
    """The loss that an attacker claims, in nats; None for its own.

    Args:
        claim: what it wants.
        eta: the last η that was announced; None if there is none.
        bound: the largest loss that a search tells from others.
        tick: between two losses that it tells apart.

    >>> claimed_loss(Claim.TOP, None, 32.0, 0.5), claimed_loss(Claim.ABOVE_ETA, 2.0, 32.0, 0.5)
    (32.0, 2.5)
    >>> claimed_loss(Claim.RAISE_ETA, 20.0, 32.0, 0.5), claimed_loss(Claim.RAISE_ETA, 2.0, 32.0, 1)
    (32.0, 4.0)
    """
    if claim is Claim.TOP:
        return bound
    if claim is Claim.OWN or eta is None:
        return None
    return min(bound, eta + tick if claim is Claim.ABOVE_ETA else RAISE * eta)
