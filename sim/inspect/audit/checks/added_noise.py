"""Have devices added the noise that was announced?

An update is padded with zeros before it is rotated. So once a sum is rotated back, the numbers
behind the update are noise and nothing else, and their size can be compared with what the fewest
devices add that the noise is due from. Where the number of parameters is a power of two, there are
no such numbers; where it is little below one, there are few, so the sums of all rounds are tested
together, too. Only the size is tested: noise that is used again, or that fewer devices add while
more than are due take part, is not noticed.

In the answers to a noisy search, every device counts in one bin, and once more without noise. So
what the bins come to together is the number of devices, and noise. That is one number of a search,
from which something follows only over many rounds.
"""

from types import MappingProxyType
from typing import Final

import numpy as np
from scipy import special

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.noisy import NoisyHistogram
from deltafl.protocol.update_noise import Floats, unrotate
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.tails import PValue
from deltafl.sim.inspect.audit.views import SessionView, SlotView, place_of

RULES: Final = Rules.read(
    """\
noise.too-little high device A18: sums have less noise than was announced
    Devices left their noise out, or added less. The ε of the run is not what it says.
"""
)

_UPDATES: Final = "noise of updates"
_ALL_UPDATES: Final = "noise of all updates"
_SEARCHES: Final = "noise of searches"

_FEWEST: Final = 4
"""Numbers of noise in a run from which the absence of noise can be told."""


class AddedNoise(Check):
    """Measures the noise of every sum that is to have some."""

    name = "noise in sums"
    rules = RULES
    tests = MappingProxyType(dict.fromkeys((_UPDATES, _ALL_UPDATES, _SEARCHES), "noise.too-little"))

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._measured: set[int] = set()  # rounds with a sum that was measured
        self._numbers = 0
        self._of_updates = 0.0  # squares over variances, added up
        self._first_update: Evidence | None = None
        self._without: set[int] = set()  # rounds with sums that cannot be measured
        self._searches = 0
        self._of_searches = 0.0  # squares over variances, added up
        self._first: Evidence | None = None

    def on_round(self, over: RoundOver) -> tuple[()]:
        """Measure a round's sums; the alarms come when all tests are made."""
        for session in over.view.sessions.values():
            for level in session.by_level():
                if (config := level.config) is not None:
                    self._measure(over, level, config)
                    self._note_searches(over, level, config)
        return ()

    def on_end(self) -> tuple[()]:
        """Test what all sums of updates, and all searches, come to."""
        if self._first_update is not None:
            value = float(special.gammainc(self._numbers / 2, self._of_updates / 2))
            size = (self._of_updates / self._numbers) ** 0.5
            detail = f"in {self._numbers} numbers of noise, it is {size:.3g} times what is due"
            self._premises.budget.add(PValue(_ALL_UPDATES, value, detail), self._first_update)
        if self._first is not None:
            value = float(special.gammainc(self._searches / 2, self._of_searches / 2))
            size = (self._of_searches / self._searches) ** 0.5
            detail = f"in {self._searches} searches, the noise is {size:.3g} times what is due"
            self._premises.budget.add(PValue(_SEARCHES, value, detail), self._first)
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds without noise are covered: there is nothing to measure in them."""
        detail = f"{self._numbers} numbers in sums of updates, {self._searches} searches"
        without = self._without | (self._measured if self._numbers < _FEWEST else set())
        return Coverage(max(tally.whole - len(without), 0), detail, self._numbers + self._searches)

    def _note_searches(self, over: RoundOver, level: SessionView, config: RoundConfig) -> None:
        for index, slot in level.slots.items():
            if config.noise is None or index >= config.update_slot or not slot.sums:
                continue
            words = _words(over, level, slot)
            found = None if words is None else noise_of_search(config, words)
            if found is not None:
                self._searches += 1
                self._of_searches += found
                self._first = self._first or place_of(slot.sums[0])

    def _measure(self, over: RoundOver, level: SessionView, config: RoundConfig) -> None:
        noise, slot = config.update.noise, level.slots.get(config.update_slot)
        if noise is None or slot is None or not slot.sums:
            return
        words = _words(over, level, slot)
        added = None if words is None else noise_in(config, words)
        if added is None or not added.size:
            self._without.add(over.view.number)
            return
        self._measured.add(over.view.number)
        least = noise.num_devices * noise.deviation**2
        found = float(np.square(added).sum())
        self._numbers += added.size
        self._of_updates += found / least
        self._first_update = self._first_update or place_of(slot.sums[0])
        value = float(special.gammainc(added.size / 2, found / least / 2))
        detail = (
            f"its {added.size} numbers of noise have a standard deviation of "
            f"{(found / added.size) ** 0.5:.3g} steps, and {noise.num_devices} devices add "
            f"{least**0.5:.3g}"
        )
        self._premises.budget.add(PValue(_UPDATES, value, detail), place_of(slot.sums[0]))


def _words(over: RoundOver, level: SessionView, slot: SlotView) -> Vector | None:
    """All words of a slot's sum; None where they are not known."""
    released = slot.sums[0]
    if len(released.words) == released.length:
        return released.words
    return over.totals.get((level.params.tag, slot.index))


def noise_of_search(config: RoundConfig, words: Vector) -> float | None:
    """The square of a search's noise over the variance that is due; None if there is none.

    The noise is a whole number of steps. It is taken to be half a step larger than it is, so that
    the square may be compared with that of a continuous number.

    Args:
        config: A round with noise in its search.
        words: The sum of the answers, ring words.
    """
    method = config.quantile
    if not isinstance(method, NoisyHistogram) or len(words) != config.search_layout.length:
        return None
    try:
        sums = config.search_layout.decode(words.astype(np.uint64))
    except EncodingError:
        return None
    steps = 1 << method.noise.resolution_bits
    found = abs(int(sums["bins"].sum()) - int(sums["count"][0]) * steps) + 0.5
    return found**2 / float(method.noise.variance * steps**2 * method.num_bins)


def noise_in(config: RoundConfig, words: Vector) -> Floats | None:
    """The sizes of the numbers of a sum in which there is only noise; none if there are none.

    A sum of whole numbers that is rotated back has numbers that lie 2/√D apart. Each is taken to be
    half of that larger than it is, so that it may be compared with a continuous number.

    Args:
        config: A round with noise in its sum of updates.
        words: The sum, ring words.

    Returns:
        In steps, float64 of shape (padded length - update length,); None if the sum is outside its
        layout.
    """
    noisy = config.noisy_updates
    if noisy is None or len(words) != config.update_layout.length:
        return None
    try:
        sums = config.update_layout.decode(words.astype(np.uint64))
    except EncodingError:
        return None
    length = noisy.sizes.length
    numbers = unrotate(sums["update"].astype(np.float64), noisy.seed, length)
    sizes: Floats = np.abs(numbers[config.update_length :]) + length**-0.5
    return sizes
