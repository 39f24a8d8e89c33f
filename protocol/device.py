"""A device's part of a round, without the cryptography: from loss and update to ring vectors.

Spec: §12.4.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.encoding import Multiple
from deltafl.protocol.errors import EncodingError
from deltafl.protocol.quantile.noisy import NoisyHistogram
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ring
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
    tick: int
    weight: int
    num_clipped: int

    @classmethod
    def measured(cls, config: RoundConfig, loss: float, weight: int) -> "DeviceRound":
        """The device's part, from its loss under the announced model and its weight.

        Raises:
            EncodingError: the loss is NaN or infinite, or the weight negative.
        """
        if weight < 0:
            raise EncodingError(f"weight={weight} is negative")
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

    def contribution(self, update: Update | None) -> Vector:
        """Its contribution to the update, a ring vector of the update layout.

        Args:
            update: Δ_k = w_k − w, shape (update_length,); None if the device failed the filter. The
                contribution is then zeros, which once masked look like any other.

        Raises:
            EncodingError: the update has the wrong shape, or holds NaN or an infinity.
        """
        layout = self.config.update_layout
        if update is None:
            return ring.zeros(layout.length, layout.ring_bits)
        # Two passes over the update nearly always show that there is nothing to refuse or to clip.
        least, most = float(update.min(initial=0.0)), float(update.max(initial=0.0))
        if not (math.isfinite(least) and math.isfinite(most)):
            # Refuse it here, because clipping would turn an infinity into a number.
            index = int(np.argmin(np.isfinite(update)))
            raise EncodingError(
                f"field 'update': element {index} is {update.flat[index]}; only finite numbers "
                "can be summed: leave this device out of the round"
            )
        clip, num_clipped = self.config.update.clip, self.num_clipped
        clipped: Update | npt.NDArray[np.float64] = update
        if not -clip <= least <= most <= clip:
            exact = update.astype(np.float64)
            clipped = np.clip(exact, -clip, clip)
            num_clipped += int(np.count_nonzero(clipped != exact))
        words, _ = layout.encode(
            {
                "update": Multiple(clipped, self.weight),
                "weight": self.weight,
                "weighted_loss": self.weight * self.config.search.grid.value(self.tick),
                "count": 1,
                "clipped": num_clipped,
            }
        )
        return words
