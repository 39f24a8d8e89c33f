"""The truth, read round by round alongside the transcript: what each masked vector hides."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.errors import EncodingError, SearchError
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit.views import Question
from deltafl.sim.record.truth import DeviceSecrets, DeviceTruth, read_records

TruthOfRound = Mapping[int, DeviceTruth]
"""The true values of each device, by device."""

SecretsOfRound = Mapping[tuple[bytes, int], tuple[bytes, ...]]
"""The secrets that devices drew, by session's tag and device; see `DeviceSecrets`."""


class TruthRounds:
    """Reads a truth file in step with the transcript; never holds more than a round.

    Args:
        path: The truth file.
        run_id: That of the transcript.

    Attributes:
        secrets: The secrets of the round that was read last.
    """

    def __init__(self, path: Path, run_id: bytes) -> None:
        self.secrets: SecretsOfRound = {}
        self._rest: Iterator[DeviceTruth | DeviceSecrets] = read_records(path, run_id)
        self._next = next(self._rest, None)
        self._passed: set[int] = set()

    def untold(self) -> tuple[int, ...]:
        """The rounds that nobody has asked for, ascending; reads the file to its end.

        Raises:
            ChainError: the file is damaged.
        """
        while self._next is not None:
            self._passed.add(self._next.round)
            self._next = next(self._rest, None)
        return tuple(sorted(self._passed))

    def of(self, round_number: int) -> TruthOfRound:
        """What is known of a round; rounds before it are passed over.

        Raises:
            ChainError: the file is damaged, or of another run.
        """
        found: dict[int, DeviceTruth] = {}
        secrets: dict[tuple[bytes, int], tuple[bytes, ...]] = {}
        while self._next is not None and self._next.round <= round_number:
            if self._next.round == round_number:
                if isinstance(self._next, DeviceSecrets):
                    secrets[self._next.tag, self._next.device] = self._next.secrets
                else:
                    found[self._next.device] = self._next
            else:
                self._passed.add(self._next.round)
            self._next = next(self._rest, None)
        self.secrets = secrets
        return found


def passes(truth: DeviceTruth, config: RoundConfig, threshold: Threshold) -> bool:
    """Whether a device passes a threshold, whether or not it came to train."""
    return threshold.passes(config.search.grid.tick(truth.loss)[0])


def input_of(truth: DeviceTruth, config: RoundConfig, question: Question) -> Vector | None:
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
