"""Removes the masks from one slot's sum: collects shares, rebuilds and verifies the secrets.

A rebuilt seed must match its commitment, and a rebuilt key its advertised public key. If it does
not, the shares are decoded as a Reed–Solomon code word, which corrects up to ⌊(m − t)/2⌋ wrong
shares of m. If all m > t shares fit together and still do not give what was promised, the promise
was false, and the device that dealt them is at fault.

A wrong share is a dispute between the device that dealt it and the one that returned it; nobody
else can tell which of the two is lying. So a single dispute drops neither device. A device in
dispute with most of those whose shares it holds is at fault (compare `deltafl.secagg.complaints`).

Spec: §10.9, §10.10.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from deltafl.secagg import keys, shamir
from deltafl.secagg.errors import Fault, SessionAborted
from deltafl.secagg.graph import Graph, Members, Positions
from deltafl.secagg.keys import KeyPair, PublicKey
from deltafl.secagg.masks import SlotContext, seed_commitment, subtracts
from deltafl.secagg.messages import ShareKind, UnmaskShares
from deltafl.secagg.primitives import AddMasks
from deltafl.secagg.reed_solomon import decode
from deltafl.secagg.ring import Vector
from deltafl.secagg.shamir import Limbs

_Rows = TypeVar("_Rows", Positions, Members)


@dataclass(frozen=True, slots=True)
class Promises:
    """What the secrets of a slot must match, by roster position.

    Attributes:
        context: The slot.
        slot: Its index, that of a tolerant slot.
        commitments: To the self-mask seeds, 32 bytes each.
        mask_keys: The public mask keys.
    """

    context: SlotContext
    slot: int
    commitments: Mapping[int, bytes]
    mask_keys: Mapping[int, PublicKey]

    def is_seed(self, position: int, secret: bytes) -> bool:
        """Whether a device committed to this self-mask seed."""
        committed = seed_commitment(self.context.session_id, self.slot, position, secret)
        return committed == self.commitments[position]

    def is_key(self, position: int, secret: bytes) -> bool:
        """Whether a device advertised the public key of this secret mask key."""
        return keys.key_pair(secret).public == self.mask_keys[position]


@dataclass(frozen=True, slots=True)
class Recovered:
    """The secrets of one slot.

    Attributes:
        seeds: Self-mask seeds of the survivors, by roster position.
        mask_keys: Mask key pairs of the devices that dropped out, by roster position.
        faults: Devices that lied, by roster position.
        disputes: Owner and holder of every wrong share that was found, by roster position.
    """

    seeds: Mapping[int, bytes] = field(repr=False)
    mask_keys: Mapping[int, KeyPair] = field(repr=False)
    faults: Mapping[int, Fault]
    disputes: frozenset[tuple[int, int]]


class SlotSecrets:
    """Collects the shares of one slot.

    Args:
        graph: The neighbourhoods.
        threshold: Shares needed to rebuild a secret.
        cohort: The devices that the slot was opened with.
        survivors: The devices of the cohort whose masked vectors are in the sum.
    """

    def __init__(self, graph: Graph, threshold: int, cohort: Members, survivors: Members) -> None:
        self.cohort = cohort
        self.survivors = survivors
        self._graph = graph
        self._threshold = threshold
        # Indexed by holder and owner. Holding is mutual, so the owner's column is its index among
        # the holder's own holders.
        shape = (graph.num_devices, graph.num_holders)
        self._shares = np.zeros((*shape, shamir.NUM_LIMBS), dtype=np.uint32)
        self._filled = np.zeros(shape, dtype=np.bool_)

    def take(self, holder: int, message: UnmaskShares, refused: frozenset[int]) -> Fault | None:
        """Store a device's shares.

        Args:
            holder: The device's position.
            message: Its shares.
            refused: Positions of the devices whose shares it said it did not get.

        Returns:
            A fault if these are not the shares that the device was asked for.
        """
        owners = self._graph.holders_of(holder)
        asked = self.cohort[owners]
        if refused:
            asked &= ~np.isin(owners, list(refused))
        positions = owners[asked]
        if not np.array_equal(message.positions, positions):
            return Fault.MALFORMED
        wanted = np.where(self.survivors[positions], ShareKind.SEED, ShareKind.KEY)
        if (message.kinds != wanted).any():
            return Fault.MALFORMED
        if asked.all():
            self._shares[holder] = message.shares
        else:
            self._shares[holder, asked] = message.shares
        self._filled[holder] = asked
        return None

    def recover(self, promises: Promises) -> Recovered:
        """Rebuild and verify every secret of the slot.

        Raises:
            SessionAborted: a secret cannot be rebuilt from the shares that arrived.
        """
        secrets: dict[int, bytes] = {}
        faults: dict[int, Fault] = {}
        suspects = np.zeros_like(self.cohort)
        waiting = np.flatnonzero(self.cohort)
        self._require_enough(waiting)
        while len(waiting):
            failing = []
            for owner, secret in self._combine(waiting, suspects):
                if secret is not None and self._is_promised(promises, owner, secret):
                    secrets[owner] = secret
                else:
                    failing.append(owner)
            # Decode only one. Without the holders of its wrong shares, the rest may succeed.
            for owner in failing[:1]:
                secrets[owner], wrong = self._decode(owner)
                suspects[wrong] = True
                if not self._is_promised(promises, owner, secrets[owner]):
                    if wrong:
                        # More holders may be lying than decoding can detect, so blame nobody.
                        raise self._at_odds(owner)
                    faults[owner] = self._break_promise(owner)
            waiting = np.array(failing[1:], dtype=np.int64)
        disputes = set[tuple[int, int]]()
        for suspect in np.flatnonzero(suspects).tolist():
            owners, wrong_for = self._wrong_shares(suspect, suspects)
            disputes |= {(owner, suspect) for owner in wrong_for}
            if 2 * len(wrong_for) > len(owners):
                faults[suspect] = Fault.BAD_SHARE
        return Recovered(
            {p: secret for p, secret in secrets.items() if self.survivors[p]},
            {p: keys.key_pair(secret) for p, secret in secrets.items() if not self.survivors[p]},
            faults,
            frozenset(disputes),
        )

    def _is_promised(self, promises: Promises, owner: int, secret: bytes) -> bool:
        if self.survivors[owner]:
            return promises.is_seed(owner, secret)
        return promises.is_key(owner, secret)

    def _break_promise(self, owner: int) -> Fault:
        """The fault of a device whose shares fit together but do not match its promise."""
        if self.survivors[owner]:
            # The device dealt shares of this seed, and most likely also used it as its mask.
            return Fault.BAD_COMMITMENT
        raise SessionAborted(
            f"the device at position {owner}, which is gone, had shared another key than the one "
            "it advertised: this slot's sum is lost"
        )

    def _at_odds(self, owner: int) -> SessionAborted:
        return SessionAborted(
            f"the shares that came for position {owner} do not fit together, and too few are left "
            "over to tell which are wrong: this slot's sum is lost"
        )

    def _holders(self, owners: Positions) -> tuple[Positions, Members]:
        """The holders of each owner's shares, and whose arrived; both (owners, holders)."""
        every = np.arange(self._graph.num_holders)
        holders = self._graph.holders(owners, np.broadcast_to(every, (len(owners), len(every))))
        came: Members
        if self._graph.is_complete:
            came = self._filled[:, owners].T
        else:
            came = self._filled[holders, self._graph.columns_of(owners, holders)]
        return holders, came

    def _require_enough(self, owners: Positions) -> None:
        _, came = self._holders(owners)
        if (few := came.sum(axis=1) < self._threshold).any():
            first = int(few.argmax())
            raise SessionAborted(
                f"{int(came[first].sum())} shares came for position {int(owners[first])}, and "
                f"the threshold is {self._threshold}: this slot's sum is lost"
            )

    def _choose(self, owners: Positions, suspects: Members) -> tuple[Positions, Members]:
        """For each owner, its first t holders that are not suspects, and whether there are t."""
        holders, came = self._holders(owners)
        usable = came & ~suspects[holders]
        # A stable sort moves the usable holders to the front, in order. Most rows are the same.
        kinds, which = _distinct(usable)
        columns = np.argsort(~kinds, axis=1, kind="stable")[:, : self._threshold]
        enough: Members = kinds.sum(axis=1) >= self._threshold
        return np.take_along_axis(holders, columns[which], axis=1), enough[which]

    def _combine(self, owners: Positions, suspects: Members) -> Iterator[tuple[int, bytes | None]]:
        """Each owner with the secret rebuilt from t shares of non-suspects; None if too few."""
        chosen, enough = self._choose(owners, suspects)
        limbs = self._interpolate(owners, chosen, 0)
        for owner, secret, sure in zip(
            owners.tolist(), shamir.from_limbs(limbs), enough.tolist(), strict=True
        ):
            yield owner, secret if sure else None

    def _interpolate(self, owners: Positions, chosen: Positions, point: int) -> Limbs:
        """Interpolate each owner's polynomials from its chosen holders' shares, at one point."""
        if not self._graph.is_complete:
            weights = shamir.lagrange_at_zero((chosen + 1 - point) % shamir.PRIME)
            shares = self._shares[chosen, self._graph.columns_of(owners, chosen)]
            return shamir.combine(weights, shares)
        # Nearly all owners have the same chosen holders.
        kinds, which = _distinct(chosen)
        values = np.empty((len(owners), shamir.NUM_LIMBS), dtype=np.uint32)
        for index, weights in enumerate(
            shamir.lagrange_at_zero((kinds + 1 - point) % shamir.PRIME)
        ):
            alike = which == index
            rows = (self._shares[holder, owners[alike]] for holder in kinds[index])
            values[alike] = shamir.combine_alike(weights, rows)
        return values

    def _wrong_shares(self, holder: int, suspects: Members) -> tuple[list[int], list[int]]:
        """The owners whose share from a holder can be checked, and those for whom it is wrong."""
        owners = self._graph.holders_of(holder)
        owners = owners[self._filled[holder]]
        chosen, enough = self._choose(owners, suspects)
        owners, chosen = owners[enough], chosen[enough]
        right = self._interpolate(owners, chosen, holder + 1)
        given = self._shares[np.full(len(owners), holder), self._columns_at(holder, owners)]
        wrong = (given != right).any(axis=1)
        return owners.tolist(), owners[wrong].tolist()

    def _columns_at(self, holder: int, owners: Positions) -> Positions:
        columns: Positions = self._graph.columns_of(owners, np.full((len(owners), 1), holder))[:, 0]
        return columns

    def _decode(self, owner: int) -> tuple[bytes, list[int]]:
        """The secret that most shares of an owner agree on, and the holders of the others."""
        owners = np.array([owner])
        holders, came = self._holders(owners)
        holders = holders[0, came[0]]
        shares = self._shares[holders, self._graph.columns_of(owners, holders[None])[0]]
        wrong = set[int]()
        values = []
        for limb in range(shamir.NUM_LIMBS):
            # Any t values fit a polynomial, so it takes at least one more to prove anything.
            enough = len(holders) > self._threshold
            found = decode(holders + 1, shares[:, limb], self._threshold) if enough else None
            if found is None:
                raise self._at_odds(owner)
            values.append(found[0])
            wrong |= {int(holders[index]) for index in found[1]}
        secret = shamir.from_limbs(np.array([values], dtype=np.uint32))[0]
        if secret is None:
            raise SessionAborted(
                f"the device at position {owner} had shared something that is no secret: this "
                "slot's sum is lost"
            )
        return secret, sorted(wrong)


