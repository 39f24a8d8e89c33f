"""What devices sign in a signed session, and what one needs to take part in it."""

from dataclasses import dataclass, field

import numpy as np

from deltafl.secagg import labels
from deltafl.secagg.directory import Directory
from deltafl.secagg.errors import UsageError
from deltafl.secagg.graph import Members
from deltafl.secagg.identity import Identity
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.ledger import Ledger
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.params import ClientId, SessionParams


@dataclass(frozen=True, slots=True)
class Credentials:
    """A device's own identity, and whom it believes to be who.

    Attributes:
        identity: The device's key.
        directory: Decides whether a key is that of a device.
        ledger: What the device has taken part in before.
    """

    identity: Identity
    directory: Directory
    ledger: Ledger = field(default_factory=Ledger)

    def check(self, client: ClientId) -> None:
        """See to it that the directory knows the device itself.

        Raises:
            UsageError: it has another key, or none, under the device's id.
        """
        if not self.directory.accepts(client, self.identity.public):
            raise UsageError(f"the directory does not accept this identity for device {client}")


def advertisement(
    params: SessionParams,
    client: ClientId,
    sealing_key: PublicKey,
    mask_keys: tuple[PublicKey, ...],
) -> bytes:
    """What a device signs when it advertises keys: session, id and keys. Spec: §6.3."""
    return labels.pack(
        labels.ADVERTISEMENT, params.digest, client, sealing_key, b"".join(mask_keys)
    )


def survivors(context: SlotContext, survivors: Members, sealing_key: PublicKey) -> bytes:
    """What a device signs before it helps unmask: roster, slot, binding and survivors.

    Its own sealing key, which is new in every session, ties the signature to this one.

    Spec: §6.4.
    """
    bits = np.packbits(survivors, bitorder="little").tobytes()
    return labels.pack(
        labels.SURVIVORS, context.session_id, context.info, len(survivors), bits, sealing_key
    )
