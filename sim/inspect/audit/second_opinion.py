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
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    MaskedInput,
    OpenSlot,
    RosterMessage,
    ShareDelivery,
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
        column: Its place among the tolerant slots; −1 of a whole one.
        bound: What its masks are bound to.
        opened: The devices that it was opened with.
        listed: Those that the sum is over, as they were told last.
        vectors: By device.
        shares: By holder.
    """

    index: int
    spec: Mapping[str, Any]
    column: int
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
        columns, specs = count(), [*enumerate(self.params["slots"])]
        self._slots = [_Slot(at, one, -1 if one["whole"] else next(columns)) for at, one in specs]
        number = 1 + 2 * next(columns)
        self._secrets = {peer: _drawn(seed, number) for peer, seed in seeds.items()}
        self._keys: dict[int, AdvertiseKeys] = {}
        self._promised: dict[int, Sequence[bytes]] = {}
        self._halves: dict[tuple[int, int], tuple[bytes, bytes]] = {}  # and their boxes' digests
        self._receipts: dict[int, tuple[Mapping[int, bytes], Evidence]] = {}
        self._tags: dict[int, Mapping[int, bytes]] = {}

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
            case ShareDelivery() as message:
                self._delivered(peer, message)
            case ShareReceipt() as message:
                self._receipts.setdefault(peer, (message.links, seen.place))
            case OpenSlot() as message:
                self._tags.setdefault(peer, message.tags)
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
        survived = slot.opened if slot.column < 0 else slot.listed
        if not len(slot.opened) == len(survived) == len(self.ids):
            return None
        there = [client for client, is_in in zip(self.ids, survived, strict=True) if is_in]
        if not there or not slot.vectors.keys() >= set(there):
            return None
        total = np.zeros(slot.width, np.uint64)
        for client in there:
            total += slot.vector(client)
        unmasked = total if slot.column < 0 else self._unmasked(slot, total, survived)
        return None if unmasked is None else slot.shown(unmasked)

    def inputs(self, index: int) -> Iterator[tuple[int, _Words]]:
        """What devices put into a slot, of some of those whose secrets are known."""
        slot = self._slots[index]
        each = slot.width * (1 + min(self.params["degree"], len(self.ids)))
        if len(slot.opened) != len(self.ids):
            return
        for client in [*slot.vectors][: max(_MOST_WORDS // each, 1)]:
            if client not in self.ids or client not in self._secrets:
                continue
            position, keys = self.ids.index(client), self._agreed(client, slot)
            if keys is None:
                continue
            words = slot.vector(client) - self._shared(slot, position, keys)
            if slot.column >= 0:
                words -= self._self_mask(slot, self._secrets[client][1 + 2 * slot.column])
            yield client, slot.shown(words)

    def told(self) -> Found:
        """What devices have said of links whose halves are known, and is not so."""
        tolerant = [slot for slot in self._slots if slot.column >= 0]
        for client, (said, place) in self._receipts.items():
            if client not in self.ids or client not in self._secrets:
                continue
            own = self.ids.index(client)
            for peer, link in said.items():
                if (secret := self._link(own, peer)) is None:
                    continue
                due = plain.link_tag(secret, own)
                for slot in tolerant:
                    key = plain.link_key(secret, slot.index)
                    recovery = self._secrets[client][2 + 2 * slot.column]
                    due += plain.key_digest(key) + plain.hidden(recovery, own, peer, key)
                if due != link:
                    yield f"device {client} said something else of a link than it has", place
                    break

    def _advertised(self, peer: int, message: AdvertiseKeys, place: Evidence) -> Found:
        self._keys.setdefault(peer, message)
        own, statement = message.credential, self._of_key(peer, message)
        if not _signs(own.identity, own.signature, statement):
            yield f"the signature of device {peer}'s key does not hold", place
        drawn = self._secrets.get(peer)
        if drawn is not None and message.key != plain.public_key(drawn[0]):
            yield f"device {peer} advertised another key than that of its secret", place

    def _of_key(self, peer: int, message: AdvertiseKeys) -> bytes:
        return plain.advertisement_statement(self.params, peer, message.key)

    def _promises(self, peer: int, message: ShareKeys, place: Evidence) -> Found:
        drawn = self._secrets.get(peer)
        if drawn is None or peer not in self.ids:
            return
        position, promised = self.ids.index(peer), list[bytes]()
        for slot in self._slots:
            if slot.column >= 0:
                seed, recovery = drawn[1 + 2 * slot.column :][:2]
                about = self._session, slot.index, position
                promised.append(plain.seed_commitment(*about, seed))
                promised.append(plain.recovery_commitment(*about, recovery))
        if promised != list(message.commitments):
            yield f"device {peer} promised other secrets than those that it drew", place

    def _delivered(self, peer: int, message: ShareDelivery) -> None:
        """Open the boxes of a device whose secret is known."""
        if peer not in self.ids or peer not in self._secrets:
            return
        own = self.ids.index(peer)
        for sender, box in message.boxes.items():
            if sender < len(self.ids) and {peer, self.ids[sender]} <= self._keys.keys():
                info = plain.box_info(self._session, self._end(sender), self._end(own))
                content = plain.opened(self._secrets[peer][0], box, info)
                if content is not None:
                    known = content[: plain.HALF], sha256(box).digest()
                    self._halves.setdefault((sender, own), known)

    def _near(self, peer: int, shown: Iterable[int], place: Evidence) -> Found:
        if peer in self.ids and sorted(shown) != self._neighbours(self.ids.index(peer)):
            yield f"device {peer} was shown the keys of others than its neighbours", place

    def _list_signed(self, slot: _Slot, peer: int, signature: bytes, place: Evidence) -> Found:
        keys = self._keys.get(peer)
        if keys is None or not slot.listed:
            return
        about = self._info(slot), slot.listed, keys.key
        statement = plain.survivors_statement(self._session, *about)
        if not _signs(keys.credential.identity, signature, statement):
            yield f"device {peer} did not sign the list of slot {slot.index}", place

    @property
    def _session(self) -> bytes:
        return plain.session_id(self.params, self.ids)

    def _end(self, position: int) -> plain.End:
        keys = self._keys[self.ids[position]]
        return position, bytes(keys.credential.identity), keys.key

    def _link(self, one: int, other: int) -> bytes | None:
        """What two devices derive their link from; None where a half is not known."""
        low, high = sorted((one, other))
        sealed = [self._halves.get(ends) for ends in ((low, high), (high, low))]
        known = [both for both in sealed if both is not None]
        if len(known) < len(sealed):
            return None
        halves, boxes = zip(*known, strict=True)
        ends = self._end(low), self._end(high)
        return plain.link_secret(self._session, ends, halves, boxes)

    def _agreed(self, client: int, slot: _Slot) -> Mapping[int, bytes] | None:
        """The keys of the links that a device masks with in a slot; None if one is not known."""
        own, shown, keys = self.ids.index(client), self._tags.get(client, {}), dict[int, bytes]()
        for peer in self._neighbours(own):
            if not slot.opened[peer] or peer not in shown:
                continue
            if (secret := self._link(own, peer)) is None:
                return None
            if shown[peer] == plain.link_tag(secret, peer):
                keys[peer] = plain.link_key(secret, slot.index)
        return keys

    def _said(self, position: int, peer: int) -> list[tuple[bytes, bytes]]:
        """What a device has said of a link: of each tolerant slot, digest and hidden key."""
        said, _ = self._receipts.get(self.ids[position], ({}, None))
        link, size = said.get(peer, b"")[plain.TAG :], plain.TAG + plain.HALF
        parts = (link[start : start + size] for start in range(0, len(link), size))
        return [(part[: plain.TAG], part[plain.TAG :]) for part in parts]

    def _linked(self, one: int, other: int) -> bool:
        """Whether two devices said the same of the keys of their link."""
        said = self._receipts.get(self.ids[one]), self._receipts.get(self.ids[other])
        is_read = [
            both is not None and peer in both[0]
            for both, peer in zip(said, (other, one), strict=True)
        ]
        digests = (
            [digest for digest, _ in self._said(*ends)] for ends in ((one, other), (other, one))
        )
        return all(is_read) and len({tuple(every) for every in digests}) == 1

    def _deposited(
        self, slot: _Slot, own: int, recovery: bytes, survived: Sequence[bool]
    ) -> Mapping[int, bytes] | None:
        """The keys of a device's links with survivors; None if one is not as it said."""
        keys = dict[int, bytes]()
        for peer in self._neighbours(own):
            if survived[peer] and self._linked(own, peer):
                digest, hidden = self._said(own, peer)[slot.column]
                keys[peer] = plain.hidden(recovery, own, peer, hidden)
                if plain.key_digest(keys[peer]) != digest:
                    return None
        return keys

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

    def _shared(self, slot: _Slot, position: int, keys: Mapping[int, bytes]) -> _Words:
        """The masks that a device shares with some others, as it adds them to its vector."""
        total, info = np.zeros(slot.width, np.uint64), self._info(slot)
        whole = plain.whole_slot_info(info, slot.opened)
        bound = whole if slot.column < 0 else plain.tolerant_slot_info(info)
        for peer, key in keys.items():
            mask = slot.mask(plain.expand(key, bound))
            total += mask if position < peer else -mask
        return total

    def _unmasked(self, slot: _Slot, total: _Words, survived: Sequence[bool]) -> _Words | None:
        """A sum without the self masks of survivors, and the masks that they share with others."""
        for position in np.flatnonzero(slot.opened).tolist():
            is_lost = not survived[position]
            if (secret := self._rebuilt(slot, position, is_lost=is_lost)) is None:
                return None
            if not is_lost:
                total = total - self._self_mask(slot, secret)
            elif (keys := self._deposited(slot, position, secret, survived)) is not None:
                total = total + self._shared(slot, position, keys)
            else:
                return None
        return total

    def _rebuilt(self, slot: _Slot, owner: int, *, is_lost: bool) -> bytes | None:
        """A device's seed, or its recovery key if it was lost, from t shares that fit together."""
        client, kind = self.ids[owner], ShareKind.RECOVERY if is_lost else ShareKind.SEED
        promised, rows = self._promised.get(client), list[tuple[int, list[int]]]()
        for holder, message in slot.shares.items():
            position = self.ids.index(holder) if holder in self.ids else -1
            if position == owner or (position >= 0 and self._linked(position, owner)):
                at = (message.positions == owner) & (message.kinds == kind)
                rows += [(position + 1, row) for row in message.shares[at].tolist()]
        rows.sort()
        threshold = self.params["threshold"]
        for start in range(len(rows) - threshold + 1):  # a false share is in some of them
            points, limbs = zip(*rows[start : start + threshold], strict=True)
            at_zero = [plain.value_at(points, values, 0) for values in zip(*limbs, strict=True)]
            secret = plain.from_limbs(at_zero)
            if secret is None or promised is None:
                continue
            commit = plain.recovery_commitment if is_lost else plain.seed_commitment
            said = commit(self._session, slot.index, owner, secret)
            if said == promised[2 * slot.column + is_lost]:
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

    The secret of its key, and for each tolerant slot the seed of its self mask and its recovery
    key.
    """
    source = plain.stream(plain.stream(seed, 32), 32 * number)
    return [source[i : i + 32] for i in range(0, len(source), 32)]


def _signs(identity: bytes, signature: bytes, statement: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes(identity)).verify(bytes(signature), statement)
    except (InvalidSignature, ValueError):
        return False
    return True
