"""Have devices added the noise that was announced, and new noise every time?

An update is padded with zeros before it is rotated. So once a sum is rotated back, the numbers
behind the update are noise and nothing else. Their size can be compared with what the fewest
devices add that the noise is due from, and their direction with that of the noise before, which is
added after the rotation. Where the number of parameters is a power of two, there are no such
numbers; where it is little below one, there are few, so the sums of all rounds are tested together.

In the answers to a noisy search, every device counts in one bin, and once more without noise. So
what the bins come to together is the number of devices, and noise. Each bin is a whole number, and
noise in finer steps: what is beyond whole numbers is noise alone.
"""

from collections import Counter
from contextlib import suppress
from math import log, pi, sqrt
from types import MappingProxyType
from typing import Final

import numpy as np
from scipy import special

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.noisy import NoisyHistogram
from deltafl.protocol.update_noise import Floats, rotate, unrotate
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.layout import Layout
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.tails import Counts, PValue, at_least
from deltafl.sim.inspect.audit.views import place_of

_UPDATE: Final = "noise of one update"
_UPDATES: Final = "noise of all updates"
_SEARCHES: Final = "noise of searches"
_WHOLE: Final = "noise of single bins"
_SAME_UPDATES: Final = "the same noise of updates"
_SAME_BINS: Final = "the same noise of bins"

_FEWEST: Final = 4
"""Numbers of noise in a run from which the absence of noise can be told."""


class AddedNoise(Check):
    """Measures the noise of every sum that is to have some."""

    name = "noise in sums"
    table = """\
noise.too-little high device A18: sums have less noise than was announced
    Devices left their noise out, or added less. The ε of the run is not what it says.
noise.repeated high device A18: sums of several rounds have the same noise
    The difference of two sums has none. The ε of the run is not what it says.
"""
    tests = MappingProxyType({"the same noise": "noise.repeated", "noise of": "noise.too-little"})

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        # By test and chance in bins: the first place, numbers or bins, and what was found in them.
        self._totals: dict[tuple[str, float], tuple[Evidence, int, float]] = {}
        self._past: dict[tuple[int, int], Floats] = {}  # noise of updates, by level and length
        self._rests: dict[tuple[int, int, int], Counts] = {}  # of the bins of the search before
        self._numbers = Counter[int | None]()  # of noise in updates, by round
        self._searches = 0

    def on_round(self, over: RoundOver) -> None:
        """Measure a round's sums; the alarms come when all tests are made."""
        for tag, session in over.view.sessions.items():
            for level in session.by_level():
                for slot, _, released in level.answered():
                    if (learnt := over.again.get((tag, slot))) is None:
                        continue
                    known = level.index, level.config, learnt.vector, place_of(released)
                    if slot < level.update_slot:
                        self._of_search(*known)
                    elif level.config.noisy_updates is not None:
                        self._of_update(*known)

    def on_end(self) -> None:
        """Test what all sums of updates, and all searches, come to."""
        for (test, chance), (place, number, found) in self._totals.items():
            detail = f"{found:.0f} of {number} bins, where chance is {chance:.2g}"
            if chance:
                value = float(at_least(found, number, chance))
            elif test == _SAME_UPDATES:
                value = float(special.gammaincc(number, found))
                detail = f"the noise of {number} rounds has the direction of that before"
            else:
                value, detail = _too_small(number, found)
            self._premises.budget.add(PValue(test, value, detail), place)

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds without noise are covered: there is nothing to measure in them."""
        numbers = self._numbers.total()
        without = sum(not own or numbers < _FEWEST for own in self._numbers.values())
        detail = f"{numbers} numbers in sums of updates, {self._searches} searches"
        return Coverage(max(tally.whole - without, 0), detail, numbers + self._searches)

    def _add(
        self, test: str, place: Evidence, number: int, found: float, chance: float = 0
    ) -> None:
        first, numbers, before = self._totals.get((test, chance), (place, 0, 0.0))
        self._totals[test, chance] = first, numbers + number, before + found

    def _of_update(self, level: int, config: RoundConfig, words: Vector, place: Evidence) -> None:
        noisy, added = config.noisy_updates, noise_in(config, words)
        self._numbers[place.round] += added.size
        if noisy is None or not added.size:
            return
        length, start = noisy.sizes.length, config.update_length
        # The numbers lie 2/√D apart. Each is taken to be half of that larger than it is, so that it
        # may be compared with a continuous number.
        sizes, noise = np.abs(added) + length**-0.5, noisy.noise
        found = float(np.square(sizes).sum()) / (noise.num_devices * noise.deviation**2)
        self._add(_UPDATES, place, added.size, found)
        self._premises.budget.add(PValue(_UPDATE, *_too_small(added.size, found)), place)
        past = self._past.get((level, length), np.zeros(length))
        behind = unrotate(past, noisy.seed, length)[start:]
        norms = float(np.linalg.norm(behind) * np.linalg.norm(added))
        if added.size > 1 and norms:
            # Of independent Gaussian vectors, the cosine squared has a beta distribution.
            sine = max(0.0, 1 - float(behind @ added / norms) ** 2)
            value = float(special.betainc((added.size - 1) / 2, 0.5, sine))
            self._add(_SAME_UPDATES, place, 1, -log(max(value, 1e-300)))
        rotated = rotate(np.concatenate([np.zeros(start), added]), noisy.seed)
        self._past[level, length] = past + rotated

    def _of_search(self, level: int, config: RoundConfig, words: Vector, place: Evidence) -> None:
        method, sums = config.quantile, _decoded(config.search_layout, words)
        if not isinstance(method, NoisyHistogram) or not sums:
            return
        self._searches += 1
        bins, steps = sums["bins"], 1 << method.noise.resolution_bits
        variance = float(method.noise.variance * steps**2)  # of a bin
        # The noise is a whole number of steps, and taken to be half a step larger than it is.
        found = (abs(int(bins.sum()) - int(sums["count"][0]) * steps) + 0.5) ** 2
        self._add(_SEARCHES, place, 1, found / (variance * len(bins)))
        # No rest is likelier than this, as the noise has a single peak.
        chance = 1 / steps + 1 / sqrt(2 * pi * variance)
        if chance < 1:
            rests, key = bins % steps, (level, steps, len(bins))
            self._add(_WHOLE, place, len(bins), int((rests == 0).sum()), chance)
            if key in self._rests:
                same = int((rests == self._rests[key]).sum())
                self._add(_SAME_BINS, place, len(bins), same, chance)
            self._rests[key] = rests


def _too_small(number: int, found: float) -> tuple[float, str]:
    """P-value of so many numbers of noise, by the sum of their squares over the least variance."""
    detail = f"{number} numbers of noise are {sqrt(found / number):.3g} times the due"
    return float(special.gammainc(number / 2, found / 2)), detail


def _decoded(layout: Layout, words: Vector) -> dict[str, Counts]:
    """The numbers of a sum; none if it is outside its layout."""
    with suppress(EncodingError):
        return layout.decode(words)
    return {}


def noise_in(config: RoundConfig, words: Vector) -> Floats:
    """The numbers of a sum, rotated back, in which there is only noise.

    Args:
        config: A round.
        words: The sum of its updates, ring words.

    Returns:
        In steps, float64 of shape (padded length - update length,); none if the round has no noise
        or the sum is outside its layout.
    """
    noisy, sums = config.noisy_updates, _decoded(config.update_layout, words)
    if noisy is None or not sums:
        return np.zeros(0)
    numbers = unrotate(sums["update"].astype(np.float64), noisy.seed, noisy.sizes.length)
    return numbers[config.update_length :]
