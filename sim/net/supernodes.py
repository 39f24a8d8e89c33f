"""Identities of devices that are nodes of Flower's, signed by their SuperNodes' keys.

Where a SuperLink authenticates its SuperNodes, their public keys are registered, so whoever runs
the federation has them already. Each SuperNode's key signs the identity of its device. The list of
these signatures says which identity is which SuperNode's: the server app finds out by it which
node is which device, and whoever has the registered keys can check a federation's list of devices
by it, without asking the nodes' owners.

The list has one device per line: its id, its SuperNode's public key as OpenSSH writes it, and two
signatures in hexadecimal. The SuperNode's key signs the id and the identity's key (ECDSA with
SHA-256). The identity's key signs the id and the SuperNode's key (Ed25519), so that no SuperNode
can sign for the identity of another, and take its place.
"""

import io
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from deltafl.fl.read.regular import read_regular
from deltafl.secagg import ClientId, TrustedKeys, labels
from deltafl.secagg.identity import IdentityKey, verify
from deltafl.sim.errors import UserError
from deltafl.sim.net.identities import OwnIdentity

_BY_SUPERNODE: Final = b"deltafl/net/v1/identity of a SuperNode"
_BY_IDENTITY: Final = b"deltafl/net/v1/SuperNode of an identity"
_MAX_LIST: Final = 1 << 25  # bytes
_MAX_KEY: Final = 1 << 14
_MAX_LINE: Final = 1 << 10  # characters
_FIELDS: Final = 5
_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_FORM: Final = "ID ecdsa-sha2-… KEY SIGNATURE SIGNATURE"


@dataclass(frozen=True, slots=True)
class SuperNodes:
    """Which device belongs to which SuperNode; every signature has been verified.

    Attributes:
        keys: each SuperNode's public key, as OpenSSH writes it ("ecdsa-sha2-nistp384 AAAA…"), by
            device, ascending.
    """

    keys: Mapping[ClientId, str]

    @classmethod
    def parse(cls, text: str, devices: TrustedKeys) -> Self:
        """Read a list of signatures, and verify each.

        Text after `#` is a comment; blank lines are ignored; the lines may be in any order.

        Args:
            text: the list.
            devices: the federation's list of devices, each of which must be signed for.

        Raises:
            UserError: a line is malformed, a signature is not by its key, a key or a device occurs
                twice, or a device is missing; the message names it.
        """
        keys: dict[ClientId, str] = {}
        lines: dict[str, int] = {}
        for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
            entry = line.partition("#")[0].split()
            if not entry:
                continue
            client, key = _verified(number, line, entry, devices)
            if client in keys:
                raise UserError(f"line {number}: device {client} has a line already")
            if key in lines:
                raise UserError(f"line {number}: line {lines[key]} has the same SuperNode's key")
            keys[client], lines[key] = key, number
        if missing := devices.keys.keys() - keys.keys():
            raise UserError(f"no SuperNode's key has signed for device {min(missing)}")
        return cls(dict(sorted(keys.items())))

    @classmethod
    def read(cls, path: Path, devices: TrustedKeys) -> Self:
        """Read the list of a federation's SuperNodes; see `parse`.

        Raises:
            UserError: the file cannot be read, or is no list in which all devices are signed for.
        """
        try:
            return cls.parse(read_regular(path, _MAX_LIST).decode("utf-8"), devices)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"the list of SuperNodes cannot be read: {error}") from error
        except UserError as error:
            raise UserError(f"{path}, {error}") from None

    def fingerprints(self) -> Iterator[tuple[ClientId, str]]:
        """The fingerprint of each device's SuperNode's key, as `ssh-keygen -lf` prints it."""
        for client, key in self.keys.items():
            digest = sha256(b64decode(key.split()[1])).digest()
            yield client, "SHA256:" + b64encode(digest).decode("ascii").rstrip("=")

    def device_of(self, public_key: bytes) -> ClientId | None:
        """The device of a SuperNode by its public key; None if it is on no line.

        Args:
            public_key: PEM, as a SuperLink keeps it.
        """
        try:
            key = load_pem_public_key(public_key)
            if not isinstance(key, ec.EllipticCurvePublicKey):
                return None
            wanted = _written(key)
        except (ValueError, UnsupportedAlgorithm):
            return None
        return next((client for client, one in self.keys.items() if one == wanted), None)


def read_supernode_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a SuperNode's private key, as `flower-supernode` takes it.

    Raises:
        UserError: the file cannot be read, or has no such key.
    """
    try:
        key = load_ssh_private_key(read_regular(path, _MAX_KEY), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(
            f"{path} is no private key of a SuperNode (OpenSSH, without a password): {error}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is not a key of an elliptic curve, as SuperNodes' keys are")
    return key


def signed_line(own: OwnIdentity, key: ec.EllipticCurvePrivateKey) -> str:
    """The line by which a SuperNode's key signs for a device's identity."""
    written = _written(key.public_key())
    message = _of_supernode(own.client, own.identity.public)
    first = key.sign(message, ec.ECDSA(SHA256(), deterministic_signing=True))
    second = own.identity.sign(_of_identity(own.client, written))
    return f"{own.client} {written} {first.hex()} {second.hex()}"


def _verified(
    number: int, line: str, entry: list[str], devices: TrustedKeys
) -> tuple[ClientId, str]:
    """A line's device and key; its signature is by that key."""
    if len(line) > _MAX_LINE or len(entry) != _FIELDS or not _ID.fullmatch(entry[0]):
        raise UserError(f"line {number}: expected {_FORM}, as `deltafl enrol` prints it")
    number_of_device, kind, blob, *signatures = entry
    try:
        client = ClientId(int(number_of_device))
        key = load_ssh_public_key(f"{kind} {blob}".encode("ascii"))
        by_supernode, by_identity = map(bytes.fromhex, signatures)
    except (ValueError, NotImplementedError, UnsupportedAlgorithm) as error:
        raise UserError(f"line {number}: expected {_FORM}: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"line {number}: the key is not one of a SuperNode's")
    identity = devices.keys.get(client)
    if identity is None:
        raise UserError(f"line {number}: device {client} is not on the list of devices")
    written = _written(key)
    try:
        key.verify(by_supernode, _of_supernode(client, identity), ec.ECDSA(SHA256()))
    except InvalidSignature:
        told = f"the SuperNode's key has not signed for the identity of device {client}"
        raise UserError(f"line {number}: {told} on the list of devices") from None
    if not verify(identity, _of_identity(client, written), by_identity):
        told = f"the identity of device {client} has not signed for this SuperNode's key"
        raise UserError(f"line {number}: {told}")
    return client, written


def _of_supernode(client: ClientId, identity: IdentityKey) -> bytes:
    """What a SuperNode's key signs."""
    return labels.pack(_BY_SUPERNODE, client, identity)


def _of_identity(client: ClientId, supernode: str) -> bytes:
    """What an identity's key signs."""
    return labels.pack(_BY_IDENTITY, client, supernode.encode("ascii"))


def _written(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
