"""Do masked vectors reveal what they mask, alone, in pairs, or without the masks that are known?

If two vectors were masked with the same masks, their difference is that of their inputs, y1 − y2 =
x1 − x2. If one mask was negated, this holds for their sum. Inputs are numbers of bounded size in a
ring made for the sum of a whole cohort. Such a word therefore begins with many equal bits. A
uniform word does not: the number of bits after the first that equal it is geometric. A vector
without any mask is found in the same way.

When the server unmasks a slot, it rebuilds the seeds of the survivors' self masks, and the recovery
keys of the devices that were lost, which open what these have deposited: the keys of their links.
From then on, only the masks that two survivors share hide each of them. They cancel in the sum over
all. If they cancel in the sum over a few, these few share masks only with one another, and the
server knows their sum. In a whole slot there are no other masks at all. From a vector of a device
that was called lost, all masks can be removed that it shares with others.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

import numpy as np

from deltafl.protocol.configuration import binding
from deltafl.secagg import prg
from deltafl.secagg.graph import Positions
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.ring import Vector
from deltafl.secagg.summing import SlotSum
from deltafl.secagg.unmasking import remove_masks
from deltafl.sim.inspect.audit.session_log import Session
from deltafl.sim.inspect.audit.tails import Counts, Floats, heads_before_tails

MAX_WORDS: Final = 1024
"""Words of a vector that are compared with others; the first ones."""

MAX_DEVICES: Final = 1 << 8
"""Devices of a slot that are added up in groups; the first ones."""

_MAX_GROUPS: Final = 1 << 16
_AT_ONCE: Final = 1 << 22  # words of sums over groups


def leading_repeats(words: Vector, bits: int) -> Counts:
    """How many bits follow the top bit of each word of Z_2^b and equal it, before one differs.

    A word that fits m bits as a signed number, sign included, has b − m or more. For uniform words
    the number is geometric, P(G ≥ g) = 2^−g, and ends at b − 1.

    Args:
        words: uint32 or uint64 of any shape; bits from b on are ignored.
        bits: b, 1 to 64.

    Returns:
        Numbers in [0, b), of the shape of `words`.
    """
    aligned = (words.astype(np.uint64) << np.uint64(64 - bits)).view(np.int64)
    magnitude = aligned ^ (aligned >> 63)  # complement of negative numbers: from 0 to 2^63 − 1
    # Without the ones that follow a one, no rounding to a double can move its first one.
    _, lengths = np.frexp((magnitude & ~(magnitude >> 1)).astype(np.float64))
    return np.minimum(63 - lengths.astype(np.int64), bits - 1)


def without_known_masks(
    heads: Mapping[int, Vector], session: Session, slot: int, learnt: SlotSum
) -> dict[int, Vector]:
    """What is left of vectors without the masks that follow from rebuilt secrets.

    Args:
        heads: The first words of the vectors of a slot, by device; they are not changed.
        session: Their session.
        slot: The index of their slot.
        learnt: Its sum, with the secrets that were rebuilt for it.

    Returns:
        Of the devices whose seed was rebuilt, or, in a whole slot, of all; and, negated, of those
        whose recovery key was, without all masks but their self masks.
    """
    if (recovered := learnt.recovered) is None:
        return dict(heads)
    question, params, at = session.question(slot), session.params, session.positions
    if question is None:
        return {}
    bound, left = binding(params.context, question), dict[int, Vector]()
    context = SlotContext.of(params, session.session_id, slot, bound)
    for position, device in ((at[device], device) for device in heads.keys() & at.keys()):
        # The sum over a single survivor; or over all others, of which the vector of a lost one has
        # the negative masks.
        if position in recovered.seeds:
            seeds, total = [recovered.seeds[position]], heads[device].copy()
            opened: dict[int, Mapping[int, bytes]] = {
                lost: {position: keys[position]}
                for lost, keys in recovered.opened.items()
                if position in keys
            }
        elif position in recovered.opened:
            seeds, total = [], np.zeros_like(heads[device]) - heads[device]
            opened = {position: recovered.opened[position]}
        else:
            continue
        remove_masks(total, seeds, opened, context, prg.add_masks, verified=False)  # of the vector
        left[device] = total
    return left


def groups_of(count: int) -> Iterator[Positions]:
    """All groups of up to half of so many devices, of the sizes of which there are few enough.

    The sum over the others is small exactly where that over the group is. Pairs are `signed`.
    """
    total = 0
    for size in range(1, max(1, count // 2) + 1):
        total += comb(count, size)
        if total > _MAX_GROUPS and size > 1:
            return
        groups = np.array(list(combinations(range(count), size)), dtype=np.int64)
        yield signed(groups, count) if size == 2 else groups


def signed(pairs: Positions, count: int) -> Positions:
    """Pairs of so many vectors, and once more with the second one negated, for `small_sums`."""
    return np.concatenate([pairs, pairs + np.array([0, count])])


def small_sums(slots: Sequence[tuple[int, Sequence[Vector]]], groups: Positions) -> Floats:
    """P-values of sums over groups of vectors not being small in absolute value.

    Args:
        slots: Slots over the same devices: the bits of the ring, and n vectors of one length.
        groups: Indices of vectors, and from n on of those negated, shape (groups, size).

    Returns:
        Shape (groups,): exact as long as no word has all b − 1 repeats, else conservative.
    """
    repeats, length = np.zeros(len(groups), np.int64), 0
    for bits, vectors in slots:
        size = len(vectors[0])
        most = min(size, max(1, _AT_ONCE // groups.size))
        few = np.stack(vectors)[:, np.linspace(0, size - 1, most).astype(np.intp)]
        both = np.concatenate([few, np.zeros_like(few) - few])
        repeats += leading_repeats(both[groups].sum(axis=1), bits).sum(axis=1)
        length += most
    return heads_before_tails(repeats, length)
