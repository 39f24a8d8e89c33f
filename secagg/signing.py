"""What devices sign."""

from dataclasses import dataclass

import numpy as np

from deltafl.secagg import labels
from deltafl.secagg.graph import Members
from deltafl.secagg.identity import IdentityKey
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.labels import Label
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.params import ClientId, SessionId, SessionParams


@dataclass(frozen=True, slots=True)
class Signer:
    """A device whose signatures count in a session.

    Attributes:
        identity: Its identity key.
        sealing_key: Its sealing key of this session.
    """

    identity: IdentityKey
    sealing_key: PublicKey


def advertisement(
    params: SessionParams,
    client: ClientId,
    sealing_key: PublicKey,
    mask_keys: tuple[PublicKey, ...],
) -> bytes:
    """What a device signs when it advertises keys: session, id and keys. Spec: §6.3."""
    return labels.pack(Label.ADVERTISEMENT, params.digest, client, sealing_key, b"".join(mask_keys))


def survivors(context: SlotContext, survivors: Members, sealing_key: PublicKey) -> bytes:
    """What a device signs before it helps unmask: roster, slot, binding and survivors.

    The device's own sealing key is new in every session, so it ties the signature to this session.

    Spec: §6.4.
    """
    return labels.pack(
        Label.SURVIVORS, context.session_id, context.info, *_set(survivors), sealing_key
    )


def members(session_id: SessionId, slot: int, members: Members, sealing_key: PublicKey) -> bytes:
    """What a device signs before a whole slot, if no list has been agreed on: roster and members.

    Spec: §6.4.
    """
    return labels.pack(Label.MEMBERS, session_id, slot, *_set(members), sealing_key)


def _set(members: Members) -> tuple[int, bytes]:
    return len(members), np.packbits(members, bitorder="little").tobytes()
