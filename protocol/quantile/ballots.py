"""Votes that are valid: what a device proves of an answer to `bracketed` or `histogram`.

An answer is valid if it is one that some loss and some legal weight give. Such an answer is known
from two things: its weight v, and its place, the number of pivots that are not above the loss. So a
device proves one choice: either it does not count and everything is zero, or its answer is that of
one of the places, with a count of 1 and one weight throughout. That counts are 0 or 1, that they
never fall from pivot to pivot, and that each weight below is the weight times the count, follow.

With its first answer of a search, a device also commits to its weight and count by themselves, in
parts, and proves of each part that it is one of a few numbers, so that the sum is a legal weight.
Every answer of the search is proved to have the weight and the count of that commitment.

The server checks proofs before it adds an answer up. It learns nothing but that they hold.

Spec: §12.17, §14.14.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Final

from deltafl.protocol.labels import Label
from deltafl.protocol.quantile.search import Query, SearchConfig
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import labels as secagg_labels
from deltafl.secagg import pedersen, proofs
from deltafl.secagg.openings import Commitment
from deltafl.secagg.pedersen import BASE, COMMITMENT_SIZE, ORDER, minus, plus, times
from deltafl.secagg.proofs import Case, Choice, Witness
from deltafl.secagg.randomness import Randomness, hedged

METHODS: Final = ("bracketed", "histogram")
"""The methods whose answers can be proved to be valid."""

# Beyond every position of a vector, so that no answer is committed to with these generators.
_WEIGHT_GENERATOR: Final = 1 << 32
_COUNT_GENERATOR: Final = _WEIGHT_GENERATOR + 1

_Value = tuple[int, int]
"""A weight and a count."""


@dataclass(frozen=True, slots=True)
class Voter:
    """A device's weight in a search, and how it has committed to it: its secret.

    Attributes:
        weight: v, in [0, largest_weight].
        chosen: For each part, which of its values it has.
        blindings: Of the parts, in [0, ORDER).
        commitments: To the parts, 32 bytes each; public.
    """

    weight: int = field(repr=False)
    chosen: tuple[int, ...] = field(repr=False)
    blindings: tuple[int, ...] = field(repr=False)
    commitments: tuple[bytes, ...]

    @classmethod
    def drawn(cls, config: SearchConfig, weight: int, randomness: Randomness) -> "Voter":
        """A device of some weight, with new commitments.

        If the randomness repeats itself, commitments to another weight have other blindings.

        Spec: §12.17.

        Args:
            config: The search.
            weight: One that its weighting gives, in [0, largest_weight].
            randomness: Takes 32 bytes.
        """
        source = hedged(randomness, Label.WEIGHT_BLINDINGS, config.largest_weight, weight)
        points = [[_point(value) for value in part] for part in _parts(config)]
        chosen = _chosen(config, weight)
        blindings = tuple(pedersen.draw_blinding(source) for _ in points)
        commitments = tuple(
            plus(times(blinding, BASE), part[index])
            for part, index, blinding in zip(points, chosen, blindings, strict=True)
        )
        return cls(weight, chosen, blindings, commitments)

    @property
    def blinding(self) -> int:
        """The blinding of the sum of the commitments."""
        return sum(self.blindings) % ORDER

    def prove(
        self,
        config: SearchConfig,
        query: Query,
        tick: int,
        commitment: Commitment,
        blinding: int,
        randomness: Randomness,
        *,
        is_first: bool,
    ) -> bytes:
        """Prove that the answer of this device is valid.

        Spec: §12.17.

        Args:
            config: The search.
            query: What is answered.
            tick: The device's loss.
            commitment: To the answer.
            blinding: Of that commitment, in [0, ORDER).
            randomness: Of the proof.
            is_first: Whether this is the search's first query.

        Returns:
            As many bytes as `proof_size` says.
        """
        own = reduce(plus, self.commitments)
        about, factor = _about(commitment, own)
        joined = (blinding + factor * self.blinding) % ORDER
        place = sum(pivot <= tick for pivot in query.pivots)
        witness = (
            Witness(1 + place, (joined, self.weight)) if self.weight else Witness(0, (joined,))
        )
        choices, witnesses = [_answers(query, commitment.point, own, factor)], [witness]
        if not is_first:
            return proofs.prove(about, choices, witnesses, randomness)
        choices += _weights(config, self.commitments)
        witnesses += [
            Witness(index, (part,)) for index, part in zip(self.chosen, self.blindings, strict=True)
        ]
        proof = proofs.prove(about, choices, witnesses, randomness)
        return b"".join(self.commitments) + proof


def proof_size(config: SearchConfig, num_pivots: int, *, is_first: bool) -> int:
    """Bytes of what proves that an answer is valid.

    Spec: §12.17.

    Args:
        config: The search.
        num_pivots: Pivots of a query, at least 1.
        is_first: Whether it is the answer to the search's first query.
    """
    shape = [[1, *[2] * (num_pivots + 1)]]
    if not is_first:
        return proofs.size(shape)
    parts = _parts(config)
    return COMMITMENT_SIZE * len(parts) + proofs.size(shape + [[1] * len(part) for part in parts])


def admits(
    config: SearchConfig,
    query: Query,
    weights: dict[int, bytes],
    commitment: Commitment,
    proof: bytes,
    *,
    is_first: bool,
) -> bool:
    """Whether an answer is proved to be valid; never raises.

    Spec: §12.17.

    Args:
        config: The search.
        query: What is answered.
        weights: By position, what devices have committed to as their weights. If this proves the
            weight of a device that has none, it is added.
        commitment: To the answer; from any source.
        proof: From any source.
        is_first: Whether this is the search's first query.
    """
    position, known = commitment.position, weights.get(commitment.position)
    if not pedersen.is_in_group(commitment.point):
        return False
    parts, own = tuple[bytes, ...](), known
    if is_first:
        size = COMMITMENT_SIZE * len(_parts(config))
        points, proof = proof[:size], proof[size:]
        parts = tuple(points[i : i + COMMITMENT_SIZE] for i in range(0, size, COMMITMENT_SIZE))
        if not all(map(pedersen.is_in_group, parts)):
            return False
        own = reduce(plus, parts)
    if own is None or known not in (None, own):
        return False
    about, factor = _about(commitment, own)
    choices = [_answers(query, commitment.point, own, factor)]
    if is_first:
        choices += _weights(config, parts)
    if not proofs.holds(about, choices, proof):
        return False
    weights[position] = own
    return True


def _about(commitment: Commitment, own: bytes) -> tuple[bytes, int]:
    """What a proof is bound to, and the factor by which the two commitments are joined.

    The factor is a hash of both commitments, so that nobody can choose one of them for it.
    """
    about = secagg_labels.pack(commitment.described(), own)
    return about, proofs.challenge(Label.BALLOT, about)


def _answers(query: Query, point: bytes, own: bytes, factor: int) -> Choice:
    """The choice that the answer is that of a device that does not count, or of one of the places.

    With C the commitment to the answer, D that to the weight and count, x the factor, and W and N
    the generators of D: the target of the first case is C + x·D. In each other case, the target is
    that without all that has the factor 1, and the second base is all that has the factor v.
    """
    joined = plus(point, times(factor, own))
    weight = plus(pedersen.generator(0), times(factor, _weight_generator()))
    count = plus(pedersen.generator(1), times(factor, _count_generator()))
    num_pivots = len(query.pivots)
    cases = [Case(joined, (BASE,))]
    for place in range(num_pivots + 1):
        # Pivots that are equal have equal answers, so their place is that of the first of them.
        first = query.pivots.index(query.pivots[place]) if place < num_pivots else place
        weights = pedersen.span(2 + first, 2 + num_pivots)
        counts = pedersen.span(2 + num_pivots + first, 2 + 2 * num_pivots)
        target = minus(joined, plus(count, counts))
        cases.append(Case(target, (BASE, plus(weight, weights))))
    return cases


def _weights(config: SearchConfig, commitments: Sequence[bytes]) -> list[Choice]:
    """For each part of a weight, the choice that it is one of its values."""
    return [
        [Case(minus(commitment, _point(value)), (BASE,)) for value in part]
        for part, commitment in zip(_parts(config), commitments, strict=True)
    ]


def _parts(config: SearchConfig) -> list[list[_Value]]:
    """The values of each part of a weight and count; what sums of them can be is what is legal.

    The sums in which the count is 1 are the legal weights from 1 on. Sums with a count of 0 are
    legal if the weight is 0 too, which the proof of the answer has to show.
    """
    largest = config.largest_weight
    if config.search.weighting is not Weighting.SAMPLES:
        return [[(0, 0), *((1 << i, 1) for i in range(largest.bit_length()))]]
    steps = _steps(largest - 1)
    first = [(0, 0), (1, 1), *((1 + step, 1) for step in steps[:1])]
    return [first, *([(0, 0), (step, 0)] for step in steps[1:])]


def _steps(largest: int) -> list[int]:
    """Numbers of which some add up to each number in [0, largest], and to no other.

    They are powers of two, but for the last of them.
    """
    if largest == 0:
        return []
    num_powers = largest.bit_length() - 1
    return [*(1 << i for i in range(num_powers)), largest - (1 << num_powers) + 1]


def _chosen(config: SearchConfig, weight: int) -> tuple[int, ...]:
    """Which value each part has for a weight."""
    if config.search.weighting is not Weighting.SAMPLES:
        return (weight.bit_length(),)
    steps = _steps(config.largest_weight - 1)
    if weight == 0:
        return (0,) * max(len(steps), 1)
    rest, bits = weight - 1, [0] * len(steps)
    if steps and rest >= 1 << (len(steps) - 1):
        rest, bits[-1] = rest - steps[-1], 1
    for index in range(len(steps) - 1):
        bits[index] = rest >> index & 1
    return (1 + sum(bits[:1]), *bits[1:])


@cache
def _weight_generator() -> bytes:
    return pedersen.generator(_WEIGHT_GENERATOR)


@cache
def _count_generator() -> bytes:
    return pedersen.generator(_COUNT_GENERATOR)


@cache
def _point(value: _Value) -> bytes:
    """What a part of this value adds to a blinding."""
    weight, count = value
    return plus(times(weight, _weight_generator()), times(count, _count_generator()))
