"""Taking the masks off one slot's sum: shares in, verified secrets out, masks removed.

A rebuilt seed must match its commitment and a rebuilt key its advertised public key. Where it does
not, some share was wrong: other sets of t shares are tried, and once one of them gives the secret,
every share off its polynomial names its sender. (It may have been dealt wrongly in the first place:
shares are not verifiable when they are dealt, see docs/limitations.md.)
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from secagg import keys, prg, shamir
from secagg.errors import Fault, SessionAborted
from secagg.graph import Graph, Members
from secagg.keys import KeyPair, PublicKey
from secagg.masks import SlotContext, seed_commitment, subtracts
from secagg.messages import ShareKind, UnmaskShares
from secagg.params import SessionId
from secagg.ring import Vector
from secagg.shamir import Limbs


@dataclass(frozen=True, slots=True)
class Recovered:
    """The secrets of one slot.

    Attributes:
        seeds: Self-mask seeds of the survivors, by roster position.
        mask_keys: Mask key pairs of those who dropped out, by roster position.
        liars: Positions of devices whose shares were wrong.
    """

    seeds: Mapping[int, bytes] = field(repr=False)
    mask_keys: Mapping[int, KeyPair] = field(repr=False)
    liars: frozenset[int]


class SlotSecrets:
    """Collects the shares of one slot.

    Args:
        graph: The neighbourhoods.
        threshold: Shares that rebuild a secret.
        cohort: The devices that the slot was opened with.
        survivors: Those of them whose masked vectors are in the sum.
    """

    def __init__(self, graph: Graph, threshold: int, cohort: Members, survivors: Members) -> None:
        self.cohort = cohort
        self.survivors = survivors
        self._graph = graph
        self._threshold = threshold
        shape = (graph.num_devices, graph.degree + 1)
        self._shares = np.zeros((*shape, shamir.NUM_LIMBS), dtype=np.uint32)
        self._filled = np.zeros(shape, dtype=np.bool_)

    def take(self, holder: int, message: UnmaskShares) -> Fault | None:
        """Store a device's shares; a fault if it sent others than it was asked for."""
        asked = np.zeros_like(self.cohort)
        asked[self._graph.closed_neighbours(holder)] = True
        asked &= self.cohort
        positions = message.positions.astype(np.int64)
        if len(positions) and not (positions[-1] < len(asked) and asked[positions].all()):
            return Fault.MALFORMED
        wanted = np.where(self.survivors[positions], ShareKind.SEED, ShareKind.KEY)
        if (message.kinds != wanted).any():
            return Fault.MALFORMED
        columns = self._graph.column_of(holder, positions)
        self._shares[positions, columns] = message.shares
        self._filled[positions, columns] = True
        return None

    def recover(
        self,
        session_id: SessionId,
        slot: int,
        commitments: Mapping[int, bytes],
        mask_keys: Mapping[int, PublicKey],
    ) -> Recovered:
        """Rebuild and verify every secret of the slot.

        Raises:
            SessionAborted: some secret cannot be rebuilt from the shares that came.
        """

        def verifies(position: int, secret: bytes) -> bool:
            if self.survivors[position]:
                expected = commitments[position]
                return seed_commitment(session_id, slot, position, secret) == expected
            return keys.key_pair(secret).public == mask_keys[position]

        seeds: dict[int, bytes] = {}
        rebuilt: dict[int, KeyPair] = {}
        liars: set[int] = set()
        for position, combined in self._combine_all():
            secret = combined
            if secret is None or not verifies(position, secret):
                secret, wrong = self._search(position, verifies)
                liars |= wrong
            if self.survivors[position]:
                seeds[position] = secret
            else:
                rebuilt[position] = keys.key_pair(secret)
        return Recovered(seeds, rebuilt, frozenset(liars))

    def _combine_all(self) -> Iterator[tuple[int, bytes | None]]:
        """Each device of the cohort with the secret that its first t shares give."""
        targets = np.flatnonzero(self.cohort)
        filled = self._filled[targets]
        if (few := filled.sum(axis=1) < self._threshold).any():
            first = int(targets[few][0])
            raise SessionAborted(
                f"{int(self._filled[first].sum())} shares came for position {first}, and the "
                f"threshold is {self._threshold}: this slot's sum is lost"
            )
        # A stable sort brings the columns that are filled to the front, in order.
        columns = np.argsort(~filled, axis=1, kind="stable")[:, : self._threshold]
        points = self._graph.holders(targets, columns) + 1
        weights = [shamir.lagrange_at_zero(tuple(row)) for row in points.tolist()]
        shares = self._shares[targets[:, None], columns]
        secrets = shamir.from_limbs(shamir.combine(np.stack(weights), shares))
        yield from zip(targets.tolist(), secrets, strict=True)

    def _search(
        self, position: int, verifies: Callable[[int, bytes], bool]
    ) -> tuple[bytes, set[int]]:
        """Try runs of t shares around the ring of holders until one gives the secret.

        This finds the secret whenever some t shares in a row, cyclically, are right.
        """
        columns = np.flatnonzero(self._filled[position])
        holders = self._graph.closed_neighbours(position)[columns]
        points = holders + 1
        shares = self._shares[position, columns]
        for start in range(len(columns)):
            run = [(start + i) % len(columns) for i in range(self._threshold)]
            secret = _combine_one(points[run].tolist(), shares[run])
            if secret is not None and verifies(position, secret):
                off = _off_polynomial(points.tolist(), shares, run)
                return secret, {int(holders[i]) for i in off}
        raise SessionAborted(
            f"the shares that came for position {position} do not fit together, and too few are "
            "left over to tell which are wrong: this slot's sum is lost"
        )


def remove_masks(
    total: Vector,
    recovered: Recovered,
    context: SlotContext,
    graph: Graph,
    survivors: Members,
    mask_keys: Mapping[int, PublicKey],
) -> None:
    """Take every mask off the sum of masked vectors, in place.

    Args:
        total: Sum of the survivors' masked vectors.
        recovered: The slot's secrets.
        context: What the masks are bound to.
        graph: The neighbourhoods.
        survivors: Whose vectors are in the sum.
        mask_keys: Everybody's public mask key of the slot by roster position.
    """
    added: list[bytes] = []
    subtracted = [context.self_mask_key(seed) for seed in recovered.seeds.values()]
    for dropped, pair in recovered.mask_keys.items():
        near = graph.neighbours(dropped)
        near = near[survivors[near]]
        peers = [mask_keys[survivor] for survivor in near.tolist()]
        pairwise = context.pairwise_mask_keys(pair, peers)
        for survivor, key in zip(near.tolist(), pairwise, strict=True):
            (added if subtracts(survivor, dropped) else subtracted).append(key)
    prg.add_masks(total, added, subtracted)


def _combine_one(points: list[int], shares: Limbs) -> bytes | None:
    weights = shamir.lagrange_at_zero(tuple(points))
    return shamir.from_limbs(shamir.combine(weights[None], shares[None]))[0]


def _off_polynomial(points: list[int], shares: Limbs, run: list[int]) -> list[int]:
    """Which shares do not lie on the polynomial through those of the run."""
    off = []
    for index, point in enumerate(points):
        if index in run:
            continue
        # The value at a point is the value at zero of the polynomial shifted by that point.
        shifted = [(points[i] - point) % shamir.PRIME for i in run]
        weights = shamir.lagrange_at_zero(tuple(shifted))
        expected = shamir.combine(weights[None], shares[run][None])[0]
        if not np.array_equal(expected, shares[index]):
            off.append(index)
    return off
