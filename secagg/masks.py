"""The key schedule of the masks: from secrets to ChaCha20 keys, bound to everything public.

A mask key is bound to the session (parameters and roster), the slot with its label, ring and
length, and the caller's `binding`: the digest of every public value that all devices must agree
on. If devices were shown different values, their masks do not cancel, and the server gets noise.
This defeats the model inconsistency attack (Pasquini, Francati, Ateniese, CCS 2022) and its
counterpart, in which the server shows each device a different threshold.

Two devices share a mask through the key that their link gives for the slot. In a whole slot, it is
bound to the slot's members as well.

Spec: §5.2, §5.3, §5.4, §5.7, §14.5, §14.10.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from deltafl.secagg import keys, labels, prg
from deltafl.secagg.errors import UsageError
from deltafl.secagg.graph import Members
from deltafl.secagg.labels import Label
from deltafl.secagg.params import SessionId, SessionParams
from deltafl.secagg.pedersen import draw_blinding


class PairSecret(NamedTuple):
    """What a device and one peer derive the key of their mask from; both ends have the same.

    Attributes:
        peer: The peer's position.
        secret: The key of their link for the slot; 32 bytes.
        info: Everything that the mask is bound to.
    """

    peer: int
    secret: bytes
    info: bytes

    def __repr__(self) -> str:
        return f"PairSecret(peer={self.peer})"

    def key(self) -> bytes:
        """The ChaCha20 key of the mask."""
        return keys.expand(self.secret, self.info)

    def of_blinding(self) -> int:
        """The mask of a blinding, in [0, ORDER). Spec: §5.8."""
        return _of_blinding(self.secret, self.info)


@dataclass(frozen=True, slots=True)
class SlotContext:
    """Everything public that the masks of one slot are bound to.

    Attributes:
        session_id: 32 bytes.
        info: The slot and the caller's binding, packed.
    """

    session_id: SessionId
    info: bytes

    @classmethod
    def of(
        cls, params: SessionParams, session_id: SessionId, slot: int, binding: bytes
    ) -> "SlotContext":
        """The context of a slot under a caller's binding (any length). Spec: §5.2.

        Raises:
            UsageError: the binding is not bytes.
        """
        if not isinstance(binding, bytes):
            raise UsageError(f"a binding is bytes, not a {type(binding).__name__}")
        return cls(session_id, labels.pack(slot, params.slots[slot].canonical, binding))

    def self_mask_key(self, seed: bytes) -> bytes:
        """The ChaCha20 key of a device's self mask, from its 32-byte seed of the slot.

        Spec: §5.3.
        """
        info = labels.pack(Label.SELF_MASK, self.info)
        return keys.derive(seed, salt=self.session_id, info=info)

    def self_mask_of_blinding(self, seed: bytes) -> int:
        """What a device's self mask adds to its blinding, in [0, ORDER). Spec: §5.8."""
        secret = keys.extract(seed, salt=self.session_id)
        return _of_blinding(secret, labels.pack(Label.SELF_MASK, self.info))

    def tolerant(self, of_peers: Mapping[int, bytes]) -> list[PairSecret]:
        """What the masks of a tolerant slot come from.

        Spec: §5.4.

        Args:
            of_peers: The keys of a device's links for the slot, by the peer's position.
        """
        info = labels.pack(Label.PAIRWISE_MASK, self.info)
        return [PairSecret(peer, key, info) for peer, key in of_peers.items()]

    def whole(self, of_peers: Mapping[int, bytes], members: Members) -> list[PairSecret]:
        """What the masks of a whole slot come from, among the devices that it is summed over.

        Spec: §5.7.

        Args:
            of_peers: As for `tolerant`.
            members: The devices, over the roster.
        """
        bits = np.packbits(members, bitorder="little").tobytes()
        info = labels.pack(Label.WHOLE_MASK, self.info, len(members), bits)
        return [PairSecret(peer, key, info) for peer, key in of_peers.items()]


def seed_commitment(session_id: SessionId, slot: int, position: int, seed: bytes) -> bytes:
    """A device's commitment to its self-mask seed of a slot; 32 bytes. Spec: §5.6."""
    return labels.digest(Label.SEED_COMMITMENT, session_id, slot, position, seed)


def recovery_commitment(session_id: SessionId, slot: int, position: int, key: bytes) -> bytes:
    """A device's commitment to its recovery key of a slot; 32 bytes. Spec: §5.6."""
    return labels.digest(Label.RECOVERY_COMMITMENT, session_id, slot, position, key)


def subtracts(own_position: int, peer_position: int) -> bool:
    """Whether a device subtracts the mask it shares with a peer; the peer adds it. Spec: §5.4."""
    return own_position > peer_position


def of_blinding(position: int, pairs: Iterable[PairSecret]) -> int:
    """The sum of the masks that a device's pairs add to its blinding; any integer. Spec: §5.8."""
    return sum(
        -pair.of_blinding() if subtracts(position, pair.peer) else pair.of_blinding()
        for pair in pairs
    )


def _of_blinding(secret: bytes, info: bytes) -> int:
    # A key of its own: a short vector's mask is its key itself, and would give this one away.
    key = keys.expand(secret, labels.pack(Label.BLINDING_MASK) + info)
    return draw_blinding(partial(prg.keystream, key))