def remove_masks(
    total: Vector,
    recovered: Recovered,
    context: SlotContext,
    graph: Graph,
    survivors: Members,
    mask_keys: Mapping[int, PublicKey],
    add_masks: AddMasks,
) -> None:
    """Remove every mask from the sum of masked vectors, in place.

    Args:
        total: Sum of the survivors' masked vectors.
        recovered: The slot's secrets.
        context: What the masks are bound to.
        graph: The neighbourhoods.
        survivors: The devices whose vectors are in the sum.
        mask_keys: The public mask key of every device for the slot, by roster position.
        add_masks: The function that adds masks to the sum.
    """
    added: list[bytes] = []
    subtracted = [context.self_mask_key(seed) for seed in recovered.seeds.values()]
    for dropped, pair in recovered.mask_keys.items():
        near = graph.neighbours(dropped)
        near = near[survivors[near]]
        peers = [mask_keys[survivor] for survivor in near.tolist()]
        for shared in context.pair_secrets(pair, near.tolist(), peers):
            (added if subtracts(shared.peer, dropped) else subtracted).append(shared.key())
    add_masks(total, added, subtracted)


def _distinct(rows: _Rows) -> tuple[_Rows, Positions]:
    """The distinct rows of a matrix, and for each row its index among them."""
    seen: dict[bytes, int] = {}
    which = [seen.setdefault(row.tobytes(), len(seen)) for row in rows]
    firsts = np.array([which.index(kind) for kind in range(len(seen))], dtype=np.int64)
    return rows[firsts], np.array(which, dtype=np.int64)
