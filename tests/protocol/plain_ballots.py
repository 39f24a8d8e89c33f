"""A verifier of votes in plain integers, from the equations of docs/spec.md, 12.17.

It is written from the page, and shares nothing with the package but numbers and bytes.
"""

from functools import cache, reduce
from itertools import count

from edwards import NEUTRAL, affine_sum, compressed, decoded, times
from plain_proofs import BASE, hashed, holds_plain, in_group, negative, pack

from deltafl.secagg import labels

BALLOT_LABEL = b"deltafl/protocol/v3/answer and weight of a device"


@cache
def generator(index):
    for attempt in count():
        data = labels.digest(b"deltafl/secagg/v3/commitment generator", index, attempt)
        point = decoded(data)
        if point is not None and compressed(point) == data and times(8, point) != NEUTRAL:
            return times(8, point)
    raise AssertionError


def parts_of(largest, weighting):
    """Values (weight, count) of each part of a committed weight."""
    if weighting != "samples":
        return [[(0, 0)] + [(2**i, 1) for i in range(64) if 2**i <= largest]]
    powers, rest = [], largest - 1
    while 2 ** (len(powers) + 1) <= rest:
        powers.append(2 ** len(powers))
    steps = [*powers, rest - sum(powers)] if rest else []
    first = [(0, 0), (1, 1)] + [(1 + step, 1) for step in steps[:1]]
    return [first] + [[(0, 0), (step, 0)] for step in steps[1:]]


def admitted(largest, weighting, pivots, described, point, known, proof):
    """The committed weight if a vote is valid, else None.

    Args:
        largest: The largest legal weight.
        weighting: Its name.
        pivots: Of the query.
        described: All that the commitment is about, and the commitment.
        point: The commitment.
        known: The committed weight, 32 bytes; None for the first query of a search.
        proof: What came with the commitment.
    """
    answer = in_group(point)
    parts = []
    if known is None:
        number = len(parts_of(largest, weighting))
        if len(proof) < 32 * number:
            return None
        parts = [in_group(proof[32 * i : 32 * i + 32]) for i in range(number)]
        proof = proof[32 * number :]
    if answer is None or None in parts:
        return None
    weight = affine_sum(parts) if known is None else decoded(known)
    about = pack(described, compressed(weight))
    x = hashed(BALLOT_LABEL, about)
    for_weight, for_count = generator(2**32), generator(2**32 + 1)
    joined = affine_sum([answer, times(x, weight)])
    cases, size = [(joined, [BASE])], len(pivots)
    for place in range(size + 1):
        is_below = [j >= place for j in range(size)]
        for j in range(size):  # equal pivots have equal answers
            is_below[j] = any(is_below[i] for i in range(size) if pivots[i] == pivots[j])
        v_part, one_part = [generator(0), times(x, for_weight)], [generator(1), times(x, for_count)]
        for j in range(size):
            if is_below[j]:
                v_part.append(generator(2 + j))
                one_part.append(generator(2 + size + j))
        cases.append(
            (affine_sum([joined, negative(affine_sum(one_part))]), [BASE, affine_sum(v_part)])
        )
    choices = [cases]
    for point_of_part, values in zip(parts, parts_of(largest, weighting), strict=False):
        choices.append(
            [
                (
                    affine_sum(
                        [
                            point_of_part,
                            negative(affine_sum([times(v, for_weight), times(c, for_count)])),
                        ]
                    ),
                    [BASE],
                )
                for v, c in values
            ]
        )
    return compressed(weight) if holds_plain(about, choices, proof) else None


def weights_of(parts):
    """All (weight, count) that sums of the parts can be."""
    return reduce(
        lambda sums, part: {(v + w, c + d) for v, c in sums for w, d in part}, parts, {(0, 0)}
    )
