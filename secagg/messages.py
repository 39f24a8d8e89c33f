"""The messages of a session, as values. `deltafl.secagg.wire` encodes them as bytes.

Devices are named by their position in the roster, which is sorted by id; sets of devices are
boolean arrays over the roster. Every message carries the session's tag, so that a delayed message
of an earlier session is recognised and ignored.

The server's messages to many devices are each written only when it is read (`Letters`). Deliveries
to a thousand devices of a complete graph take more than a hundred megabytes in total. A server that
sends them one by one needs to hold only one at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg.graph import Members
from deltafl.secagg.identity import IdentityKey
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.params import ClientId, SessionParams
from deltafl.secagg.shamir import Limbs

Roster = npt.NDArray[np.uint32]

SHARES_PER_SLOT: Final = 2


class ShareKind(IntEnum):
    """Which of a peer's two secrets of a slot a share belongs to; a device never reveals both."""

    SEED = 0
    RECOVERY = 1


@dataclass(frozen=True, slots=True)
class SessionOpen:
    """Server: the session's parameters, to everyone invited. Spec: §8.1."""

    params: SessionParams


@dataclass(frozen=True, slots=True)
class Credential:
    """The identity of a device that advertises keys, and the proof.

    Attributes:
        identity: The device's identity key, 32 bytes.
        signature: The device's signature of `signing.advertisement`, 64 bytes.
    """

    identity: IdentityKey
    signature: bytes


@dataclass(frozen=True, slots=True)
class AdvertiseKeys:
    """Device: the key that boxes for it are sealed to, and its credential.

    Spec: §8.7.
    """

    key: PublicKey
    credential: Credential


@dataclass(frozen=True, slots=True, eq=False)
class RosterMessage:
    """Server: the devices that advertised keys, and the keys of the recipient's neighbours.

    Spec: §8.2.

    Attributes:
        roster: Ids of all devices, ascending; uint32.
        keys: The neighbours' advertisements by roster position.
    """

    roster: Roster
    keys: Mapping[int, AdvertiseKeys]


@dataclass(frozen=True, slots=True)
class ShareKeys:
    """Device: a box for each neighbour, and commitments to the secrets that it has shared in them.

    Spec: §8.8.

    Attributes:
        commitments: For each tolerant slot, one to the seed and one to the recovery key; 32 bytes
            each.
        boxes: Half of the link and shares, by the recipient's roster position.
    """

    commitments: tuple[bytes, ...]
    boxes: Mapping[int, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class ShareDelivery:
    """Server: the boxes from the recipient's neighbours, and who is still in the session.

    Spec: §8.3.

    Attributes:
        members: Over the roster.
        boxes: Half of the link and shares, by the sender's roster position.
    """

    members: Members
    boxes: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class ShareReceipt:
    """Device: what it makes of its links.

    Spec: §8.9.

    Attributes:
        links: By the roster position of each neighbour whose box it could read: the tag to show
            it, the digest of both tags, and for each tolerant slot the digest of their key and the
            key, hidden.
    """

    links: Mapping[int, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class OpenSlot:
    """Server: the next sum is to be taken over these devices.

    Spec: §8.4.

    Attributes:
        slot: Index into the session's slots.
        members: Over the roster.
        tags: With the first slot: by roster position, what the recipient's neighbours show it.
    """

    slot: int
    members: Members
    tags: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MaskedInput:
    """Device: its masked vector, bit-packed.

    Spec: §8.10.

    Attributes:
        slot: Index into the session's slots.
        packed: `ring.pack` of the masked vector.
        committed: In a verified slot, the device's commitment (32 bytes) and its signature of it
            (64 bytes), joined; else empty.
        proof: In a slot that has one, the proof that the vector is valid; else empty.
    """

    slot: int
    packed: bytes
    committed: bytes = b""
    proof: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class ConsistencyCheck:
    """Server: the devices whose masked vectors arrived, for each device to sign.

    Spec: §8.5.

    Attributes:
        slot: Index into the session's slots.
        survivors: Over the roster.
    """

    slot: int
    survivors: Members


@dataclass(frozen=True, slots=True)
class ConsistencySignature:
    """Device: its signature of the list of survivors that it was sent.

    Spec: §8.11.

    Attributes:
        slot: Index into the session's slots.
        signature: The device's signature of `signing.survivors`, 64 bytes.
    """

    slot: int
    signature: bytes


@dataclass(frozen=True, slots=True, eq=False)
class UnmaskRequest:
    """Server: the devices whose masked vectors arrived.

    It asks for shares of the survivors' seeds, and of the recovery keys of the slot's others.

    Spec: §8.6.

    Attributes:
        slot: Index into the session's slots.
        survivors: Over the roster.
        signatures: By roster position, the signatures of exactly this list by t or more of the
            recipient and its neighbours.
    """

    slot: int
    survivors: Members
    signatures: Mapping[int, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class UnmaskShares:
    """Device: one share of a secret of each neighbour in the slot, and of itself.

    Spec: §8.12.

    Attributes:
        slot: Index into the session's slots.
        positions: The owner of each secret, ascending; shape (n,), uint32.
        kinds: `ShareKind` of each; shape (n,), uint8.
        shares: Shape (n, 9), uint32, each limb below the prime.
    """

    slot: int
    positions: npt.NDArray[np.uint32]
    kinds: npt.NDArray[np.uint8]
    shares: Limbs = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SumOpening:
    """Server: the sum of a verified slot, and what the devices committed to.

    Spec: §8.13.

    Attributes:
        slot: Index into the session's slots.
        packed: `ring.pack` of the sum, blinding included.
        committed: Commitment and signature of each device in the sum, by roster position.
    """

    slot: int
    packed: bytes
    committed: Mapping[int, bytes]


ClientMessage = (
    AdvertiseKeys | ShareKeys | ShareReceipt | MaskedInput | ConsistencySignature | UnmaskShares
)
ServerMessage = (
    SessionOpen
    | RosterMessage
    | ShareDelivery
    | OpenSlot
    | ConsistencyCheck
    | UnmaskRequest
    | SumOpening
)
Message = ClientMessage | ServerMessage


Outgoing = Mapping[ClientId, bytes]


class Letters(Outgoing):
    """Messages by recipient, each made by a function that returns the same bytes every time.

    Args:
        recipients: The devices that get a message, in order.
        write: Makes a recipient's message from what was known when this object was created.
    """

    def __init__(self, recipients: Sequence[ClientId], write: Callable[[ClientId], bytes]) -> None:
        self._recipients = dict.fromkeys(recipients)
        self._write = write

    def __getitem__(self, recipient: ClientId) -> bytes:
        if recipient not in self._recipients:
            raise KeyError(recipient)
        return self._write(recipient)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._recipients)

    def __len__(self) -> int:
        return len(self._recipients)
