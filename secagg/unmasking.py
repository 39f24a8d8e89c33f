"""Taking the masks off one slot's sum: shares in, verified secrets out, masks removed.

A rebuilt seed must match its commitment and a rebuilt key its advertised public key. Where it does
not, the shares are decoded as the code word that they are: up to ⌊(m − t)/2⌋ wrong ones of m are
corrected, and name their senders. Where all m > t shares fit together, and still do not give what
was promised, the promise was false: this names the device that dealt them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from secagg import keys, prg, shamir
from secagg.decoding import decode
from secagg.errors import Fault, SessionAborted
from secagg.graph import Graph, Members, Positions
from secagg.keys import KeyPair, PublicKey
from secagg.masks import SlotContext, seed_commitment, subtracts
from secagg.messages import ShareKind, UnmaskShares
from secagg.ring import Vector


@dataclass(frozen=True, slots=True)
class Promises:
    """What the secrets of a slot must match, by roster position.

    Attributes:
        context: The slot.
        slot: Its index.
        commitments: To the self-mask seeds, 32 bytes each.
        mask_keys: The public mask keys.
    """

    context: SlotContext
    slot: int
    commitments: Mapping[int, bytes]
    mask_keys: Mapping[int, PublicKey]

    def seed_is_right(self, position: int, seed: bytes) -> bool:
        """Whether a device committed to this seed."""
        committed = seed_commitment(self.context.session_id, self.slot, position, seed)
        return committed == self.commitments[position]

    def key_is_right(self, position: int, pair: KeyPair) -> bool:
        """Whether a device advertised the public key of this pair."""
        return pair.public == self.mask_keys[position]


@dataclass(frozen=True, slots=True)
class Recovered:
    """The secrets of one slot.

    Attributes:
        seeds: Self-mask seeds of the survivors, by roster position.
        mask_keys: Mask key pairs of those who dropped out, by roster position.
        faults: Devices that lied, by roster position.
    """

    seeds: Mapping[int, bytes] = field(repr=False)
    mask_keys: Mapping[int, KeyPair] = field(repr=False)
    faults: Mapping[int, Fault]


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
        shape = (graph.num_devices, graph.num_holders)
        self._shares = np.zeros((*shape, shamir.NUM_LIMBS), dtype=np.uint32)
        self._filled = np.zeros(shape, dtype=np.bool_)

    def take(self, holder: int, message: UnmaskShares, refused: frozenset[int]) -> Fault | None:
        """Store a device's shares.

        Args:
            holder: The device's position.
            message: Its shares.
            refused: Whose shares it said it did not get.

        Returns:
            A fault if these are not the shares that it was asked for.
        """
        asked = np.zeros_like(self.cohort)
        asked[self._graph.holders_of(holder)] = True
        asked &= self.cohort
        asked[list(refused)] = False
        positions = np.flatnonzero(asked)
        if not np.array_equal(message.positions, positions):
            return Fault.MALFORMED
        wanted = np.where(self.survivors[positions], ShareKind.SEED, ShareKind.KEY)
        if (message.kinds != wanted).any():
            return Fault.MALFORMED
        columns = self._graph.column_of(holder, positions)
        self._shares[positions, columns] = message.shares
        self._filled[positions, columns] = True
        return None

    def recover(self, promises: Promises) -> Recovered:
        """Rebuild and verify every secret of the slot.

        Raises:
            SessionAborted: some secret cannot be rebuilt from the shares that came.
        """
        seeds: dict[int, bytes] = {}
        pairs: dict[int, KeyPair] = {}
        faults: dict[int, Fault] = {}
        for position, combined in self._combine_all():
            if self.survivors[position]:
                seed = combined
                if seed is None or not promises.seed_is_right(position, seed):
                    seed = self._correct(position, faults)
                    if not promises.seed_is_right(position, seed):
                        # It is what the device dealt, and most likely what it used.
                        faults[position] = Fault.BAD_COMMITMENT
                seeds[position] = seed
            else:
                pair = None if combined is None else keys.key_pair(combined)
                if pair is None or not promises.key_is_right(position, pair):
                    pair = keys.key_pair(self._correct(position, faults))
                    if not promises.key_is_right(position, pair):
                        raise SessionAborted(
                            f"the device at position {position}, which is gone, had shared another "
                            "key than the one it advertised: this slot's sum is lost"
                        )
                pairs[position] = pair
        return Recovered(seeds, pairs, faults)

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
        # On a complete graph the same devices answer for everyone.
        kinds, which = np.unique(points, axis=0, return_inverse=True)
        weights = shamir.lagrange_at_zero(kinds)[which.reshape(-1)]
        shares = self._shares[targets[:, None], columns]
        secrets = shamir.from_limbs(shamir.combine(weights, shares))
        yield from zip(targets.tolist(), secrets, strict=True)

    def _correct(self, position: int, faults: dict[int, Fault]) -> bytes:
        """The secret that most shares of a device agree on; adds the senders of the others."""
        holders = self._graph.holders_of(position)
        columns = np.flatnonzero(self._filled[position])
        for limb in range(shamir.NUM_LIMBS):
            columns = _without_liars(columns, holders, faults)
            shares = self._shares[position, columns, limb]
            # Any t values fit a polynomial: only one more says something.
            enough = len(columns) > self._threshold
            decoded = decode(holders[columns] + 1, shares, self._threshold) if enough else None
            if decoded is None:
                raise SessionAborted(
                    f"the shares that came for position {position} do not fit together, and too "
                    "few are left over to tell which are wrong: this slot's sum is lost"
                )
            faults |= {int(holders[columns[i]]): Fault.BAD_SHARE for i in decoded[1]}
        columns = _without_liars(columns, holders, faults)[: self._threshold]
        weights = shamir.lagrange_at_zero(holders[columns][None] + 1)
        shares = self._shares[position, columns][None]
        secret = shamir.from_limbs(shamir.combine(weights, shares))[0]
        if secret is None:
            raise SessionAborted(
                f"the device at position {position} had shared something that is no secret: this "
                "slot's sum is lost"
            )
        return secret


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


def _without_liars(
    columns: Positions, holders: Positions, faults: Mapping[int, Fault]
) -> Positions:
    """The columns of holders whose shares have all been right so far."""
    honest = [faults.get(h) is not Fault.BAD_SHARE for h in holders[columns].tolist()]
    return columns[np.array(honest, dtype=np.bool_)]
