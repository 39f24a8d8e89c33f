"""Were secrets shared by random polynomials of full degree? From the shares that came.

t shares of a secret determine a polynomial of degree t − 1 for each of its limbs. If the device
that dealt them drew the coefficients at random, they are uniform modulo the prime. A polynomial of
lower degree needs fewer shares, and one whose coefficients are known needs a single one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg import shamir
from deltafl.secagg.graph import Positions
from deltafl.secagg.messages import UnmaskShares
from deltafl.secagg.shamir import Limbs
from deltafl.sim.inspect.audit.randomness.strings import Columns, repeated
from deltafl.sim.inspect.audit.tails import PValue, least_even, repetitions

Words = npt.NDArray[np.uint64]

MAX_NUMBERS: Final = 1 << 23
"""Of slots with more coefficients and shares, only as many secrets' polynomials are computed whole.

Of the others, constant term and leading coefficient are.
"""

_P: Final = np.uint64(shamir.PRIME)
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


def dealt(came: Sequence[tuple[int, UnmaskShares]], threshold: int) -> Dealt:
    """Sort the shares of a slot by secret.

    Args:
        came: Holders' roster positions, and what came from them; of each holder the first.
        threshold: t.
    """
    counts = [len(message.positions) for _, message in came]
    holders = np.repeat(np.array([holder for holder, _ in came], dtype=np.int64), counts) + 1
    shares = np.concatenate([message.shares for _, message in came])
    secrets = np.concatenate(
        [2 * message.positions.astype(np.int64) + message.kinds for _, message in came]
    )
    order = np.lexsort((holders, secrets))
    keys, starts, sizes = np.unique(secrets[order], return_index=True, return_counts=True)
    enough = sizes >= threshold
    keys, starts, sizes = keys[enough], starts[enough], sizes[enough]
    first = order[starts[:, None] + np.arange(threshold)]
    ranks = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
    places, of = np.repeat(starts, sizes) + ranks, np.repeat(np.arange(len(keys)), sizes)
    rest, of = order[places[ranks >= threshold]], of[ranks >= threshold]
    return Dealt(keys // 2, holders[first], shares[first], of, holders[rest], shares[rest])


def examine(slot: Dealt) -> tuple[list[PValue], tuple[int, ...], Words]:
    """The tests of the secrets of a slot; at least one.

    Returns:
        The tests; roster positions of the devices for whose secret a share came that does not lie
        on the polynomial of the others; and all leading coefficients, shape (m, 9).
    """
    highest = leading(slot.points, slot.shares)
    threshold, others = slot.points.shape[1], len(slot.others) // len(slot.owners) + 1
    most = max(1, MAX_NUMBERS // (threshold * (threshold + others) * shamir.NUM_LIMBS))
    found = coefficients(slot.points[:most], slot.shares[:most])
    constants, random = found[:, 0], found[:, 1:]
    results = [
        _equal("leading coefficients are zero", highest == 0),
        _equal("coefficients are zero", random == 0),
        _equal("coefficients are the secret's limb", random == constants[:, None]),
    ]
    if random.size:
        flat = random.reshape(len(random), -1)
        counts = np.bitwise_count(flat).sum(axis=1, dtype=np.int64)
        worst, value = least_even(counts, _BITS * flat.shape[1])
        detail = f"{counts[worst]} bits of one secret's {flat.shape[1]} coefficients are ones"
        results += [PValue("ones of one secret's coefficients", value, detail), alike(random)]
        columns = Columns(_BITS)
        columns.add_words(random.reshape(-1))
        results += columns.results()
    known = slot.others < most
    of, right = slot.others[known], slot.other_shares[known]
    wrong = (evaluate(found[of], slot.other_points[known]) != right).any(axis=1)
    return results, tuple(np.unique(slot.owners[of[wrong]]).tolist()), highest


def alike(coefficients: Words) -> PValue:
    """The test that no two limbs' coefficients of one power come twice, shape (…, 9)."""
    pairs = coefficients[..., : shamir.NUM_LIMBS // 2 * 2]
    return repeated(
        (pairs[..., 0::2] | pairs[..., 1::2] << np.uint64(_BITS)).reshape(-1), 2 * _BITS
    )


def _equal(test: str, are: npt.NDArray[np.bool_]) -> PValue:
    count = int(np.count_nonzero(are))
    value = repetitions(count, are.size / shamir.PRIME)
    return PValue(test, value, f"{count} of {are.size} {test}")


def coefficients(points: Positions, shares: Limbs) -> Words:
    """The polynomials through some shares, by divided differences.

    Args:
        points: The points of each polynomial, distinct, in [1, 2^31 − 1), shape (n, t).
        shares: The values there, shape (n, t, 9).

    Returns:
        Coefficients modulo the prime, the constant term first, shape (n, t, 9).
    """
    count, at = points.shape[1], points.astype(np.uint64)[..., None]
    values = shares.astype(np.uint64)
    spread = int(points.max(initial=0) - points.min(initial=0))
    inverses = np.zeros(spread + 1, dtype=np.uint64)
    inverses[1:] = shamir.inverse(np.arange(1, spread + 1, dtype=np.uint64))
    for order in range(1, count):
        gaps = points[:, order:] - points[:, :-order]
        factors = inverses[np.abs(gaps)]
        factors = np.where(gaps < 0, _P - factors, factors)[..., None]
        steps = (values[:, order:] + _P - values[:, order - 1 : -1]) % _P
        values[:, order:] = steps * factors % _P
    # Now they are the coefficients of Newton's form, which is multiplied out from the inside.
    for start in range(count - 2, -1, -1):
        lower = values[:, start:-1]
        values[:, start:-1] = (
            lower + _P - values[:, start + 1 :] * at[:, start : start + 1] % _P
        ) % _P
    return values


def leading(points: Positions, shares: Limbs) -> Words:
    """The last of the `coefficients` alone, which takes t times less work.

    Args:
        points: Shape (n, t).
        shares: Shape (n, t, 9).

    Returns:
        Shape (n, 9).
    """
    at = points.astype(np.uint64)
    denominators = np.ones_like(at)
    for column in range(at.shape[1]):
        gaps = (at + _P - at[:, column : column + 1]) % _P
        gaps[:, column] = 1
        denominators = denominators * gaps % _P
    weights = shamir.inverse(denominators).astype(np.uint32)
    return shamir.combine(weights, shares).astype(np.uint64)


def evaluate(polynomials: Words, points: Positions) -> Words:
    """The values of polynomials, each at its own point.

    Args:
        polynomials: Shape (n, t, 9), the constant term first.
        points: Shape (n,).

    Returns:
        Shape (n, 9).
    """
    at, values = points.astype(np.uint64)[:, None], polynomials[:, -1]
    for power in range(polynomials.shape[1] - 2, -1, -1):
        values = (values * at + polynomials[:, power]) % _P
    return values
