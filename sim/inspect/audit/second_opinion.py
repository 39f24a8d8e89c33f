"""A session computed a second time, in plain Python: sums, and what sums are made of.

It takes what devices sent, and what is public, and computes by `plain` alone what follows. It says
nothing of a sum that it cannot compute: of a round that broke off, or whose shares do not fit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from itertools import count
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from deltafl.protocol.messages import Ask
from deltafl.protocol.quantile.search import Query
from deltafl.secagg.keys import is_low_order
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    MaskedInput,
    OpenSlot,
    RosterMessage,
    ShareKeys,
    ShareKind,
    ShareReceipt,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.params import SessionParams, SlotSpec
from deltafl.sim.inspect.audit import plain
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.seen import Seen

_MOST_WORDS: Final = 1 << 22  # of masks, for the vectors of a slot that are looked at one by one

_Words: TypeAlias = npt.NDArray[np.uint64]
"""Numbers modulo 2^64, and so modulo the ring's size too."""

Found = Iterator[tuple[str, Evidence]]
"""What differs, one sentence without the full stop, and where."""


@dataclass(slots=True, eq=False)
class _Slot:
    """What passed of a slot.

    Attributes:
        index: Its number in the session.
        spec: Its parameters, as `plain` takes them.
        key: Which of a device's keys its masks are made with: 0, the sealing key, of a whole slot.
        bound: What its masks are bound to.
        opened: The devices that it was opened with.
        listed: Those that the sum is over, as they were told last.
        vectors: By device.
        shares: By holder.
    """

    index: int
    spec: Mapping[str, Any]
    key: int
    bound: bytes = b""
    opened: Sequence[bool] = ()
    listed: Sequence[bool] = ()
    vectors: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, UnmaskShares] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Words of a vector, without its blinding."""
        return int(self.spec["length"])

    def vector(self, client: int) -> _Words:
        """What a device sent."""
        packed, bits = self.vectors[client], self.spec["ring_bits"]
        return np.array(plain.unpacked(packed, self.width, bits), np.uint64)

    def mask(self, key: bytes) -> _Words:
        """The mask of a key."""
        return np.array(plain.mask(key, self.width, self.spec["ring_bits"]), np.uint64)

    def shown(self, words: _Words) -> _Words:
        """A vector in the ring."""
        return words & np.uint64(2 ** self.spec["ring_bits"] - 1)


class Opinion:
    """What passed in a session, as far as sums follow from it.

    Args:
        params: Its parameters.
        seeds: Of devices of a simulation, 32 bytes each: all that they draw follows from them.

    Attributes:
        params: Its parameters, as `plain` takes them.
        ids: The roster that was sent first.
    """

    def __init__(self, params: SessionParams, seeds: Mapping[int, bytes]) -> None:
        self.params = _as_plain(params)
        self.ids: Sequence[int] = ()
        keys, specs = count(1), [*enumerate(self.params["slots"])]
        self._slots = [_Slot(at, one, 0 if one["whole"] else next(keys)) for at, one in specs]
        number = 1 + 2 * sum(not one["whole"] for _, one in specs)
        self._secrets = {peer: _drawn(seed, number) for peer, seed in seeds.items()}
        self._keys: dict[int, AdvertiseKeys] = {}
        self._promised: dict[int, Sequence[bytes]] = {}
        self._refused: dict[int, Sequence[int]] = {}

    def take(self, seen: Seen) -> Found:
        """Take a message, in its order; what is wrong with it."""
        peer, envelope = seen.record.peer, seen.content.envelope
        slot = self._slots[seen.content.slot or 0]  # of messages that are about none, not used
        match seen.content.message:
            case AdvertiseKeys() as message:
                yield from self._advertised(peer, message, seen.place)
            case ShareKeys() as message:
                self._promised.setdefault(peer, message.commitments)
                yield from self._promises(peer, message, seen.place)
            case RosterMessage() as message:
                self.ids = self.ids or message.roster.tolist()
                yield from self._near(peer, message.keys.keys(), seen.place)
            case ShareReceipt() as message:
                self._refused.setdefault(peer, message.refused)
            case OpenSlot() as message:
                if isinstance(envelope, Ask) and not slot.opened:
                    slot.opened, slot.bound = message.members.tolist(), self._binding(envelope)
            case MaskedInput() as message:
                slot.vectors.setdefault(peer, message.packed)
            case ConsistencyCheck() as message:
                slot.listed = slot.listed or message.survivors.tolist()
            case ConsistencySignature() as message:
                yield from self._list_signed(slot, peer, message.signature, seen.place)
            case UnmaskRequest() as message:
                slot.listed = message.survivors.tolist()
            case UnmaskShares() as message:
                slot.shares.setdefault(peer, message)

    def total(self, index: int) -> _Words | None:
        """The sum of a slot, without its blinding; None where it does not follow."""
        slot = self._slots[index]
        survived = slot.listed if slot.key else slot.opened
        if not len(slot.opened) == len(survived) == len(self.ids) or not self._can_unmask:
            return None
        there = [client for client, is_in in zip(self.ids, survived, strict=True) if is_in]
        if not there or not slot.vectors.keys() >= set(there):
            return None
        total = np.zeros(slot.width, np.uint64)
        for client in there:
            total += slot.vector(client)
        unmasked = self._unmasked(slot, total, survived) if slot.key else total
        return None if unmasked is None else slot.shown(unmasked)

    def inputs(self, index: int) -> Iterator[tuple[int, _Words]]:
        """What devices put into a slot, of some of those whose secrets are known."""
        slot = self._slots[index]
        each = slot.width * (1 + min(self.params["degree"], len(self.ids)))
        if len(slot.opened) != len(self.ids) or not self._can_unmask:
            return
        for client in [*slot.vectors][: max(_MOST_WORDS // each, 1)]:
            if client not in self.ids or client not in self._secrets:
                continue
            own, position = self._secrets[client], self.ids.index(client)
            words = slot.vector(client) - self._shared(slot, own[slot.key], position, slot.opened)
            if slot.key:
                words -= self._self_mask(slot, own[len(own) // 2 + slot.key])
            yield client, slot.shown(words)

    def _advertised(self, peer: int, message: AdvertiseKeys, place: Evidence) -> Found:
        self._keys.setdefault(peer, message)
        public = [message.sealing_key, *message.mask_keys]
        if (own := message.credential) is not None:
            statement = plain.advertisement_statement(self.params, peer, public[0], public[1:])
            if not _signs(own.identity, own.signature, statement):
                yield f"the signature of device {peer}'s keys does not hold", place
        secrets = self._secrets.get(peer, ())[: len(public)]
        if secrets and public != [plain.public_key(secret) for secret in secrets]:
            yield f"device {peer} advertised other keys than those of its secrets", place

    def _promises(self, peer: int, message: ShareKeys, place: Evidence) -> Found:
        drawn = self._secrets.get(peer)
        if drawn is None or peer not in self.ids:
            return
        position, first = self.ids.index(peer), len(drawn) // 2
        promised = [
            plain.seed_commitment(self._session, slot.index, position, drawn[first + slot.key])
            for slot in self._slots
            if slot.key
        ]
        if promised != list(message.commitments):
            yield f"device {peer} promised other seeds than those that it drew", place

    def _near(self, peer: int, shown: Iterable[int], place: Evidence) -> Found:
        if peer in self.ids and sorted(shown) != self._neighbours(self.ids.index(peer)):
            yield f"device {peer} was shown the keys of others than its neighbours", place

    def _list_signed(self, slot: _Slot, peer: int, signature: bytes, place: Evidence) -> Found:
        keys = self._keys.get(peer)
        if keys is None or keys.credential is None or not slot.listed:
            return
        about = slot.listed, keys.sealing_key
        if slot.key:
            statement = plain.survivors_statement(self._session, self._info(slot), *about)
        else:
            statement = plain.members_statement(self._session, slot.index, *about)
        if not _signs(keys.credential.identity, signature, statement):
            yield f"device {peer} did not sign the list of slot {slot.index}", place

    @property
    def _session(self) -> bytes:
        return plain.session_id(self.params, self.ids)

    @property
    def _can_unmask(self) -> bool:
        """Whether every device has keys that others can agree on masks with."""
        return all(
            client in self._keys and not any(map(is_low_order, self._public(client)))
            for client in self.ids
        )

    def _public(self, client: int) -> list[bytes]:
        """A device's keys: that of its boxes, and those of masks."""
        return [self._keys[client].sealing_key, *self._keys[client].mask_keys]

    def _binding(self, asked: Ask) -> bytes:
        question = asked.question
        if isinstance(question, Query):
            what, shown = "Query", plain.query_bytes(question.method.encode(), question.pivots)
        else:
            numbers = question.eta_half_ticks, question.half_width_half_ticks
            what, shown = "Threshold", plain.threshold_bytes(*numbers)
        return plain.binding(bytes.fromhex(self.params["context"]), what, shown)

    def _info(self, slot: _Slot) -> bytes:
        return plain.slot_info(self.params, slot.index, slot.bound)

    def _neighbours(self, position: int) -> list[int]:
        seed = bytes.fromhex(self.params["graph_seed"])
        return plain.neighbours(len(self.ids), self.params["degree"], seed, position)

    def _self_mask(self, slot: _Slot, seed: bytes) -> _Words:
        return slot.mask(plain.self_mask_key(self._session, self._info(slot), seed))

    def _shared(self, slot: _Slot, secret: bytes, position: int, others: Sequence[bool]) -> _Words:
        """The masks that a device shares with some others, as it adds them to its vector."""
        total, session, info = np.zeros(slot.width, np.uint64), self._session, self._info(slot)
        whole = plain.whole_slot_info(info, slot.opened)
        bound = plain.tolerant_slot_info(info) if slot.key else whole
        for peer in self._neighbours(position):
            if others[peer]:
                ends = (self._public(self.ids[one])[slot.key] for one in (position, peer))
                mask = slot.mask(plain.pairwise_mask_key(session, bound, secret, *ends))
                total += mask if position < peer else -mask
        return total

    def _unmasked(self, slot: _Slot, total: _Words, survived: Sequence[bool]) -> _Words | None:
        """A sum without the self masks of survivors, and the masks that they share with others."""
        for position in np.flatnonzero(slot.opened).tolist():
            is_lost = not survived[position]
            if (secret := self._rebuilt(slot, position, is_lost=is_lost)) is None:
                return None
            if is_lost:
                total = total + self._shared(slot, secret, position, survived)
            else:
                total = total - self._self_mask(slot, secret)
        return total

    def _rebuilt(self, slot: _Slot, owner: int, *, is_lost: bool) -> bytes | None:
        """A device's seed, or its mask secret if it was lost, from t shares that fit together."""
        client, kind = self.ids[owner], ShareKind.KEY if is_lost else ShareKind.SEED
        promised, rows = self._promised.get(client), list[tuple[int, list[int]]]()
        for holder, message in slot.shares.items():
            if holder in self.ids and owner not in self._refused.get(holder, ()):
                at = (message.positions == owner) & (message.kinds == kind)
                point = self.ids.index(holder) + 1
                rows += [(point, row) for row in message.shares[at].tolist()]
        rows.sort()
        threshold = self.params["threshold"]
        for start in range(len(rows) - threshold + 1):  # a false share is in some of them
            points, limbs = zip(*rows[start : start + threshold], strict=True)
            at_zero = [plain.value_at(points, values, 0) for values in zip(*limbs, strict=True)]
            secret = plain.from_limbs(at_zero)
            if secret is None or promised is None:
                continue
            if is_lost:
                fits = plain.public_key(secret) == self._public(client)[slot.key]
            else:
                seed = plain.seed_commitment(self._session, slot.index, owner, secret)
                fits = seed == promised[slot.key - 1]
            if fits:
                return secret
        return None


def digest_of(total: _Words) -> bytes:
    """The digest by which a record names a sum, 32 bytes."""
    return sha256(total.astype("<u8").tobytes()).digest()


def _as_plain(one: SessionParams | SlotSpec) -> dict[str, Any]:
    """Parameters, and those of slots, as `plain` takes them."""
    said = {field.name: getattr(one, field.name) for field in fields(one) if field.init}
    slots = [_as_plain(slot) for slot in said.get("slots", ())]
    shown = {name: value.hex() for name, value in said.items() if isinstance(value, bytes)}
    return said | shown | {"slots": slots}


def _drawn(seed: bytes, number: int) -> Sequence[bytes]:
    """What a device of a simulation draws for a session first, by a recorded seed (9.12).

    The secret of its sealing key, those of its mask keys in the order of the tolerant slots, and
    the seeds of its self masks, likewise.
    """
    source = plain.stream(plain.stream(seed, 32), 32 * number)
    return [source[i : i + 32] for i in range(0, len(source), 32)]


def _signs(identity: bytes, signature: bytes, statement: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes(identity)).verify(bytes(signature), statement)
    except (InvalidSignature, ValueError):
        return False
    return True
