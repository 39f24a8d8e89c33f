"""What a device keeps of its update, to answer the later passes over the updates.

A device that did not pass the filter keeps zeros, and does the same work with them: neither what it
sends nor, as far as the work goes, when it sends it tells that it did not pass.

Spec: §12.15.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.robust import Centre, factor
from deltafl.secagg import PeerError, Refusal
from deltafl.secagg.layout import Multiple
from deltafl.secagg.ring import Vector


@dataclass(frozen=True, slots=True, eq=False)
class KeptUpdate:
    """The update that a device has contributed.

    Attributes:
        config: The round.
        numbers: Δ_k as it was summed in the first pass: clipped, float64 of shape
            (update_length,). Zeros if the device did not pass the filter, or its update had a
            number that is not finite.
        weight: n_k; 0 if the device did not pass the filter.
    """

    config: RoundConfig
    numbers: npt.NDArray[np.float64] = field(repr=False)
    weight: int = field(repr=False)

    def answer(self, centre: Centre) -> Vector:
        """Its contribution to another pass: n_k·b_k·Δ_k and n_k·b_k, a ring vector.

        Args:
            centre: The centre, which `check_centre` has accepted.
        """
        counted = factor(self.numbers, centre.vector(), self.config.update.smoothing)
        weight = self.weight * counted
        words, _ = self.config.pass_layout.encode(
            {"update": Multiple(self.numbers, weight), "weight": weight}
        )
        return words


def check_centre(config: RoundConfig, centre: Centre, level_slot: int) -> None:
    """Refuse a centre that no means of clipped updates can give, or for which no pass is left.

    Args:
        config: The round.
        centre: What the server announced.
        level_slot: The slot in which it asks, counted from the round's first.

    Raises:
        PeerError: the slot is no later pass's; or the centre has another length than an update, a
            number that is not finite, or one beyond the clip.
    """
    if not config.update_slot < level_slot < config.num_slots:
        raise PeerError(Refusal.OUT_OF_ORDER, f"a centre in slot {level_slot} of the round")
    length = config.update_length
    if centre.size != 4 * length:
        raise PeerError(
            Refusal.MALFORMED, f"a centre of {centre.size} bytes is not {length} numbers of float32"
        )
    with np.errstate(invalid="ignore"):
        most = float(np.abs(centre.vector()).max())
    if not most <= config.update.clip:  # a number that is not finite is not
        raise PeerError(Refusal.MALFORMED, f"a centre with |v|={most:g} is beyond update_clip")
