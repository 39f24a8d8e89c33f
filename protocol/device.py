"""A device's part of a round, without the cryptography: from loss and update to ring vectors.

Spec: §12.4.
"""

import math
import operator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.quantile.noisy import NoisyHistogram
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.radius import Clipped, within
from deltafl.protocol.selection import Threshold
from deltafl.protocol.update_noise import UpdateNoise
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.layout import Multiple
from deltafl.secagg.randomness import Randomness
from deltafl.secagg.ring import Vector

Update = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DeviceRound:
    """What a device knows about itself in a round.

    Attributes:
        config: The round.
        tick: Its loss F_k on the grid.
        weight: Its weight n_k, at most max_weight.
        num_clipped: How many of the two, loss and weight, had to be clipped.
    """

    config: RoundConfig
    tick: int = field(repr=False)
    weight: int = field(repr=False)
    num_clipped: int = field(repr=False)

    @classmethod
    def measured(cls, config: RoundConfig, loss: float, weight: int) -> "DeviceRound":
        """The device's part, from its loss under the announced model and its weight.

        A loss that is not finite counts as the largest, and as clipped.

        Raises:
            EncodingError: the weight is negative, or no whole number.
        """
        # A float would be refused only by the first answer, when the device has joined the session.
        weight = whole_weight(weight)
        tick, loss_clipped = config.search.grid.tick(loss)
        capped = min(weight, config.update.max_weight)
        return cls(config, tick, capped, int(loss_clipped) + int(capped < weight))

    def answer(self, query: Query, randomness: Randomness | None = None) -> npt.NDArray[np.uint64]:
        """Its contribution to a query of the search, a ring vector of the search layout.

        Args:
            query: The query. A device must answer it only once, because fresh noise on the same
                answer would average out.
            randomness: Source of the noise for `noisy`; other methods draw nothing.

        Raises:
            SearchError: the query does not belong to this round's method.
            EncodingError: the answer needs noise, and there is no randomness to draw it from.
        """
        config = self.config.search_config
        weight = config.search.weighting.of(self.weight)
        method = self.config.quantile
        values = method.contribution(config, query, self.tick, weight)
        if isinstance(method, NoisyHistogram):
            if randomness is None:
                raise EncodingError("an answer to 'noisy' is not encoded without its noise")
            values = method.with_noise(config, values, randomness)
        return self.config.search_layout.encode(values)[0].astype(np.uint64)

    def passes(self, threshold: Threshold) -> bool:
        """Whether it trains: F_k ≥ η − δ."""
        return threshold.passes(self.tick)

    def contribution(self, update: Update | None, randomness: Randomness | None = None) -> Vector:
        """Its contribution to the update, a ring vector of the update layout.

        Args:
            update: Δ_k = w_k − w, shape (update_length,); None if the device failed the filter. The
                contribution is then zeros, which once masked look like any other. An update with a
                number that is not finite counts as zeros, all of them clipped.
            randomness: Source of the noise, where the round's updates have noise; others draw
                nothing. A device must contribute only once, because fresh noise would average out.

        Raises:
            EncodingError: the update has the wrong shape or type, or needs noise, and there is no
                randomness to draw it from.
        """
        if isinstance(self.config.update.aggregation, UpdateNoise):
            return self._with_noise(update, randomness)
        config = self.config
        numbers: Update | npt.NDArray[np.float64]
        if update is None:
            # The same work for a device that did not pass: its time must not show that.
            numbers, weight, num_clipped = self._zeros(), 0, 0
        else:
            check_update(update, config.update_length)
            numbers, num_clipped = _clipped(update, config.update.clip)
            weight, num_clipped = self.weight, self.num_clipped + num_clipped
        numbers, is_longer = self._within_radius(numbers)
        values: dict[str, Multiple | int | float] = {
            "update": Multiple(numbers, weight),
            "weight": weight,
            "weighted_loss": weight * config.search.grid.value(self.tick),
            "count": int(update is not None),
            "clipped": num_clipped,
        }
        if isinstance(config.update.aggregation, Clipped):
            values["longer"] = int(is_longer)
        return config.update_layout.encode(values)[0]

    def _within_radius(
        self, numbers: Update | npt.NDArray[np.float64]
    ) -> tuple[Update | npt.NDArray[np.float64], bool]:
        """An update as its round sums it, and whether it was longer than the round's radius."""
        match self.config.update.aggregation:
            case Clipped(radius):
                return within(numbers, radius)
        return numbers, False

    def _zeros(self) -> Update:
        """Zeros in place of an update: a device that does not pass needs the same memory."""
        return np.zeros(self.config.update_length, dtype=np.float32)

    def _with_noise(self, update: Update | None, randomness: Randomness | None) -> Vector:
        """A contribution to a sum with noise; a device without data does not count in it."""
        noisy = self.config.noisy_updates
        if noisy is None or randomness is None:
            raise EncodingError("an update is not encoded without the noise of its round")
        numbers, num_clipped = None, 0
        if update is not None:
            check_update(update, self.config.update_length)
            numbers, num_clipped = _clipped(update, self.config.update.clip)
        values = noisy.contribution(
            numbers if self.weight > 0 else None,
            Fraction(self.tick, self.config.search.grid.max_tick),
            randomness,
            clipped=num_clipped > 0,
        )
        return self.config.update_layout.encode(values)[0]


def whole_weight(weight: SupportsIndex) -> int:
    """A weight as a plain integer.

    Raises:
        EncodingError: it is negative, or no whole number.
    """
    try:
        whole = operator.index(weight)
    except TypeError:
        whole = -1
    if whole < 0:
        raise EncodingError(f"weight={_shown(weight)} is not a whole number, at least 0")
    return int(whole)


def _shown(weight: object) -> str:
    """A short number as it is, and of anything else its type.

    Python refuses to print integers of thousands of digits, and others print what they like.
    """
    if type(weight) is float or (type(weight) is int and weight.bit_length() <= 64):
        return repr(weight)
    return f"(of type {type(weight).__name__})"


def check_update(update: Update, length: int) -> None:
    """Check that an update can be encoded.

    Raises:
        EncodingError: its shape is not (length,), or its type is not float32.
    """
    found = getattr(update, "dtype", None)
    if np.shape(update) != (length,) or found != np.float32:
        raise EncodingError(
            f"'update': shape {np.shape(update)} of {found} is not ({length},) of float32"
        )


def _clipped(update: Update, clip: float) -> tuple[Update | npt.NDArray[np.float64], int]:
    """An update that can be summed, and how many of its numbers had to be changed.

    An update with a number that is not finite counts as zeros. The device goes on like any other,
    because its silence would tell the server, by name, that it passed the filter and diverged.
    """
    # Two passes over the update nearly always show that there is nothing to change.
    least, most = float(update.min(initial=0.0)), float(update.max(initial=0.0))
    if -clip <= least <= most <= clip:
        return update, 0
    if not (math.isfinite(least) and math.isfinite(most)):
        return np.zeros_like(update), update.size
    exact = update.astype(np.float64)
    bounded = np.clip(exact, -clip, clip)
    return bounded, int(np.count_nonzero(bounded != exact))
