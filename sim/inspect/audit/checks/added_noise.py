"""Have devices added the noise to their updates that was announced?

An update is padded with zeros before it is rotated. So once a sum is rotated back, the numbers
behind the update are noise and nothing else, and their size can be compared with what the fewest
devices add that the noise is due from. Where the number of parameters is a power of two, there are
no such numbers.
"""

from types import MappingProxyType
from typing import Final

import numpy as np
from scipy import special

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.rotation import Floats, unrotate
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.rules import A18, Rule, Rules
from deltafl.sim.inspect.audit.tails import PValue
from deltafl.sim.inspect.audit.views import SessionView, place_of

RULES: Final = Rules(
    {
        "noise.too-little": Rule(
            Severity.HIGH,
            "a sum of updates has less noise than was announced",
            "Devices left their noise out, or added less. The ε of the run is not what it says.",
            "Update the devices' software, and take what was summed for known.",
            A18,
        ),
    }
)

_NOISE: Final = "noise of updates"


class AddedNoise(Check):
    """Measures the noise of every sum of updates that is to have some."""

    name = "noise of updates"
    rules = RULES
    tests = MappingProxyType({_NOISE: "noise.too-little"})

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._measured = 0
        self._without: set[int] = set()  # rounds with sums that cannot be measured

    def on_round(self, over: RoundOver) -> tuple[()]:
        """Measure a round's sums; the alarms come when all tests are made."""
        for session in over.view.sessions.values():
            for level in session.by_level():
                self._measure(over, level)
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds without noise are covered: there is nothing to measure in them."""
        detail = f"{self._measured} sums, by the numbers that updates are padded with"
        return Coverage(max(tally.told - len(self._without), 0), detail)

    def _measure(self, over: RoundOver, level: SessionView) -> None:
        config = level.config
        slot = None if config is None else level.slots.get(config.update_slot)
        if config is None or config.update.noise is None or slot is None or not slot.sums:
            return
        released, noise = slot.sums[0], config.update.noise
        words: Vector | None = released.words
        if len(released.words) < released.length:
            words = over.totals.get((level.params.tag, slot.index))
        added = None if words is None else noise_in(config, words)
        if added is None or not added.size:
            self._without.add(over.view.number)
            return
        self._measured += 1
        least = noise.num_devices * noise.deviation**2
        found = float(np.square(added).sum())
        value = float(special.gammainc(added.size / 2, found / least / 2))
        detail = (
            f"its {added.size} numbers of noise have a standard deviation of "
            f"{(found / added.size) ** 0.5:.3g} steps, and {noise.num_devices} devices add "
            f"{least**0.5:.3g}"
        )
        self._premises.budget.add(PValue(_NOISE, value, detail), place_of(released))


def noise_in(config: RoundConfig, words: Vector) -> Floats | None:
    """The numbers of a sum in which there is only noise, in steps; none if there are none.

    Args:
        config: A round with noise in its sum of updates.
        words: The sum, ring words.

    Returns:
        float64 of shape (padded length - update length,); None if the sum is outside its layout.
    """
    noisy = config.noisy_updates
    if noisy is None or len(words) != config.update_layout.length:
        return None
    try:
        sums = config.update_layout.decode(words.astype(np.uint64))
    except EncodingError:
        return None
    length = noisy.sizes.length
    return unrotate(sums["update"].astype(np.float64), noisy.seed, length)[config.update_length :]
