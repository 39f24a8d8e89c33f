"""Removes the masks from one slot's sum: collects shares, rebuilds and verifies the secrets.

A rebuilt secret must match its commitment. If one does not, there is no sum, unless it can be
found out which shares are wrong (`blame.py`).

Spec: §10.9, §10.10.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from deltafl.secagg import masks, shamir
from deltafl.secagg.errors import Fault, SessionAborted
from deltafl.secagg.graph import Graph, Members, Positions
from deltafl.secagg.masks import SlotContext, recovery_commitment, seed_commitment, subtracts
from deltafl.secagg.messages import ShareKind, UnmaskShares
from deltafl.secagg.primitives import AddMasks
from deltafl.secagg.ring import Vector
from deltafl.secagg.shamir import Limbs


@dataclass(frozen=True, slots=True)
class Promises:
    """What the secrets of a slot must match, by roster position.

    Attributes:
        context: The slot.
        slot: Its index, that of a tolerant slot.
        commitments: To the self-mask seed and the recovery key, 32 bytes each.
    """

    context: SlotContext
    slot: int
    commitments: Mapping[int, tuple[bytes, bytes]]

    def is_seed(self, position: int, secret: bytes) -> bool:
        """Whether a device committed to this self-mask seed."""
        committed = seed_commitment(self.context.session_id, self.slot, position, secret)
        return committed == self.commitments[position][ShareKind.SEED]

    def is_recovery_key(self, position: int, secret: bytes) -> bool:
        """Whether a device committed to this recovery key."""
        committed = recovery_commitment(self.context.session_id, self.slot, position, secret)
        return committed == self.commitments[position][ShareKind.RECOVERY]


@dataclass(frozen=True, slots=True)
class Recovered:
    """The secrets of one slot, each as promised.

    Attributes:
        seeds: Self-mask seeds of the survivors, by roster position.
        recovery: Recovery keys of the devices that dropped out, by roster position.
        opened: What these had deposited, keys of their links by the other end's position.
    """

    seeds: Mapping[int, bytes] = field(repr=False)
    recovery: Mapping[int, bytes] = field(repr=False)
    opened: Mapping[int, Mapping[int, bytes]] = field(repr=False, default_factory=dict)


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
        self.graph = graph
        self.threshold = threshold
        # Indexed by holder and owner. Holding is mutual, so the owner's column is its index among
        # the holder's own holders.
        shape = (graph.num_devices, graph.num_holders)
        self._shares = np.zeros((*shape, shamir.NUM_LIMBS), dtype=np.uint32)
        self._filled = np.zeros(shape, dtype=np.bool_)

    def take(self, holder: int, message: UnmaskShares, linked: Members) -> Fault | None:
        """Store a device's shares.

        Args:
            holder: The device's position.
            message: Its shares.
            linked: The devices with which it has a link, and itself, over the roster.

        Returns:
            A fault if these are not the shares that the device was asked for.
        """
        owners = self.graph.holders_of(holder)
        asked = self.cohort[owners] & linked[owners]
        positions = owners[asked]
        if not np.array_equal(message.positions, positions):
            return Fault.MALFORMED
        wanted = np.where(self.survivors[positions], ShareKind.SEED, ShareKind.RECOVERY)
        if (message.kinds != wanted).any():
            return Fault.MALFORMED
        self._shares[holder, asked] = message.shares
        self._filled[holder] = asked
        return None

    def rebuild(self, promises: Promises, owners: Positions, suspects: Members) -> dict[int, bytes]:
        """The secrets that the first t shares of senders above suspicion give, if as promised.

        Args:
            promises: What they must match.
            owners: Whose secrets.
            suspects: Whose shares to leave out, over the roster.

        Returns:
            Secrets by position. An owner is missing whose secret is not the promised one, or who
            has fewer than t such shares.

        Raises:
            SessionAborted: fewer than t shares came for an owner.
        """
        holders, came = self._holders(owners)
        if (few := came.sum(axis=1) < self.threshold).any():
            first = int(few.argmax())
            raise SessionAborted(
                f"{int(came[first].sum())} shares came for position {int(owners[first])}, and "
                f"the threshold is {self.threshold}: this slot's sum is lost"
            )
        usable = came & ~suspects[holders]
        rank = usable.cumsum(axis=1)
        enough = rank[:, -1] >= self.threshold
        owners, taken = owners[enough], usable & (rank <= self.threshold)
        chosen = holders[enough][taken[enough]].reshape(len(owners), self.threshold)
        # Nearly all owners of a complete graph have the same holders.
        kinds: dict[bytes, int] = {}
        which = [kinds.setdefault(row.tobytes(), len(kinds)) for row in chosen]
        distinct = np.frombuffer(b"".join(kinds), dtype=np.int64).reshape(-1, self.threshold)
        weights = shamir.lagrange_at_zero(distinct + 1)[which]
        columns = self.graph.columns_of(owners, chosen)
        shares = (self._shares[at] for at in zip(chosen.T, columns.T, strict=True))
        limbs = shamir.combine(weights, shares)
        rebuilt = zip(owners.tolist(), shamir.from_limbs(limbs), strict=True)
        return {p: secret for p, secret in rebuilt if secret and self.fits(promises, p, secret)}

    def fits(self, promises: Promises, owner: int, secret: bytes) -> bool:
        """Whether a secret is the one that its owner promised."""
        is_promised = promises.is_seed if self.survivors[owner] else promises.is_recovery_key
        return is_promised(owner, secret)

    def arrived(self, owner: int) -> tuple[Positions, Limbs]:
        """The senders of an owner's shares, ascending, and these shares, shape (m, 9)."""
        holders, came = (rows[0] for rows in self._holders(np.array([owner])))
        columns = self.graph.columns_of(np.array([owner]), holders[None, came])[0]
        return holders[came], self._shares[holders[came], columns]

    def answered_for(self, holder: int) -> list[int]:
        """The devices whose shares a device returned, ascending."""
        owners: list[int] = self.graph.holders_of(holder)[self._filled[holder]].tolist()
        return owners

    def recovered(self, secrets: Mapping[int, bytes]) -> Recovered:
        """All secrets of the slot.

        Raises:
            SessionAborted: one is missing, as the shares that came do not give what was promised.
        """
        cohort = np.flatnonzero(self.cohort).tolist()
        for owner in cohort:
            if owner not in secrets:
                what = "seed" if self.survivors[owner] else "recovery key"
                raise SessionAborted(
                    f"the shares of the device at position {owner} do not give the {what} that it "
                    "promised, and nobody can tell which it used: this slot's sum is lost"
                )
        seeds = {p: secrets[p] for p in cohort if self.survivors[p]}
        return Recovered(seeds, {p: secrets[p] for p in cohort if not self.survivors[p]})

    def _holders(self, owners: Positions) -> tuple[Positions, Members]:
        """The holders of each owner's shares, and whose arrived; both (owners, holders)."""
        every = np.arange(self.graph.num_holders)
        holders = self.graph.holders(owners, np.broadcast_to(every, (len(owners), len(every))))
        came: Members = self._filled[holders, self.graph.columns_of(owners, holders)]
        return holders, came


def remove_masks(
    total: Vector,
    seeds: Collection[bytes],
    left: Mapping[int, Mapping[int, bytes]],
    context: SlotContext,
    add_masks: AddMasks,
    *,
    verified: bool,
) -> int:
    """Remove every mask from the sum of masked vectors, in place.

    Args:
        total: Sum of the survivors' masked vectors.
        seeds: Of their self masks.
        left: For each device that dropped out, the keys of its links with them, by position.
        context: What the masks are bound to.
        add_masks: The function that adds masks to the sum.
        verified: Whether the slot is, so that blindings are masked too.

    Returns:
        What to add to the sum of masked blindings; 0 in a slot that is not verified.
    """
    added: list[bytes] = []
    of_blinding = 0
    subtracted = [context.self_mask_key(seed) for seed in seeds]
    if verified:
        of_blinding -= sum(map(context.self_mask_of_blinding, seeds))
    for dropped, of_peers in left.items():
        pairs = context.tolerant(of_peers)
        if verified:  # as the device that is gone would have
            of_blinding += masks.of_blinding(dropped, pairs)
        for pair in pairs:
            (added if subtracts(pair.peer, dropped) else subtracted).append(pair.key())
    add_masks(total, added, subtracted)
    return of_blinding
