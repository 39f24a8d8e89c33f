"""The identities and ledgers of simulated devices, which all know each other."""

from deltafl.secagg.directory import Directory
from deltafl.secagg.identity import IdentityKey, generate
from deltafl.secagg.ledger import Ledger, MemoryLedger
from deltafl.secagg.params import ClientId, SessionParams
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.signing import Credentials


class Enrolment(Directory):
    """Creates each device's identity when it is first asked for, and accepts only that one.

    It stands in for what real devices do before any session: they create their keys, and a list of
    the keys (`TrustedKeys`) reaches every device. Real devices each have their own `Credentials`.

    Args:
        randomness: Source of the secret keys.
    """

    def __init__(self, randomness: Randomness = system_randomness) -> None:
        self._randomness = randomness
        self._enrolled: dict[ClientId, Credentials] = {}
        self._ledgers: dict[ClientId, Ledger] = {}

    def accepts(self, client: ClientId, key: IdentityKey) -> bool:
        """Whether this is the key that was created for the device here."""
        known = self._enrolled.get(client)
        return known is not None and known.identity.public == key

    def credentials(self, client: ClientId) -> Credentials:
        """A device's credentials; the same every time."""
        if client not in self._enrolled:
            self._enrolled[client] = Credentials(generate(self._randomness), self)
        return self._enrolled[client]

    def ledger(self, client: ClientId) -> Ledger:
        """A device's ledger; the same every time."""
        return self._ledgers.setdefault(client, MemoryLedger())

    def credentials_for(self, client: ClientId, params: SessionParams) -> Credentials | None:
        """A device's credentials if the session is signed, else None."""
        return self.credentials(client) if params.signed else None
