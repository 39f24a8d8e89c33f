"""The link of two devices: what they derive from the halves that they sealed to each other.

A device seals a half of 32 random bytes to each neighbour, in the box of its shares. Both halves,
both boxes, keys and identities give the link, and the link gives one key for every slot. So a key
is secret from everybody else as soon as one end is honest and the other's box reached it
unchanged. Each end shows the other a tag that only the link gives. The sender of a box is not
authenticated by it; the tag does that, because only the owner of a key could read the other's half.

For a tolerant slot a device *deposits* its keys with the server, each hidden under its recovery
key of the slot. If it drops out, the others give their shares of the recovery key.

Spec: §2.5, §5.4, §5.7, §14.5.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from deltafl.secagg import keys, labels
from deltafl.secagg.identity import IdentityKey
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.labels import Label
from deltafl.secagg.params import SessionId

HALF_SIZE: Final = 32
TAG_SIZE: Final = 16


class End(NamedTuple):
    """One end of a link.

    Attributes:
        position: The device's, in the roster.
        identity: Its identity key.
        key: Its public key of the session.
        half: What it sealed to the other end, 32 bytes.
        box: SHA-256 of the box that this was in.
    """

    position: int
    identity: IdentityKey
    key: PublicKey
    half: bytes
    box: bytes

    def __repr__(self) -> str:
        return f"End(position={self.position})"


@dataclass(frozen=True, slots=True)
class Link:
    """What both ends derive.

    Attributes:
        tags: What the lower end shows the other, and the other the lower one; 16 bytes each.
        keys: One for every slot of the session, 32 bytes each.
    """

    tags: tuple[bytes, bytes]
    keys: tuple[bytes, ...] = field(repr=False)


def info(session_id: SessionId, sender: End, receiver: End) -> bytes:
    """What a box is bound to; of the ends' halves and boxes it needs none. Spec: §2.5."""
    return labels.pack(Label.BOX, session_id, *_described(sender), *_described(receiver))


def link(session_id: SessionId, low: End, high: End, num_slots: int) -> Link:
    """The link of two devices.

    Spec: §5.4.

    Args:
        session_id: 32 bytes.
        low: The end with the lower position.
        high: The other.
        num_slots: The session's slots.
    """
    ends = *_described(low), low.box, *_described(high), high.box
    salt = labels.digest(Label.LINK, session_id, *ends)
    secret = keys.extract(low.half + high.half, salt=salt)
    tags = [
        keys.expand(secret, labels.pack(Label.LINK_TAG, end.position))[:TAG_SIZE]
        for end in (low, high)
    ]
    slots = (keys.expand(secret, labels.pack(Label.LINK_KEY, i)) for i in range(num_slots))
    return Link((tags[0], tags[1]), tuple(slots))


def _described(end: End) -> tuple[int, bytes, bytes]:
    return end.position, end.identity, end.key


def tags_digest(tags: tuple[bytes, bytes]) -> bytes:
    """What both ends say of their tags, so that the server sees that each shows the right one.

    16 bytes. Without it, a device could show a wrong tag to another, which would then mask without
    it, and nobody but that one would know. Spec: §5.9.

    Args:
        tags: Of a link: what the lower end shows, and the other.
    """
    return labels.digest(Label.LINK_TAGS, *tags)[:TAG_SIZE]


def key_digest(key: bytes) -> bytes:
    """What both ends say of a key of their link, so that the server sees that they agree.

    16 bytes: only a second key with a given digest would be of use. Spec: §5.9.
    """
    return labels.digest(Label.KEY_DIGEST, key)[:TAG_SIZE]


def hide(recovery: bytes, own: int, peer: int, key: bytes) -> bytes:
    """A key of a link under a device's recovery key of the slot; the same again gives it back.

    Spec: §5.9.

    Args:
        recovery: 32 bytes, of one device and one slot.
        own: The device's position.
        peer: The other end's.
        key: The key of their link, or what hides it.
    """
    pad = keys.expand(recovery, labels.pack(Label.DEPOSIT, own, peer))
    return (int.from_bytes(key) ^ int.from_bytes(pad)).to_bytes(len(pad))
