"""How a device shows who it is when it connects.

The server sends 32 random bytes. The device signs them together with its id and with the hash of
the certificate that it sees (the channel binding `tls-server-end-point` of RFC 5929). So what a
device has signed on a connection to one server admits nobody to another, and somebody in the middle
with another certificate, even one that the device trusts, cannot pass it on. Without TLS the hash
is empty, and somebody in the middle can; only a connection on the machine itself is without.

The signature admits a connection, and nothing else: the protocol's messages have signatures of
their own. Its label keeps the two apart.
"""

from hashlib import sha256
from typing import Final

from deltafl.secagg import ClientId, Directory, labels
from deltafl.secagg.identity import Identity, verify
from deltafl.sim.net.frames import VERSION, Challenge, Hello

_LABEL: Final = b"deltafl/net/v%d/admission" % VERSION


def certificate_hash(certificate: bytes | None) -> bytes:
    """What binds a signature to a server: SHA-256 of its certificate; empty without TLS.

    Args:
        certificate: in DER; None without TLS.
    """
    return b"" if certificate is None else sha256(certificate).digest()


def answer(challenge: Challenge, client: ClientId, identity: Identity, server: bytes) -> Hello:
    """Show who one is.

    Args:
        challenge: what the server has sent.
        client: the device's id.
        identity: its identity.
        server: the `certificate_hash` of the server that the device sees.
    """
    return Hello(client, identity.public, identity.sign(_signed(challenge, client, server)))


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
