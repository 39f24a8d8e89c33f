"""The truth, read round by round alongside the record: what each masked vector hides."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from deltafl.sim.errors import ChainError, Damage, UserError
from deltafl.sim.record.truth import DeviceSeed, DeviceTruth, read_with_marks

TruthOfRound = Mapping[int, DeviceTruth]
"""The true values of each device, by device."""

_NEVER: Final = 1 << 64  # no round has this number


@dataclass(slots=True, eq=False)
class HiddenInRound:
    """What is known of a round beside what the server saw.

    Attributes:
        inputs: The true values of its devices, by device and conformity level.
        seeds: What they drew, by session's tag and device.
        digest: Of the file's chain up to the round, 32 bytes; b"" without a file.
    """

    inputs: dict[tuple[int, int], DeviceTruth] = field(default_factory=dict)
    seeds: dict[tuple[bytes, int], DeviceSeed] = field(default_factory=dict)
    digest: bytes = b""

    @property
    def devices(self) -> TruthOfRound:
        """The true values of a round of one level; nothing of several."""
        has_levels = any(level for _, level in self.inputs)
        return {} if has_levels else {device: one for (device, _), one in self.inputs.items()}


class TruthRounds:
    """Reads a truth file in step with the transcript; never holds more than a round.

    Args:
        path: The truth file; None if there is none.
        run_id: That of the transcript.

    Raises:
        UserError: the file is damaged, or of another run; so do its methods.
    """

    def __init__(self, path: Path | None, run_id: bytes) -> None:
        self._rows = _ahead(path, run_id)
        self._passed: set[int] = set()
        self._digest, self._next = next(self._rows)

    def to_the_end(self) -> Sequence[int]:
        """Read the rest of the file; the rounds that nobody has asked for, ascending."""
        self.of(_NEVER)
        return sorted(self._passed)

    def of(self, round_number: int) -> HiddenInRound:
        """What is known of a round. Rounds before are passed over."""
        found = HiddenInRound()
        while (one := self._next) is not None and one.round <= round_number:
            if one.round != round_number:
                self._passed.add(one.round)
            elif isinstance(one, DeviceSeed):
                found.seeds[one.tag, one.device] = one
            else:
                found.inputs[one.device, one.level] = one
            self._digest, self._next = next(self._rows)
        found.digest = self._digest
        return found


def _ahead(
    path: Path | None, run_id: bytes
) -> Iterator[tuple[bytes, DeviceTruth | DeviceSeed | None]]:
    """Each row, and before it the digest of those before; None for a row at the end."""
    digest = b""
    if path is not None:
        try:
            for one, mark in read_with_marks(path, run_id):
                if one is not None:
                    yield digest, one
                digest = mark.digest
            if not digest:
                raise ChainError(path, 0, Damage.EMPTY, "it has no rows")
        except ChainError as error:  # which would be one of the record
            raise UserError(str(error)) from None
    yield digest, None


def passes(truth: DeviceTruth, config: RoundConfig, threshold: Threshold) -> bool:
    """Whether a device passes a threshold, whether or not it came to train."""
    return threshold.passes(config.search.grid.tick(truth.loss)[0])


def input_of(truth: DeviceTruth, config: RoundConfig, question: Query | Threshold) -> Vector | None:
    """The vector that a device had to mask; None where the truth does not hold it."""
    with suppress(EncodingError, SearchError):
        own = DeviceRound.measured(config, truth.loss, truth.weight)
        if isinstance(question, Query):
            return own.answer(question)
        if not own.passes(question):
            return np.broadcast_to(np.uint64(0), config.update_layout.length)
        return None if truth.update is None else own.contribution(truth.update)
    return None
