"""The truth, read round by round alongside the record: what each masked vector hides."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.errors import SearchError
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.ring import Vector
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.truth import DeviceSeed, DeviceTruth, read_with_marks

TruthOfRound = Mapping[int, DeviceTruth]
"""The true values of each device, by device."""

InputsOfRound = Mapping[tuple[int, int], DeviceTruth]
"""The same by device and conformity level."""

_NEVER: Final = 1 << 64  # no round has this number

SeedsOfRound = Mapping[tuple[bytes, int], DeviceSeed]
"""What devices drew, by session's tag and device."""


class TruthRounds:
    """Reads a truth file in step with the transcript; never holds more than a round.

    Args:
        path: The truth file.
        run_id: That of the transcript.

    Raises:
        ChainError: the file is damaged, or of another run.

    Attributes:
        seeds: The seeds of the round that was read last.
        inputs: All that it has of the devices' values.
        digest: Of the file's chain up to that round, 32 bytes.
    """

    def __init__(self, path: Path, run_id: bytes) -> None:
        self.seeds: SeedsOfRound = {}
        self.inputs: InputsOfRound = {}
        self.digest = b""
        self._rest = read_with_marks(path, run_id)
        self._passed: set[int] = set()
        self._next: DeviceTruth | DeviceSeed | None = None
        opening = next(self._rest, None)
        if opening is None:
            raise ChainError(path, 0, Damage.EMPTY, "it has no rows")
        self._mark = opening[1]
        self._step()

    def to_the_end(self) -> Sequence[int]:
        """Read the rest of the file; the rounds that nobody has asked for, ascending.

        Raises:
            ChainError: the file is damaged.
        """
        self.of(_NEVER)
        return sorted(self._passed)

    def of(self, round_number: int) -> TruthOfRound:
        """What is known of a round of one level; nothing of several. Rounds before are passed over.

        Raises:
            ChainError: the file is damaged, or of another run.
        """
        found: dict[tuple[int, int], DeviceTruth] = {}
        seeds: dict[tuple[bytes, int], DeviceSeed] = {}
        while (one := self._next) is not None and one.round <= round_number:
            if one.round != round_number:
                self._passed.add(one.round)
            elif isinstance(one, DeviceSeed):
                seeds[one.tag, one.device] = one
            else:
                found[one.device, one.level] = one
            self._step()
        self.seeds, self.inputs = seeds, found
        has_levels = any(level for _, level in found)
        return {} if has_levels else {device: one for (device, _), one in found.items()}

    def _step(self) -> None:
        """Go on to the next row of a round."""
        self.digest = self._mark.digest
        self._next, self._mark = next(self._rest, (None, self._mark))


def passes(truth: DeviceTruth, config: RoundConfig, threshold: Threshold) -> bool:
    """Whether a device passes a threshold, whether or not it came to train."""
    return threshold.passes(config.search.grid.tick(truth.loss)[0])


def input_of(truth: DeviceTruth, config: RoundConfig, question: Query | Threshold) -> Vector | None:
    """The vector that a device had to mask; None where the truth does not hold it."""
    try:
        own = DeviceRound.measured(config, truth.loss, truth.weight)
        if isinstance(question, Query):
            return own.answer(question)
        if not own.passes(question):
            return np.broadcast_to(np.uint64(0), config.update_layout.length)
        return None if truth.update is None else own.contribution(truth.update)
    except (EncodingError, SearchError):
        return None
