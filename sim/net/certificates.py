"""A server's certificate: read from files, also again while it is served; or made, for trials."""

import math
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deltafl.sim.errors import UserError
from deltafl.sim.net.identities import certificate_hash


@dataclass(slots=True)
class Tls:
    """A server's certificate.

    Attributes:
        certificate: file of the certificate and those that vouch for it (PEM), its own first.
        key: file of its private key (PEM).
        shown: the `certificate_hash` of the certificate that connections are shown.
        begins: from when that one holds, in seconds since 1970.
        expires: until when.
    """

    certificate: Path
    key: Path
    shown: bytes = field(init=False, default=b"")
    begins: float = field(init=False, default=math.nan)
    expires: float = field(init=False, default=math.nan)
    _used: ssl.SSLContext | None = field(init=False, default=None)

    def hash(self) -> bytes:
        """What devices bind their signatures to.

        Raises:
            UserError: the file has no certificate.
        """
        return certificate_hash(self._own().public_bytes(serialization.Encoding.DER))

    def _own(self) -> x509.Certificate:
        try:
            first, *_ = x509.load_pem_x509_certificates(self.certificate.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{self.certificate} has no certificate (PEM): {error}") from None
        return first

    def context(self) -> ssl.SSLContext:
        """What connections are encrypted by.

        Raises:
            UserError: certificate and key cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(
                f"{self.certificate} and {self.key} are not a certificate and its key: {error}"
            ) from None
        return context

    def read(self) -> ssl.SSLContext:
        """Read both files; connections that come from now on are shown what they have.

        Raises:
            UserError: as `hash` and `context`; connections are shown what they were shown before.
        """
        fresh, own = self.context(), self._own()
        self._used = self._used or fresh
        self._used.load_cert_chain(self.certificate, self.key)
        self.shown, self.expires = self.hash(), own.not_valid_after_utc.timestamp()
        self.begins = own.not_valid_before_utc.timestamp()
        return self._used

    def concern(self) -> str | None:
        """Why devices do not accept the certificate by its dates, or soon will not; or None."""
        now, path = time.time(), self.certificate
        if now < self.begins:
            return f"devices do not accept {path}: it is not valid before {_shown(self.begins)}"
        if self.expires < now:
            said = f"devices do not accept {path}: it has expired, on {_shown(self.expires)}"
        elif self.expires < now + _SOON_S:
            said = f"devices will not accept {path} after {_shown(self.expires)}"
        else:
            return None
        return f"{said}; put another in its place, and send the server SIGHUP"


def _shown(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


_DAYS: Final = 30
_SOON_S: Final = 14 * 86400.0
_TOLERANCE: Final = timedelta(minutes=5)  # by which clocks may differ


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """A certificate that vouches for itself alone; both PEM.

    Attributes:
        certificate: what the server shows, and what devices trust.
        key: its private key.
    """

    certificate: bytes
    key: bytes = field(repr=False)


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
    by_itself = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_id)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), serial, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, hosts))), critical=False)
        .add_extension(own_id, critical=False)
        .add_extension(by_itself, critical=False)  # tells it from another of the same hosts
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
