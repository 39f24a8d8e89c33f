"""A session computed a second time, in plain Python: sums, and what sums are made of.

It takes what devices sent, and what is public, and computes by `plain` alone what follows. It says
nothing of a sum that it cannot compute: of a round that broke off, or whose shares do not fit.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any, Final

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

_BLINDING_LIMBS: Final = 16
_MOST_WORDS: Final = 1 << 22  # of masks, for the vectors of a slot that are looked at one by one

Found = Iterator[tuple[str, Evidence]]
"""What differs, one sentence without the full stop, and where."""


@dataclass(slots=True, eq=False)
class Secrets:
    """What a device of a simulation drew for a session (section 9.12).

    Attributes:
        sealing: The secret of its sealing key.
        masks: Those of its mask keys, in the order of the tolerant slots.
        seeds: Those of its self masks, likewise.
    """

    sealing: bytes
    masks: Sequence[bytes]
    seeds: Sequence[bytes]

    @classmethod
    def drawn(cls, seed: bytes, tolerant: int) -> "Secrets":
        """The secrets that follow from a recorded seed of 32 bytes."""
        source = plain.stream(plain.stream(seed, 32), 32 * (1 + 2 * tolerant))
        first, *rest = (source[i : i + 32] for i in range(0, len(source), 32))
        return cls(first, rest[:tolerant], rest[tolerant:])


@dataclass(slots=True, eq=False)
class Opinion:
    """What passed in a session, as far as sums follow from it.

    Attributes:
        params: Its parameters, as `plain` takes them.
        ids: The roster that was sent first.
        secrets: What its devices drew, as far as it is known.
    """

    params: Mapping[str, Any]
    ids: Sequence[int] = ()
    secrets: Mapping[int, Secrets] = field(default_factory=dict)
    _keys: dict[int, AdvertiseKeys] = field(default_factory=dict)
    _promised: dict[int, Sequence[bytes]] = field(default_factory=dict)
    _refused: dict[int, Sequence[int]] = field(default_factory=dict)
    _bound: dict[int, bytes] = field(default_factory=dict)
    _members: dict[int, list[bool]] = field(default_factory=dict)
    _listed: dict[int, list[bool]] = field(default_factory=dict)
    _vectors: dict[int, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    _shares: dict[int, dict[int, UnmaskShares]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def of(cls, params: SessionParams) -> "Opinion":
        """An opinion on a session of which nothing has passed."""
        of_slots = [_fields_of(slot) for slot in params.slots]
        given = {"graph_seed": params.graph_seed.hex(), "context": params.context.hex()}
        return cls(_fields_of(params) | given | {"slots": of_slots})

    @property
    def tolerant(self) -> list[int]:
        """The slots that have keys and seeds."""
        return [index for index, slot in enumerate(self.params["slots"]) if not slot["whole"]]

    def take(self, seen: Seen) -> Found:
        """Take a message, in its order; what is wrong with it."""
        peer, envelope = seen.record.peer, seen.content.envelope
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
                if isinstance(envelope, Ask):
                    self._members.setdefault(message.slot, message.members.tolist())
                    self._bound.setdefault(message.slot, self._binding(envelope))
            case MaskedInput() as message:
                self._vectors[message.slot].setdefault(peer, message.packed)
            case ConsistencyCheck() as message:
                self._listed.setdefault(message.slot, message.survivors.tolist())
            case ConsistencySignature() as message:
                yield from self._list_signed(peer, message, seen.place)
            case UnmaskRequest() as message:
                self._listed[message.slot] = message.survivors.tolist()
            case UnmaskShares() as message:
                self._shares[message.slot].setdefault(peer, message)

    def total(self, slot: int) -> list[int] | None:
        """The sum of a slot, without its blinding; None where it does not follow."""
        spec, opened = self.params["slots"][slot], self._members.get(slot)
        survived = opened if spec["whole"] else self._listed.get(slot)
        if opened is None or survived is None or not self._can_unmask:
            return None
        if not len(opened) == len(survived) == len(self.ids) or not any(survived):
            return None
        vectors, total = self._vectors.get(slot, {}), list[int]()
        for client, there in zip(self.ids, survived, strict=True):
            if there and client not in vectors:
                return None
            if there:
                words = self._unpacked(slot, vectors[client])
                total = _added(total, words, 1) if total else words
        unmasked = total if spec["whole"] else self._unmasked(slot, total, opened, survived)
        if not unmasked:
            return None
        return [word % 2 ** spec["ring_bits"] for word in unmasked[: spec["length"]]]

    def inputs(self, slot: int) -> Iterator[tuple[int, list[int]]]:
        """What devices put into a slot, of some of those whose secrets are known."""
        opened, spec = self._members.get(slot), self.params["slots"][slot]
        each = self._width(slot) * (1 + min(self.params["degree"], len(self.ids)))
        vectors = self._vectors.get(slot, {}).items()
        for client, packed in list(vectors)[: max(_MOST_WORDS // each, 1)]:
            if opened is None or len(opened) != len(self.ids) or not self._can_unmask:
                return
            if client not in self.ids or client not in self.secrets:
                continue
            position, words = self.ids.index(client), self._unpacked(slot, packed)
            if not spec["whole"]:
                seed = self.secrets[client].seeds[self.tolerant.index(slot)]
                words = _added(words, self._self_mask(slot, seed), -1)
            for peer in self._neighbours(position):
                if opened[peer]:
                    mask = self._pair_mask(slot, self.secrets[client], client, self.ids[peer])
                    words = _added(words, mask, 1 if position > peer else -1)
            yield client, [word % 2 ** spec["ring_bits"] for word in words[: spec["length"]]]

    def _advertised(self, peer: int, message: AdvertiseKeys, place: Evidence) -> Found:
        self._keys.setdefault(peer, message)
        if (own := message.credential) is not None:
            statement = plain.advertisement_statement(
                self.params, peer, message.sealing_key, message.mask_keys
            )
            if not _signs(own.identity, own.signature, statement):
                yield f"the signature of device {peer}'s keys does not hold", place
        if (drawn := self.secrets.get(peer)) is not None:
            public = [plain.public_key(secret) for secret in (drawn.sealing, *drawn.masks)]
            if public != [message.sealing_key, *message.mask_keys]:
                yield f"device {peer} advertised other keys than those of its secrets", place

    def _promises(self, peer: int, message: ShareKeys, place: Evidence) -> Found:
        if (drawn := self.secrets.get(peer)) is None or peer not in self.ids:
            return
        position = self.ids.index(peer)
        promised = [
            plain.seed_commitment(self._session, slot, position, seed)
            for slot, seed in zip(self.tolerant, drawn.seeds, strict=True)
        ]
        if promised != list(message.commitments):
            yield f"device {peer} promised other seeds than those that it drew", place

    def _near(self, peer: int, shown: Iterable[int], place: Evidence) -> Found:
        if peer in self.ids and sorted(shown) != self._neighbours(self.ids.index(peer)):
            yield f"device {peer} was shown the keys of others than its neighbours", place

    def _list_signed(self, peer: int, message: ConsistencySignature, place: Evidence) -> Found:
        keys, listed = self._keys.get(peer), self._listed.get(message.slot)
        if keys is None or keys.credential is None or listed is None:
            return
        own = keys.sealing_key
        if self.params["slots"][message.slot]["whole"]:
            statement = plain.members_statement(self._session, message.slot, listed, own)
        else:
            info = self._info(message.slot)
            statement = plain.survivors_statement(self._session, info, listed, own)
        if not _signs(keys.credential.identity, message.signature, statement):
            yield f"device {peer} did not sign the list of slot {message.slot}", place

    @property
    def _session(self) -> bytes:
        return plain.session_id(self.params, self.ids)

    @property
    def _can_unmask(self) -> bool:
        """Whether every device has keys that others can agree on masks with."""
        advertised = [self._keys.get(client) for client in self.ids]
        return all(
            one is not None and not any(map(is_low_order, (one.sealing_key, *one.mask_keys)))
            for one in advertised
        )

    def _binding(self, asked: Ask) -> bytes:
        question = asked.question
        if isinstance(question, Query):
            what, shown = "Query", plain.query_bytes(question.method.encode(), question.pivots)
        else:
            numbers = question.eta_half_ticks, question.half_width_half_ticks
            what, shown = "Threshold", plain.threshold_bytes(*numbers)
        return plain.binding(bytes.fromhex(self.params["context"]), what, shown)

    def _info(self, slot: int) -> bytes:
        return plain.slot_info(self.params, slot, self._bound.get(slot, b""))

    def _width(self, slot: int) -> int:
        spec = self.params["slots"][slot]
        return int(spec["length"]) + _BLINDING_LIMBS * int(spec["verified"])

    def _unpacked(self, slot: int, packed: bytes) -> list[int]:
        return plain.unpacked(packed, self._width(slot), self.params["slots"][slot]["ring_bits"])

    def _neighbours(self, position: int) -> list[int]:
        seed = bytes.fromhex(self.params["graph_seed"])
        return plain.neighbours(len(self.ids), self.params["degree"], seed, position)

    def _mask(self, slot: int, key: bytes) -> list[int]:
        return plain.mask(key, self._width(slot), self.params["slots"][slot]["ring_bits"])

    def _self_mask(self, slot: int, seed: bytes) -> list[int]:
        return self._mask(slot, plain.self_mask_key(self._session, self._info(slot), seed))

    def _pair_mask(self, slot: int, secrets: Secrets, client: int, peer: int) -> list[int]:
        """The mask that two devices share, from the secrets of one."""
        session, info = self._session, self._info(slot)
        if self.params["slots"][slot]["whole"]:
            own, theirs = self._keys[client].sealing_key, self._keys[peer].sealing_key
            members = self._members[slot]
            key = plain.whole_mask_key(session, info, members, secrets.sealing, own, theirs)
        else:
            column = self.tolerant.index(slot)
            own, theirs = (self._keys[one].mask_keys[column] for one in (client, peer))
            key = plain.pairwise_mask_key(session, info, secrets.masks[column], own, theirs)
        return self._mask(slot, key)

    def _unmasked(
        self, slot: int, total: list[int], opened: list[bool], survived: list[bool]
    ) -> list[int] | None:
        """A sum without the self masks of survivors, and the masks that they share with others."""
        column = self.tolerant.index(slot)
        for position in (p for p, there in enumerate(opened) if there):
            secret = self._rebuilt(slot, column, position, is_lost=not survived[position])
            if secret is None:
                return None
            if survived[position]:
                total = _added(total, self._self_mask(slot, secret), -1)
                continue
            nobody = [b""] * column
            lost = Secrets(b"", [*nobody, secret], ())
            for peer in self._neighbours(position):
                if survived[peer]:
                    mask = self._pair_mask(slot, lost, self.ids[position], self.ids[peer])
                    total = _added(total, mask, 1 if peer > position else -1)
        return total

    def _rebuilt(self, slot: int, column: int, owner: int, *, is_lost: bool) -> bytes | None:
        """A device's seed, or its mask secret if it was lost, from t shares that fit together."""
        client, kind = self.ids[owner], ShareKind.KEY if is_lost else ShareKind.SEED
        rows: list[tuple[int, list[int]]] = []
        for holder, message in self._shares[slot].items():
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
            if secret is None or client not in self._keys or client not in self._promised:
                continue
            if is_lost:
                fits = plain.public_key(secret) == self._keys[client].mask_keys[column]
            else:
                promised = plain.seed_commitment(self._session, slot, owner, secret)
                fits = promised == self._promised[client][column]
            if fits:
                return secret
        return None


def digest_of(total: Sequence[int]) -> bytes:
    """The digest by which a record names a sum, 32 bytes."""
    return sha256(struct.pack(f"<{len(total)}Q", *total)).digest()


def _fields_of(one: SessionParams | SlotSpec) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(one) if field.init}


def _added(total: list[int], words: list[int], sign: int) -> list[int]:
    return [one + sign * word for one, word in zip(total, words, strict=True)]


def _signs(identity: bytes, signature: bytes, statement: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes(identity)).verify(bytes(signature), statement)
    except (InvalidSignature, ValueError):
        return False
    return True
