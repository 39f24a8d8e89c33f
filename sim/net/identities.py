"""Who a device is: the files that say so, and how it shows it when it connects.

An identity file has two lines, the device's id and the secret seed of its key, and only its owner
can read it. The federation's list is what `deltafl.secagg.TrustedKeys` reads: one device per line,
with its public key. People compare the fingerprints of both.

When a device connects, the server sends 32 random bytes. The device signs them together with its id
and with the hash of the certificate that it sees (the channel binding `tls-server-end-point` of RFC
5929). So what a device has signed on a connection to one server admits nobody to another, and
somebody in the middle with another certificate, even one that the device trusts, cannot pass it on.
Without TLS the hash is empty, and somebody in the middle can; only a connection on the machine
itself is without. The signature admits a connection, and nothing else: the protocol's messages have
signatures of their own. Its label keeps the two apart.
"""

import os
import re
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from deltafl.fl.read.regular import read_regular
from deltafl.secagg import ClientId, Directory, TrustedKeys, UsageError, labels
from deltafl.secagg.identity import SEED_SIZE, Identity, identity, verify
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.net.frames import VERSION, Challenge, Hello

_MAX_LIST: Final = 1 << 25  # bytes; a directory of the most devices takes less
_MAX_IDENTITY: Final = 1 << 10
_ID_LIMIT: Final = 2**32
_SHARED: Final = stat.S_IRWXG | stat.S_IRWXO
_NOTE: Final = "# A device's identity: whoever can read this file can be the device.\n"
_FORM: Final = re.compile(r"(?:#[^\n]*\n)*id (0|[1-9][0-9]{0,9})\nseed ([0-9a-f]{64})\n")


@dataclass(frozen=True, slots=True)
class OwnIdentity:
    """Who a device is.

    Attributes:
        client: its id in the federation's list.
        identity: its key pair.
    """

    client: ClientId
    identity: Identity

    @property
    def entry(self) -> str:
        """The device's line in the federation's list."""
        return TrustedKeys({self.client: self.identity.public}).dump().strip()

    @classmethod
    def create(
        cls, path: Path, client: ClientId, randomness: Randomness = system_randomness
    ) -> Self:
        """Draw an identity and write it to a new file, which only its owner can read.

        Raises:
            UserError: the id is out of range, the file exists or cannot be written.
        """
        if not 0 <= client < _ID_LIMIT:
            raise UserError(f"the id {client} is not in [0, {_ID_LIMIT})")
        seed = randomness(SEED_SIZE)
        own = cls(client, identity(seed))
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "w", encoding="ascii") as file:
                file.write(f"{_NOTE}id {client}\nseed {seed.hex()}\n")
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            raise UserError(
                f"{path} exists, and an identity is never overwritten: choose another --out"
            ) from None
        except OSError as error:
            raise UserError(f"the identity cannot be written: {error}") from error
        return own

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read an identity.

        Raises:
            UserError: the file is not one, cannot be read, or can be read by others.
        """
        try:
            if path.stat().st_mode & _SHARED:
                raise UserError(
                    f"{path} can be read by others than its owner: run `chmod 600 {path}`"
                )
            found = _FORM.fullmatch(read_regular(path, _MAX_IDENTITY).decode("ascii", "replace"))
        except OSError as error:
            raise UserError(f"the identity cannot be read: {error}") from error
        if found is None or int(found[1]) >= _ID_LIMIT:
            raise UserError(f"{path} is no identity: `deltafl enrol` makes one")
        return cls(ClientId(int(found[1])), identity(bytes.fromhex(found[2])))

    def hello(self, challenge: Challenge, server: bytes) -> Hello:
        """Show who one is.

        Args:
            challenge: what the server has sent.
            server: the `certificate_hash` of the server that the device sees.
        """
        signed = self.identity.sign(_signed(challenge, self.client, server))
        return Hello(self.client, self.identity.public, signed)


def ledger_beside(path: Path) -> Path:
    """Where the ledger of the identity in a file is, unless it is said to be elsewhere."""
    own = path.suffix == ".identity"
    return path.with_suffix(".ledger") if own else path.with_name(f"{path.name}.ledger")


def read_directory(path: Path) -> TrustedKeys:
    """Read the federation's list of devices.

    Raises:
        UserError: the file is not one, or cannot be read.
    """
    try:
        return TrustedKeys.parse(read_regular(path, _MAX_LIST).decode("utf-8"))
    except OSError as error:
        raise UserError(f"the list of devices cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no list of devices: it is not UTF-8 ({error})") from None
    except UsageError as error:
        raise UserError(f"{path} is no list of devices: {error}") from None


def read_listed(path: Path, devices: Path) -> tuple[OwnIdentity, TrustedKeys]:
    """Read a device's identity, and its own copy of the list, which has to have the identity.

    Raises:
        UserError: a file cannot be read, or the list has another identity, or none.
    """
    own, listed = OwnIdentity.read(path), read_directory(devices)
    if not listed.accepts(own.client, own.identity.public):
        raise ConfigError(
            f"{devices} does not list the identity in {path}: have the line '{own.entry}' added to "
            "it"
        )
    return own, listed


_LABEL: Final = b"deltafl/net/v%d/admission" % VERSION


def certificate_hash(certificate: bytes | None) -> bytes:
    """What binds a signature to a server: SHA-256 of its certificate; empty without TLS.

    Args:
        certificate: in DER; None without TLS.
    """
    return b"" if certificate is None else sha256(certificate).digest()


def is_admitted(challenge: Challenge, hello: Hello, server: bytes, devices: Directory) -> bool:
    """Whether a device is who it says, and on the list.

    Args:
        challenge: what was sent to it.
        hello: its answer.
        server: the server's own `certificate_hash`.
        devices: whose keys admit them.
    """
    return devices.accepts(hello.client, hello.key) and verify(
        hello.key, _signed(challenge, hello.client, server), hello.signature
    )


def _signed(challenge: Challenge, client: ClientId, server: bytes) -> bytes:
    return labels.pack(_LABEL, challenge.nonce, client, server)
