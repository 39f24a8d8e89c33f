"""Removes the masks from one slot's sum: collects shares, rebuilds and verifies the secrets.

A rebuilt seed must match its commitment, and a rebuilt key its advertised public key. If it does
not, the shares are decoded as a Reed–Solomon code word, which corrects up to ⌊(m − t)/2⌋ wrong
shares of m. If all m > t shares fit together and still do not give what was promised, the promise
was false, and the device that dealt them is at fault. Nobody can tell which of the two secrets it
used in its mask, so the slot then has no sum (`PromiseBroken`).

A wrong share is a dispute between the device that dealt it and the one that returned it; nobody
else can tell which of the two is lying. So a single dispute drops neither device. A device in
dispute with most of those whose shares it holds is at fault (compare `survival.judge`).

Spec: §10.9, §10.10.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from deltafl.secagg import keys, masks, shamir
from deltafl.secagg.errors import Fault, SessionAborted
from deltafl.secagg.graph import Graph, Members, Positions
from deltafl.secagg.keys import KeyPair, PublicKey
from deltafl.secagg.masks import SlotContext, seed_commitment, subtracts
from deltafl.secagg.messages import ShareKind, UnmaskShares
from deltafl.secagg.primitives import AddMasks
from deltafl.secagg.ring import Vector
from deltafl.secagg.shamir import Limbs, locate

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
class Blame:
    """Who lied about the secrets of one slot, by roster position.

    Attributes:
        faults: Devices that lied.
        disputes: Owner and holder of every wrong share of a suspect that was found.
    """

    faults: Mapping[int, Fault]
    disputes: frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Recovered:
    """The secrets of one slot, each as promised.

    Attributes:
        seeds: Self-mask seeds of the survivors, by roster position.
        mask_keys: Mask key pairs of the devices that dropped out, by roster position.
        blame: Who lied.
    """

    seeds: Mapping[int, bytes] = field(repr=False)
    mask_keys: Mapping[int, KeyPair] = field(repr=False)
    blame: Blame


class PromiseBroken(SessionAborted):
    """A device shared another secret than the one that it promised; the slot has no sum.

    Attributes:
        blame: Who lied.
    """

    def __init__(self, message: str, blame: Blame) -> None:
        super().__init__(message)
        self.blame = blame


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
            PromiseBroken: a secret is not the one that was promised.
            SessionAborted: a secret cannot be rebuilt from the shares that arrived.
        """
        secrets: dict[int, bytes] = {}  # as dealt
        broken: list[int] = []
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
                    broken.append(owner)
            waiting = np.array(failing[1:], dtype=np.int64)
        blame = self._blame(secrets, broken, suspects)
        if broken:
            raise PromiseBroken(self._what_was_broken(broken[0]), blame)
        return Recovered(
            {p: secret for p, secret in secrets.items() if self.survivors[p]},
            {p: keys.key_pair(secret) for p, secret in secrets.items() if not self.survivors[p]},
            blame,
        )

    def _blame(
        self, secrets: Mapping[int, bytes], broken: Sequence[int], suspects: Members
    ) -> Blame:
        """Who lied: the dealers of broken promises, and the suspects with mostly wrong shares."""
        faults = dict.fromkeys(broken, Fault.BAD_COMMITMENT)
        disputes = set[tuple[int, int]]()
        if not suspects.any():
            return Blame(faults, frozenset())
        judged = self._judge(secrets, suspects)
        for suspect in np.flatnonzero(suspects).tolist():
            owners = self._answered_for(suspect)
            wrong_for = [p for p in owners if suspect in judged.get(p, ())]
            disputes |= {(owner, suspect) for owner in wrong_for}
            if 2 * len(wrong_for) > len(owners):
                faults[suspect] = Fault.BAD_SHARE
        return Blame(faults, frozenset(disputes))

    def _is_promised(self, promises: Promises, owner: int, secret: bytes) -> bool:
        if self.survivors[owner]:
            return promises.is_seed(owner, secret)
        return promises.is_key(owner, secret)

    def _what_was_broken(self, owner: int) -> str:
        if self.survivors[owner]:
            # It masked with one of the two seeds, or with a third.
            return (
                f"the device at position {owner} had shared another seed than the one it "
                "committed to, and nobody can tell which it used: this slot's sum is lost"
            )
        return (
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
        limbs = self._interpolate(owners, chosen)
        for owner, secret, sure in zip(
            owners.tolist(), shamir.from_limbs(limbs), enough.tolist(), strict=True
        ):
            yield owner, secret if sure else None

    def _interpolate(self, owners: Positions, chosen: Positions) -> Limbs:
        """The limbs that each owner's chosen holders' shares give."""
        if not self._graph.is_complete:
            weights = shamir.lagrange_at_zero(chosen + 1)
            shares = self._shares[chosen, self._graph.columns_of(owners, chosen)]
            return shamir.combine(weights, shares)
        # Nearly all owners have the same chosen holders.
        kinds, which = _distinct(chosen)
        values = np.empty((len(owners), shamir.NUM_LIMBS), dtype=np.uint32)
        for index, weights in enumerate(shamir.lagrange_at_zero(kinds + 1)):
            alike = which == index
            rows = (self._shares[holder, owners[alike]] for holder in kinds[index])
            values[alike] = shamir.combine_alike(weights, rows)
        return values

    def _answered_for(self, holder: int) -> list[int]:
        owners: list[int] = self._graph.holders_of(holder)[self._filled[holder]].tolist()
        return owners

    def _judge(self, secrets: Mapping[int, bytes], suspects: Members) -> dict[int, frozenset[int]]:
        """For each device whose shares can be judged, the holders who returned wrong ones.

        Shares are compared with what the first t of non-suspects give. If these t are wrong
        themselves, somebody else would be blamed; so decoding finds out who is wrong among them,
        and they become suspects. It is given up when it fails, as it may fail for every device.
        """
        judged: dict[int, frozenset[int]] = {}
        waiting = np.array(sorted(secrets))
        while len(waiting):
            chosen, enough = self._choose(waiting, suspects)
            unclear = []
            for owner, wrong in self._compare(waiting[enough], chosen[enough], secrets):
                if wrong is None:
                    unclear.append(owner)
                else:
                    judged[owner] = wrong
            found = self._locate(unclear[0], secrets[unclear[0]]) if unclear else []
            if suspects[found].all():  # nothing new, or nobody can tell
                break
            suspects[found] = True
            waiting = np.array(unclear)
        return judged

    def _compare(
        self, owners: Positions, chosen: Positions, secrets: Mapping[int, bytes]
    ) -> Iterator[tuple[int, frozenset[int] | None]]:
        """Each owner with the holders whose shares differ from what the chosen holders' give.

        None if that is not sure to be what was dealt. It is sure if it gives the secret and at most
        ⌊(m − t + 1)/2⌋ of m shares differ: with the secret there are m + 1 values, so two
        polynomials that give it differ in more than twice as many shares.
        """
        holders, came = self._holders(owners)
        most = (came.sum(axis=1) + 1 - self._threshold) // 2
        kinds, which = _distinct(np.concatenate([holders, chosen], axis=1))
        for index, kind in enumerate(kinds):
            alike = np.flatnonzero(which == index)
            base = kind[holders.shape[1] :]
            others = np.setdiff1d(kind, base)
            points = np.concatenate([[0], others + 1])
            weights = shamir.lagrange_at(base + 1, points)
            given = self._given(owners[alike], base)
            values = shamir.multiply(weights, given.reshape(len(base), -1))
            right = values.reshape(len(points), *given.shape[1:])
            arrived = came[alike][:, np.isin(holders[alike[0]], others)].T
            differs = (self._given(owners[alike], others) != right[1:]) & arrived[:, :, None]
            wrong = differs.any(axis=2)
            sure = (differs.sum(axis=0) <= most[alike, None]).all(axis=1)
            dealt = shamir.to_limbs([secrets[owner] for owner in owners[alike].tolist()])
            sure &= (right[0] == dealt).all(axis=1)
            for column, owner in enumerate(owners[alike].tolist()):
                found = frozenset(others[wrong[:, column]].tolist())
                yield owner, found if sure[column] else None

    def _given(self, owners: Positions, holders: Positions) -> Limbs:
        """What some holders of all of the owners returned, shape (holders, owners, 9)."""
        each = np.broadcast_to(holders, (len(owners), len(holders)))
        shares: Limbs = self._shares[holders[:, None], self._graph.columns_of(owners, each).T]
        return shares

    def _locate(self, owner: int, secret: bytes) -> list[int]:
        """The holders whose shares do not fit the secret of an owner; none if nobody can tell."""
        holders, shares = self._arrived(owner)
        values = np.concatenate([shamir.to_limbs([secret]), shares])
        wrong = locate(np.concatenate([[0], holders + 1]), values, self._threshold)
        if wrong is None or wrong[0].any():
            return []
        found: list[int] = holders[wrong[1:].any(axis=1)].tolist()
        return found

    def _decode(self, owner: int) -> tuple[bytes, list[int]]:
        """The secret that most shares of an owner agree on, and the holders of the others."""
        holders, shares = self._arrived(owner)
        # Any t values fit a polynomial, so it takes at least one more to prove anything.
        if len(holders) <= self._threshold:
            raise self._at_odds(owner)
        wrong = locate(holders + 1, shares, self._threshold)
        if wrong is None:
            raise self._at_odds(owner)
        limbs = np.empty((1, shamir.NUM_LIMBS), dtype=np.uint32)
        for limb in range(shamir.NUM_LIMBS):
            right = np.flatnonzero(~wrong[:, limb])[: self._threshold]
            weights = shamir.lagrange_at_zero(holders[None, right] + 1)
            limbs[:, limb] = shamir.combine(weights, shares[None, right])[:, limb]
        secret = shamir.from_limbs(limbs)[0]
        if secret is None:
            raise SessionAborted(
                f"the device at position {owner} had shared something that is no secret: this "
                "slot's sum is lost"
            )
        return secret, holders[wrong.any(axis=1)].tolist()

    def _arrived(self, owner: int) -> tuple[Positions, Limbs]:
        """The holders of an owner whose shares arrived, and these shares, shape (m, 9)."""
        owners = np.array([owner])
        holders, came = self._holders(owners)
        arrived = holders[0, came[0]]
        return arrived, self._given(owners, arrived)[:, 0]


def remove_masks(
    total: Vector,
    recovered: Recovered,
    context: SlotContext,
    graph: Graph,
    survivors: Members,
    mask_keys: Mapping[int, PublicKey],
    add_masks: AddMasks,
    *,
    verified: bool,
) -> int:
    """Remove every mask from the sum of masked vectors, in place.

    Args:
        total: Sum of the survivors' masked vectors.
        recovered: The slot's secrets.
        context: What the masks are bound to.
        graph: The neighbourhoods.
        survivors: The devices whose vectors are in the sum.
        mask_keys: The public mask key of every device for the slot, by roster position.
        add_masks: The function that adds masks to the sum.
        verified: Whether the slot is, so that blindings are masked too.

    Returns:
        What to add to the sum of masked blindings; 0 in a slot that is not verified.
    """
    added: list[bytes] = []
    seeds, of_blinding = recovered.seeds.values(), 0
    subtracted = [context.self_mask_key(seed) for seed in seeds]
    if verified:
        of_blinding -= sum(map(context.self_mask_of_blinding, seeds))
    for dropped, pair in recovered.mask_keys.items():
        near = graph.neighbours(dropped)
        near = near[survivors[near]]
        peers = [mask_keys[survivor] for survivor in near.tolist()]
        shared_masks = context.pair_secrets(pair, near.tolist(), peers)
        if verified:  # as the device that is gone would have
            of_blinding += masks.of_blinding(dropped, shared_masks)
        for shared in shared_masks:
            (added if subtracts(shared.peer, dropped) else subtracted).append(shared.key())
    add_masks(total, added, subtracted)
    return of_blinding


def _distinct(rows: _Rows) -> tuple[_Rows, Positions]:
    """The distinct rows of a matrix, and for each row its index among them."""
    seen: dict[bytes, int] = {}
    which = [seen.setdefault(row.tobytes(), len(seen)) for row in rows]
    firsts = np.array([which.index(kind) for kind in range(len(seen))], dtype=np.int64)
    return rows[firsts], np.array(which, dtype=np.int64)
