"""Do masked vectors reveal what they mask, alone, in pairs, or without the masks that are known?

If two vectors were masked with the same masks, their difference is that of their inputs, y1 − y2 =
x1 − x2. If one mask was negated, this holds for their sum. Inputs are numbers of bounded size in a
ring made for the sum of a whole cohort. Such a word therefore begins with many equal bits. A
uniform word does not: the number of bits after the first that equal it is geometric. A vector
without any mask is found in the same way.

When the server unmasks a slot, it rebuilds the seeds of the survivors' self masks, and the keys of
the devices that were lost. From then on, only the masks that two survivors share hide each of them.
They cancel in the sum over all. If they cancel in the sum over a few, these few share masks only
with one another, and the server knows their sum. In a whole slot there are no other masks at all.
From a vector of a device that was called lost, all masks can be removed that it shares with others.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

import numpy as np

from deltafl.secagg import prg
from deltafl.secagg.errors import PeerError
from deltafl.secagg.graph import Positions
from deltafl.secagg.masks import subtracts
from deltafl.secagg.ring import Vector
from deltafl.secagg.unmasking import Recovered
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.tails import Counts, Floats, heads_before_tails
from deltafl.sim.inspect.audit.views import SessionView, SlotView

MAX_WORDS: Final = 1024
"""Words of a vector that are compared with others; the first ones."""

MAX_DEVICES: Final = 1 << 8
"""Devices of a slot that are added up in groups; the first ones."""

Left = tuple[int, Vector, Evidence]
"""The bits of a slot's ring, what is left of its vectors, shape (n, L), and its place."""

_MAX_GROUPS: Final = 1 << 16
_AT_ONCE: Final = 1 << 22  # words of sums over groups
_DOUBLE_EXPONENT_BIAS: Final = 1023
_DOUBLE_MANTISSA_BITS: Final = 52


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
    # The exponent of a double is where its first one is. Without the ones that follow a one, no
    # rounding can move it. Zero has the least exponent of all.
    doubles = (magnitude & ~(magnitude >> 1)).astype(np.float64)
    exponents = doubles.view(np.int64) >> _DOUBLE_MANTISSA_BITS
    repeats: Counts = np.minimum(62 + _DOUBLE_EXPONENT_BIAS - exponents, bits - 1)
    return repeats


def small_words(words: Vector, bits: int) -> Floats:
    """P-values of words of Z_2^b not being small in absolute value.

    Args:
        words: Shape (…, L), L ≥ 1, uint32 or uint64; bits from b on are ignored.
        bits: b, 1 to 64.

    Returns:
        p-values, shape (…): exact as long as no word has all b − 1 repeats, else conservative.
    """
    return heads_before_tails(leading_repeats(words, bits).sum(axis=-1), words.shape[-1])


def without_known_masks(
    heads: Mapping[int, Vector], session: SessionView, slot: SlotView, recovered: Recovered | None
) -> dict[int, Vector]:
    """What is left of vectors without the masks that follow from rebuilt secrets.

    Args:
        heads: The first words of the vectors of a slot, by device; they are not changed.
        session: Their session.
        slot: Their slot.
        recovered: The secrets that were rebuilt for its sum; None in a whole slot.

    Returns:
        Of the devices whose seed was rebuilt, or, in a whole slot, of all; and of those whose key
        was, without all masks but their self masks. None if a key is of low order.
    """
    if recovered is None:
        return dict(heads)
    context = session.slot_context(slot)
    if context is None or slot.members is None:
        return {}
    added: dict[int, list[bytes]] = defaultdict(list)
    subtracted: dict[int, list[bytes]] = defaultdict(list)
    column, ids = session.params.columns[slot.index], session.ids.tolist()
    for position, seed in recovered.seeds.items():
        subtracted[ids[position]].append(context.self_mask_key(seed))
    public = {one: message.mask_keys[column] for one, message, _ in session.advertised()}
    members = set(np.flatnonzero(slot.members).tolist())
    for at, pair in recovered.mask_keys.items():
        lost = ids[at]
        near = [p for p in session.graph.neighbours(at).tolist() if p in members]
        near = [p for p in near if ids[p] in public]
        try:
            agreed = context.pair_secrets(pair, near, [public[ids[p]] for p in near])
        except PeerError:
            return {}
        for shared in agreed:
            peer, key = ids[shared.peer], shared.key()
            (added if subtracts(at, shared.peer) else subtracted)[lost].append(key)
            if shared.peer in recovered.seeds:
                (subtracted if subtracts(at, shared.peer) else added)[peer].append(key)
    left = {one: heads[one].copy() for one in heads if one in subtracted or one in added}
    for device, words in left.items():
        prg.add_masks(words, added[device], subtracted[device])
    return left


def groups_of(count: int) -> Iterator[Positions]:
    """All groups of up to half of so many devices, of the sizes of which there are few enough.

    The sum over the others is small exactly where that over the group is.
    """
    total = 0
    for size in range(1, max(1, count // 2) + 1):
        total += comb(count, size)
        if total > _MAX_GROUPS and size > 1:
            return
        yield np.array(list(combinations(range(count), size)), dtype=np.int64)


def small_sums(slots: Sequence[Left]) -> Iterator[tuple[str, Positions, Floats]]:
    """The tests that nothing small is left in sums over groups of devices, nor in differences.

    Args:
        slots: Slots over the same devices.

    Returns:
        What was computed, the groups as indices below n, and their p-values.
    """
    groups = list(groups_of(len(slots[0][1])))
    columns = max(1, _AT_ONCE // sum(group.size for group in groups))
    parts = []  # of each slot, words from the first to the last
    for bits, left, _ in slots:
        length = left.shape[1]
        few = np.linspace(0, length - 1, min(length, columns)).astype(np.intp)
        parts.append((bits, left[:, few]))

    size = sum(part.shape[1] for _, part in parts)
    for group in groups:
        repeats = sum(_repeats(part[group].sum(axis=1), bits) for bits, part in parts)
        yield "sums", group, heads_before_tails(repeats, size)
    if len(groups) > 1:
        one, other = groups[1].T
        repeats = sum(_repeats(part[one] - part[other], bits) for bits, part in parts)
        yield "differences", groups[1], heads_before_tails(repeats, size)


def _repeats(words: Vector, bits: int) -> Counts:
    counts: Counts = leading_repeats(words, bits).sum(axis=1)
    return counts
