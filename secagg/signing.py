"""What devices sign."""

from dataclasses import dataclass

import numpy as np

from deltafl.secagg import labels
from deltafl.secagg.graph import Members
from deltafl.secagg.identity import IdentityKey
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.labels import Label
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.params import ClientId, SessionParams


@dataclass(frozen=True, slots=True)
class Signer:
    """A device of a session.

    Attributes:
        identity: Its identity key, by which it signs.
        key: Its public key of this session, to which boxes are sealed.
    """

    identity: IdentityKey
    key: PublicKey


def advertisement(params: SessionParams, client: ClientId, key: PublicKey) -> bytes:
    """What a device signs when it advertises its key: session, id and key. Spec: §6.3."""
    return labels.pack(Label.ADVERTISEMENT, params.digest, client, key)


def survivors(context: SlotContext, survivors: Members, key: PublicKey) -> bytes:
    """What a device signs before it helps unmask: roster, slot, binding and survivors.

    The device's own key is new in every session, so it ties the signature to this session.

    Spec: §6.4.
    """
    bits = np.packbits(survivors, bitorder="little").tobytes()
    return labels.pack(Label.SURVIVORS, context.session_id, context.info, len(survivors), bits, key)
