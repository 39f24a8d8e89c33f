"""The tests of the polynomials that secrets were shared by, as shares come."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg import shamir
from deltafl.secagg.graph import Positions
from deltafl.secagg.messages import UnmaskShares
from deltafl.secagg.shamir import Limbs
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.field_tests import Repeats
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.polynomials import Words, coefficients, evaluate, leading
from deltafl.sim.inspect.audit.tails import PValue, ones, repetitions, smallest
from deltafl.sim.inspect.audit.uniformity import (
    BitCounts,
    equally_likely,
    half_are_ones,
    well_filled,
)

OF_SHARES: Final = "shares: "
"""Tests for how secrets were shared begin so, in the budget."""

MAX_NUMBERS: Final = 1 << 23
"""Of slots with more coefficients and shares, only as many secrets' polynomials are computed whole.

Of the others, constant term and leading coefficient are.
"""

_BITS: Final = shamir.PRIME.bit_length()


@dataclass(frozen=True, slots=True, eq=False)
class Dealt:
    """The secrets of a slot of which enough shares came.

    Attributes:
        owners: Roster positions of the devices that dealt them, shape (m,).
        points: The points of their first t shares, shape (m, t).
        shares: These shares, shape (m, t, 9).
        others: Of each further share, the index of its secret among the m; shape (k,).
        other_points: The points of the further shares, shape (k,).
        other_shares: These shares, shape (k, 9).
    """

    owners: Positions
    points: Positions
    shares: Limbs
    others: Positions
    other_points: Positions
    other_shares: Limbs

    def first(self, numbers: int) -> "Dealt":
        """The first of the secrets, whose polynomials and further shares are so many numbers."""
        count, threshold = self.points.shape
        largest = threshold * (threshold + len(self.others) // max(1, count) + 1)
        most = max(1, numbers // (largest * shamir.NUM_LIMBS))
        kept = self.others < most
        return Dealt(
            self.owners[:most],
            self.points[:most],
            self.shares[:most],
            self.others[kept],
            self.other_points[kept],
            self.other_shares[kept],
        )


def dealt(came: Sequence[tuple[int, UnmaskShares]], threshold: int) -> Dealt:
    """Sort the shares of a slot by secret.

    Args:
        came: Holders' roster positions, and what came from them; of each holder the first.
        threshold: t.
    """
    counts = [len(message.positions) for _, message in came]
    holders = np.repeat(np.array([holder for holder, _ in came], dtype=np.int64), counts)
    owners = _joined([message.positions for _, message in came])
    kinds = _joined([message.kinds for _, message in came])
    shares = np.concatenate(
        [np.zeros((0, shamir.NUM_LIMBS), np.uint32), *(message.shares for _, message in came)]
    )
    secrets = 2 * owners + kinds
    order = np.lexsort((holders, secrets))
    keys, starts, sizes = np.unique(secrets[order], return_index=True, return_counts=True)
    enough = sizes >= threshold
    keys, starts, sizes = keys[enough], starts[enough], sizes[enough]
    first = order[starts[:, None] + np.arange(threshold)]
    further = [order[s + threshold : s + size] for s, size in zip(starts, sizes, strict=True)]
    rest = _joined(further)
    return Dealt(
        keys // 2,
        holders[first] + 1,
        shares[first],
        np.repeat(np.arange(len(keys)), sizes - threshold),
        holders[rest] + 1,
        shares[rest],
    )


def _joined(parts: Sequence[npt.NDArray[np.unsignedinteger] | Positions]) -> Positions:
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


@dataclass(slots=True, eq=False)
class SharingTests:
    """Takes in the shares of slots, and tests how they were dealt.

    Args:
        budget: Takes the p-values.
        prefix: The first words of the tests' names in it.

    Attributes:
        num_secrets: Secrets that were examined.
    """

    budget: FalseAlarmBudget
    prefix: str = OF_SHARES
    num_secrets: int = 0
    _counts: BitCounts = field(default_factory=lambda: BitCounts(_BITS))
    _leading: Repeats = field(default_factory=lambda: Repeats(2 * _BITS))
    _places: list[tuple[str, Evidence]] = field(default_factory=list)

    def add(self, slot: Dealt, where: str, place: Evidence) -> tuple[int, ...]:
        """Take in a slot.

        Args:
            slot: Its shares.
            where: What to call it.
            place: Where its shares are.

        Returns:
            Roster positions of the devices for whose secret a share came that does not lie on the
            polynomial of the others.
        """
        if not len(slot.owners):
            return ()
        self.num_secrets += len(slot.owners)
        highest = leading(slot.points, slot.shares)
        self._take(_zeros("leading coefficients that are zero", highest), where, place)
        at_zero = shamir.lagrange_at_zero(slot.points)
        self._take(_bare(shamir.combine(at_zero, slot.shares), slot), where, place)
        self._leading.add(_pairs(highest))
        self._places.append((where, place))
        return self._add_whole(slot.first(MAX_NUMBERS), where, place)

    def _add_whole(self, slot: Dealt, where: str, place: Evidence) -> tuple[int, ...]:
        """Take in secrets whose polynomials are computed whole."""
        found = coefficients(slot.points, slot.shares)
        secrets, random = found[:, 0], found[:, 1:]
        self._take(_zeros("coefficients that are zero", random), where, place)
        self._take(_like_secret(secrets, random), where, place)
        self._take(_of_each(random), where, place)
        self._take(_alike(random), where, place)
        counts = BitCounts(_BITS)
        counts.add(random)
        for result in half_are_ones(counts, "ones of coefficients"):
            self._take(result, where, place)
        self._counts.merge(counts)
        right = evaluate(found[slot.others], slot.other_points)
        wrong = (right != slot.other_shares).any(axis=1)
        return tuple(np.unique(slot.owners[slot.others[wrong]]).tolist())

    def finish(self) -> None:
        """Make the last tests."""
        if not self._places:
            return
        where, place = self._places[0]
        if (cells := well_filled(self._counts.byte_values())) is not None:
            self._take(equally_likely("values of bytes of coefficients", *cells), where, place)
        result = self._leading.result()
        if result.at:
            where, place = self._places[result.at[-1]]
        self._take(PValue("polynomials used twice", result.value, result.detail), where, place)

    def _take(self, result: PValue, where: str, place: Evidence) -> None:
        detail = f"{where}: {result.detail}"
        self.budget.add(PValue(f"{self.prefix}{result.test}", result.value, detail), place)


def _zeros(test: str, numbers: Words) -> PValue:
    count = int(np.count_nonzero(numbers == 0))
    value = repetitions(count, numbers.size / shamir.PRIME)
    return PValue(test, value, f"{count} of {numbers.size} {test.replace(' that', '')}")


def _like_secret(secrets: Words, random: Words) -> PValue:
    count = int(np.count_nonzero(random == secrets[:, None]))
    value = repetitions(count, random.size / shamir.PRIME)
    detail = f"{count} of {random.size} coefficients are the secret's limb"
    return PValue("coefficients that are the secret", value, detail)


def _bare(secrets: Limbs, slot: Dealt) -> PValue:
    """Shares that are the secret itself, limb by limb."""
    given = np.concatenate([slot.shares.reshape(-1, shamir.NUM_LIMBS), slot.other_shares])
    of = np.concatenate([np.repeat(np.arange(len(secrets)), slot.shares.shape[1]), slot.others])
    count = int(np.count_nonzero(given == secrets[of]))
    value = repetitions(count, given.size / shamir.PRIME)
    return PValue("shares that are the secret", value, f"{count} of {given.size} limbs are")


def _of_each(random: Words) -> PValue:
    """The test that half of all bits of each secret's coefficients are ones."""
    flat = random.reshape(len(random), -1)
    counts = np.bitwise_count(flat).sum(axis=1, dtype=np.int64)
    trials = _BITS * flat.shape[1]
    worst, value = smallest(ones(counts, trials))
    detail = f"{counts[worst]} of {trials} bits of one secret's coefficients are ones"
    return PValue("ones of one secret's coefficients", value, detail)


def _alike(random: Words) -> PValue:
    """The test that no two coefficients of two limbs are the same."""
    repeats = Repeats(2 * _BITS)
    repeats.add(_pairs(random))
    result = repeats.result()
    return PValue("coefficients used twice", result.value, result.detail)


def _pairs(random: Words) -> npt.NDArray[np.uint8]:
    """Two limbs' coefficients of the same power as eight bytes; a limb that is left is left out."""
    even = random[..., : random.shape[-1] // 2 * 2]
    joined = even[..., 0::2] | even[..., 1::2] << np.uint64(_BITS)
    return np.ascontiguousarray(joined).astype("<u8").view(np.uint8).reshape(-1, 8)
