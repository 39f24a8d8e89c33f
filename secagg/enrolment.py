"""The identities of simulated devices, who all know each other."""

from deltafl.secagg.directory import Directory
from deltafl.secagg.identity import IdentityKey, generate
from deltafl.secagg.params import ClientId, SessionParams
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.secagg.signing import Credentials


class Enrolment(Directory):
    """Gives every device an identity when it is first asked for, and accepts that one only.

    It stands for what happens before all sessions: devices make their keys, and a list of them
    (`TrustedKeys`) reaches every device. Where devices are real, each has its own `Credentials`.

    Args:
        randomness: Source of the secret keys.
    """

    def __init__(self, randomness: Randomness = system_randomness) -> None:
        self._randomness = randomness
        self._enrolled: dict[ClientId, Credentials] = {}

    def accepts(self, client: ClientId, key: IdentityKey) -> bool:
        """Whether this is the key that the device was given here."""
        known = self._enrolled.get(client)
        return known is not None and known.identity.public == key

    def credentials(self, client: ClientId) -> Credentials:
        """A device's credentials; the same every time."""
        if client not in self._enrolled:
            self._enrolled[client] = Credentials(generate(self._randomness), self)
        return self._enrolled[client]

    def credentials_for(self, client: ClientId, params: SessionParams) -> Credentials | None:
        """A device's credentials where the session is signed; None where it needs none."""
        return self.credentials(client) if params.signed else None
