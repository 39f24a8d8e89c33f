"""What devices sign in a signed session, and the credentials they need to take part in one."""

from dataclasses import dataclass, field

import numpy as np

from deltafl.secagg import labels
from deltafl.secagg.directory import Directory
from deltafl.secagg.errors import UsageError
from deltafl.secagg.graph import Members
from deltafl.secagg.identity import Identity
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.ledger import Ledger, MemoryLedger
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.params import ClientId, SessionParams


@dataclass(frozen=True, slots=True)
class Credentials:
    """A device's own identity, and how it recognises other devices.

    Attributes:
        identity: The device's key pair.
        directory: Decides whether a key belongs to a device.
        ledger: The sessions that the device has already taken part in. The default one is lost with
            the process; a real device keeps a `SqliteLedger`.
    """

    identity: Identity
    directory: Directory
    ledger: Ledger = field(default_factory=MemoryLedger)

    def check(self, client: ClientId) -> None:
        """Check that the directory lists the device's own key.

        Raises:
            UsageError: the directory has another key, or none, under the device's id.
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

    The device's own sealing key is new in every session, so it ties the signature to this session.

    Spec: §6.4.
    """
    bits = np.packbits(survivors, bitorder="little").tobytes()
    return labels.pack(
        labels.SURVIVORS, context.session_id, context.info, len(survivors), bits, sealing_key
    )
