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

import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from deltafl.fl.read.regular import read_regular
from deltafl.secagg import ClientId, Directory, TrustedKeys, UsageError, labels
from deltafl.secagg.identity import SEED_SIZE, Identity, IdentityKey, identity, verify
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.net.frames import VERSION, Challenge, Hello
from deltafl.sim.net.logs import Cause
from deltafl.sim.record.own_files import write_file

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
            raise UserError(f"{path} exists, and is never overwritten: choose another") from None
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
                raise UserError(f"{path} can be read by others: run `chmod 600 {path}`")
            found = _FORM.fullmatch(read_regular(path, _MAX_IDENTITY).decode("ascii", "replace"))
        except OSError as error:
            raise UserError(f"the identity cannot be read: {error}") from error
        if found is None or int(found[1]) >= _ID_LIMIT:
            raise UserError(f"{path} is no identity: `deltafl enrol` makes one")
        return cls(ClientId(int(found[1])), identity(bytes.fromhex(found[2])))

    def hello(
        self, challenge: Challenge, server: bytes, listed: TrustedKeys | None = None
    ) -> Hello:
        """Show who one is.

        Args:
            challenge: what the server has sent.
            server: the `certificate_hash` of the server that the device sees.
            listed: the device's copy of the list, if it says which it has.
        """
        signed = self.identity.sign(_signed(challenge, self.client, server))
        copy = b"" if listed is None else fingerprint_of(listed)
        return Hello(self.client, self.identity.public, signed, copy)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Be the only process that uses the identity in a file.

    Raises:
        UserError: another one does.
    """
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path} is in use by another process: stop that one") from None
        yield


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
            f"{devices} does not list the identity in {path}: have '{own.entry}' added"
        )
    return own, listed


_LABEL: Final = b"deltafl/net/v%d/admission" % VERSION


def certificate_hash(certificate: bytes | None) -> bytes:
    """What binds a signature to a server: SHA-256 of its certificate; empty without TLS.

    Args:
        certificate: in DER; None without TLS.
    """
    return b"" if certificate is None else sha256(certificate).digest()


def why_not(challenge: Challenge, hello: Hello, server: bytes, devices: Directory) -> Cause | None:
    """Why a device is not admitted; None if it is who it says, and on the list.

    Args:
        challenge: what was sent to it.
        hello: its answer.
        server: the server's own `certificate_hash`.
        devices: whose keys admit them.
    """
    if not devices.accepts(hello.client, hello.key):
        return Cause.KEY if hello.client in getattr(devices, "keys", ()) else Cause.UNLISTED
    is_signed = verify(hello.key, _signed(challenge, hello.client, server), hello.signature)
    return None if is_signed else Cause.SIGNATURE


class DeviceList(Directory):
    """The federation's list as its server has it, which may be read again while it is in use.

    A number keeps its key for ever, also if it is taken off the list meanwhile: a device with
    another key has another ledger, and could answer where it has answered before.

    Args:
        path: the file.

    Raises:
        UserError: as `read_directory`, or it has no device.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: Path | None = None
        self._listed = _some_listed(path)
        self._ever = self._listed

    @property
    def keys(self) -> Mapping[ClientId, IdentityKey]:
        """As `TrustedKeys.keys`."""
        return self._listed.keys

    def accepts(self, client: ClientId, key: IdentityKey) -> bool:
        """As `TrustedKeys.accepts`."""
        return self._listed.accepts(client, key)

    def fingerprint(self) -> str:
        """As `TrustedKeys.fingerprint`."""
        return self._listed.fingerprint()

    @property
    def limit(self) -> int:
        """One more than the largest number that was ever on the list."""
        return max(self._ever.keys, default=-1) + 1

    def keep(self, known: Path) -> None:
        """Hold the list to the keys that numbers have had before, and keep all of them.

        Args:
            known: the file that has them; it is made if there is none.

        Raises:
            UserError: a number has another key than before, or a key another number.
        """
        before = read_directory(known) if known.exists() else self._listed
        self._known = known
        self._ever = self._with_all(before, self._listed)

    def read_again(self) -> str:
        """Take the list as the file has it now; a sentence on what has changed.

        Raises:
            UserError: as `read_directory` or `keep`; the list stays as it was.
        """
        listed, before = _some_listed(self._path), self._listed
        self._ever = self._with_all(self._ever, listed)
        self._listed = listed
        now, was = listed.keys.keys(), before.keys.keys()
        return f"{len(now)} devices are on the list: {len(now - was)} new, {len(was - now)} removed"

    def _with_all(self, before: TrustedKeys, listed: TrustedKeys) -> TrustedKeys:
        ever = same_keys(before, listed)
        if self._known is not None:
            write_file(self._known, ever.dump().encode())
        return ever


def _some_listed(path: Path) -> TrustedKeys:
    if (listed := read_directory(path)).keys:
        return listed
    raise UserError(f"{path}: no device is on the list: add the lines that `deltafl enrol` prints")


def same_keys(before: TrustedKeys, listed: TrustedKeys) -> TrustedKeys:
    """All devices of two lists.

    Raises:
        UserError: a device has another key in the later one, or a key is that of another device.
    """
    for client, key in listed.keys.items():
        if before.keys.get(client, key) != key:
            raise UserError(
                f"the list has another key for device {client} than before: give a new identity a "
                "number that no device had (deltafl enrol), and take the old line off the list"
            )
    try:
        return TrustedKeys({**before.keys, **listed.keys})
    except UsageError as error:
        raise UserError(f"the list gives a key another number than before: {error}") from None


def fingerprint_of(listed: TrustedKeys | DeviceList) -> bytes:
    """The fingerprint of a list, 32 bytes."""
    return bytes.fromhex(listed.fingerprint())


def _signed(challenge: Challenge, client: ClientId, server: bytes) -> bytes:
    return labels.pack(_LABEL, challenge.nonce, client, server)
