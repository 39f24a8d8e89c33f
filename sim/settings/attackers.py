"""The settings of devices that lie: how many, what they send, and what they claim.

Only a simulation has them. What each kind does, and where it comes from, is described where it is
done: `deltafl.sim.cohort.attackers`.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Annotated

from deltafl.sim.settings.constraints import Interval, OneOf


class Kind(StrEnum):
    """What an attacker does to its update or to its data."""

    HONEST = "honest"
    """Nothing: it may still claim a loss or a weight."""

    FLIPPED_LABELS = "flipped-labels"
    """It trains on labels C - 1 - y in place of y, or on `to_class` in place of `from_class`."""

    BACKDOOR = "backdoor"
    """It stamps a trigger on some of its samples, labels them `to_class`, and sends a multiple."""

    SCALED = "scaled"
    """It sends `scale` times its update."""

    SIGN_FLIPPED = "sign-flipped"
    """It sends minus `scale` times its update."""

    GAUSSIAN = "gaussian"
    """It sends noise, `scale` times as large as its update."""

    LITTLE = "little-is-enough"
    """It sends mean minus `deviations` standard deviations of the attackers' updates."""

    INNER_PRODUCT = "inner-product"
    """It sends minus `scale` times the mean of the attackers' updates."""

    ZERO = "free-rider-zero"
    """It does not train, and sends zeros."""

    NOISE = "free-rider-noise"
    """It does not train, and sends noise, `scale` times as large as the model's last change."""

    LAST = "free-rider-last"
    """It does not train, and sends the model's last change."""


class Claim(StrEnum):
    """The loss that an attacker claims."""

    OWN = "own"
    """Its own, of the data that it trains on."""

    TOP = "top"
    """The largest that a search tells from others: `quantile.loss_bound`."""

    ABOVE_ETA = "above-eta"
    """A tick of the search above the last η: into the tail, without standing out."""

    RAISE_ETA = "raise-eta"
    """Twice the last η, so that it rises and honest devices fall out of the tail."""


@dataclass(frozen=True, slots=True)
class AttackersConfig:
    """Devices that lie, in simulations only; nobody lies by default.

    Attributes:
        share: share of the training devices that lie, rounded to whole devices. Who they are
            follows from the seed alone: all methods with one seed meet the same attackers, and a
            larger share adds to them.
        kind: what they send: "honest", "flipped-labels", "backdoor", "scaled", "sign-flipped",
            "gaussian", "little-is-enough", "inner-product", "free-rider-zero", "free-rider-noise"
            or "free-rider-last" (docs/how-to/test-against-lying-devices.md).
        loss: the loss that they claim: their "own", the "top" (`quantile.loss_bound`), a tick
            "above-eta" as it was last announced, or twice it ("raise-eta"); before any η, and with
            algorithms that have none, these two claim their own.
        weight: the number of samples that they claim: their "own", or the "largest" that counts
            (`privacy.max_weight`).
        scale: backdoor, scaled, sign-flipped, inner-product: the factor of the update; gaussian,
            free-rider-noise: the size of the noise, in sizes of what it replaces.
        deviations: little-is-enough: z, how many standard deviations from the mean.
        from_class: flipped-labels: the class whose labels are changed; -1 changes all labels, y to
            C - 1 - y.
        to_class: flipped-labels with `from_class`, backdoor: the class that they change labels to.
        poisoned: backdoor: share of an attacker's samples that get the trigger.
        trigger_size: backdoor: rows and columns of the lower right corner of an image that the
            trigger covers; of a table, how many of the first features.
        trigger_value: backdoor: what the trigger sets them to, as the model sees it (1 is white).
    """

    share: Annotated[Fraction, Interval("[0, 1)")] = Fraction(0)
    kind: Annotated[str, OneOf(tuple(kind.value for kind in Kind))] = "sign-flipped"
    loss: Annotated[str, OneOf(tuple(claim.value for claim in Claim))] = "own"
    weight: Annotated[str, OneOf(("own", "largest"))] = "own"
    scale: Annotated[float, Interval("(0, 1e6]")] = 2.0
    deviations: Annotated[float, Interval("[0, 1e6]")] = 1.5
    from_class: Annotated[int, Interval("[-1, 100000)")] = -1
    to_class: Annotated[int, Interval("[0, 100000)")] = 0
    poisoned: Annotated[Fraction, Interval("(0, 1]")] = Fraction(1, 2)
    trigger_size: Annotated[int, Interval("[1, 1024]")] = 3
    trigger_value: Annotated[float, Interval("[-1e6, 1e6]")] = 1.0

    @property
    def lie(self) -> bool:
        """Whether there are any."""
        return self.share > 0
