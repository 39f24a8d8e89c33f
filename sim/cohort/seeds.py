"""The only source of randomness: (seed, round, device, purpose) → generator.

Each generator starts from SHA-256 of its coordinates, so streams are independent of each other, of
the order in which they are requested, and of the algorithm: two algorithms with the same seed get
the same cohorts, initial weights, shuffles and faults. A resumed run needs no generator state.
"""

import hashlib
import struct
from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class Purpose(StrEnum):
    """What a generator is for; streams of different purposes have nothing in common."""

    WEIGHTS = "weights"
    COHORT = "cohort"
    SHUFFLE = "shuffle"
    DROPOUT = "dropout"
    GRAPH = "graph"
    ATTACKERS = "attackers"
    ATTACK = "attack"
    TRIGGER = "trigger"
    SHUFFLED_POPULATION = "shuffled population"
    CANARY = "canary"


@dataclass(frozen=True, slots=True)
class Seeds:
    """All random streams of one run.

    Attributes:
        seed: the run's seed, at least 0.
        nonce: the run's nonce, or "".
    """

    seed: int
    nonce: str = ""

    def digest(self, purpose: Purpose, *, round_index: int = 0, device: int = 0) -> bytes:
        """Derive the 32 bytes that start a stream.

        Args:
            purpose: what the stream is for.
            round_index: the round, counted from 0, for streams that differ by round.
            device: the device's index in the data set, for streams that differ by device.
        """
        coordinates = struct.pack(">QQQ", self.seed, round_index, device)
        named = purpose.encode() + (b"\0" + self.nonce.encode() if self.nonce else b"")
        return hashlib.sha256(b"deltafl seeds 1\0" + coordinates + named).digest()

    def integer(self, purpose: Purpose, *, round_index: int = 0, device: int = 0) -> int:
        """Derive a seed in [0, 2^63) for a generator that takes one integer."""
        digest = self.digest(purpose, round_index=round_index, device=device)
        return int.from_bytes(digest[:8], "big") >> 1

    def generator(
        self, purpose: Purpose, *, round_index: int = 0, device: int = 0
    ) -> np.random.Generator:
        """Start a NumPy generator."""
        digest = self.digest(purpose, round_index=round_index, device=device)
        return np.random.default_rng(int.from_bytes(digest, "big"))

    def shuffle_of_population(self, number: int) -> np.random.Generator:
        """Start the generator of a shuffle of all devices, counted from 0."""
        return self.generator(Purpose.SHUFFLED_POPULATION, round_index=number)
