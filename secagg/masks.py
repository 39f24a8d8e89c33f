"""The key schedule of the masks: from secrets to ChaCha20 keys, bound to everything public.

A mask key is bound to the session (parameters and roster), the slot with its label, ring and
length, and the caller's `binding`: the digest of every public value that all devices must agree
on. If devices were shown different values, their masks do not cancel, and the server gets noise.
This defeats the model inconsistency attack (Pasquini, Francati, Ateniese, CCS 2022) and its
counterpart, in which the server shows each device a different threshold.

Spec: §5.2, §5.3, §5.4, §14.5.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from deltafl.secagg import keys, labels
from deltafl.secagg.keys import KeyPair
from deltafl.secagg.params import SessionId, SessionParams


@dataclass(frozen=True, slots=True)
class SlotContext:
    """Everything public that the masks of one slot are bound to.

    Attributes:
        session_id: 32 bytes.
        info: The slot and the caller's binding, packed.
    """

    session_id: SessionId
    info: bytes
    _pairwise: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pairwise", labels.pack(labels.PAIRWISE_MASK, self.info))

    @classmethod
    def of(
        cls, params: SessionParams, session_id: SessionId, slot: int, binding: bytes
    ) -> "SlotContext":
        """The context of a slot under a caller's binding (any length). Spec: §5.2."""
        return cls(session_id, labels.pack(slot, params.slots[slot].canonical(), binding))

    def self_mask_key(self, seed: bytes) -> bytes:
        """The ChaCha20 key of a device's self mask, from its 32-byte seed of the slot.

        Spec: §5.3.
        """
        info = labels.pack(labels.SELF_MASK, self.info)
        return keys.derive(seed, salt=self.session_id, info=info)

    def pairwise_mask_keys(self, own: KeyPair, peers: Sequence[bytes]) -> list[bytes]:
        """The ChaCha20 keys of the masks that a device shares with its peers; the same for both.

        Spec: §5.4.

        Args:
            own: The device's key pair for the slot.
            peers: The others' public keys for the slot, none of low order.
        """
        # All agreements first, then all derivations: if they alternated, the code of each would
        # evict the other's from the processor's caches, which costs a third more.
        secrets = [own.agree(peer) for peer in peers]
        return [
            keys.derive(
                secret,
                salt=self.session_id,
                info=self._pairwise + b"".join(sorted((own.public, peer))),
            )
            for secret, peer in zip(secrets, peers, strict=True)
        ]


def seed_commitment(session_id: SessionId, slot: int, position: int, seed: bytes) -> bytes:
    """A device's commitment to its self-mask seed of a slot; 32 bytes. Spec: §5.6."""
    return labels.digest(labels.SEED_COMMITMENT, session_id, slot, position, seed)


def subtracts(own_position: int, peer_position: int) -> bool:
    """Whether a device subtracts the mask it shares with a peer; the peer adds it. Spec: §5.4."""
    return own_position > peer_position
