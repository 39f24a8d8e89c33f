"""A certificate for a trial on one machine; a real server has one from a certificate authority."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS: Final = 30
_TOLERANCE: Final = timedelta(minutes=5)  # by which clocks may differ


class OwnCertificate(NamedTuple):
    """A certificate that vouches for itself alone; both PEM.

    Attributes:
        certificate: what the server shows, and what devices trust.
        key: its private key.
    """

    certificate: bytes
    key: bytes


def make_certificate(hosts: Sequence[str], now: datetime | None = None) -> OwnCertificate:
    """Make a certificate for one server.

    Args:
        hosts: names and addresses of the server.
        now: from when it holds, for 30 days; by default from now.
    """
    start = (now or datetime.now(UTC)) - _TOLERANCE
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    serial, end = x509.random_serial_number(), start + timedelta(days=_DAYS)
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), serial, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, hosts))), critical=False)
        .add_extension(own_id, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return OwnCertificate(
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
