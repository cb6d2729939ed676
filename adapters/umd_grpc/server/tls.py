"""Certificates: the operator's own, or one that the server makes and keeps, and clients pin by its fingerprint."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from umd_core.errors import ConfigError
from umd_grpc.files import locked, read_limited, read_private, write_private

FILE_LIMIT = 1 << 20
CERTIFICATE, KEY = "server-cert.pem", "server-key.pem"
YEARS = 10
NAME = "umd"
_EARLIER = datetime.timedelta(hours=1)


class Pair(NamedTuple):
    """A certificate chain and its private key, PEM."""

    certificate: bytes
    key: bytes

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the first certificate, in hexadecimal."""
        return fingerprint(self.certificate)


def fingerprint(certificate: bytes) -> str:
    """Returns the SHA-256 of the first certificate of a PEM chain, in hexadecimal."""
    der = x509.load_pem_x509_certificates(certificate)[0].public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(der).hexdigest()


def automatic(folder: Path, hosts: Sequence[str], now: datetime.datetime | None = None) -> Pair:
    """Returns the certificate that a folder holds; makes it when there is none, or it has expired.

    Args:
        folder: of the server's state.
        hosts: names and addresses that a new one is for, beside this machine's own.
        now: the time, in UTC.

    Raises:
        NotAuthorisedError: others than its owner may read the key.
        ConfigError: what is there cannot be read as a certificate and its key.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    certificate, key = folder / CERTIFICATE, folder / KEY
    with locked(certificate):
        if certificate.exists() and key.exists():
            found = Pair(read_limited(certificate, FILE_LIMIT), read_private(key, FILE_LIMIT))
            check_pair(found, str(certificate), str(key))
            if now < x509.load_pem_x509_certificate(found.certificate).not_valid_after_utc:
                return found
        made = make(hosts, now)
        write_private(key, made.key)
        write_private(certificate, made.certificate)
    return made


def make(hosts: Sequence[str], now: datetime.datetime) -> Pair:
    """Returns a new self-signed certificate for this machine and `hosts`, with its key (ECDSA on P-256)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    names = dict.fromkeys((NAME, socket.gethostname() or NAME, "localhost", "127.0.0.1", "::1", *hosts))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName(_general(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)


def _general(names: Iterable[str]) -> list[x509.GeneralName]:
    """Returns names and addresses as a certificate has them; a host name that is no DNS name is left out."""
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            with suppress(UnicodeError):  # a certificate cannot name it
                found.append(x509.DNSName(name.encode("idna").decode()))
    return found


def check_pair(pair: Pair, certificate: str, key: str) -> None:
    """Checks that a certificate and a key can be read and belong together.

    Raises:
        ConfigError: they cannot, or do not.
    """
    try:
        public = x509.load_pem_x509_certificates(pair.certificate)[0].public_key()
        private = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError) as error:
        raise ConfigError(certificate, [f"it or {key} is no PEM, or the key has a password: {error}"]) from error
    if private.public_key() != public:
        raise ConfigError(certificate, [f"{key} is not its private key"])


class Files:
    """Certificate and key that somebody else writes, and renews while the server runs."""

    def __init__(self, certificate: str, key: str) -> None:
        """Reads them.

        Raises:
            OSError, ConfigError: they cannot be used.
        """
        self._paths = Path(certificate).expanduser(), Path(key).expanduser()
        self._seen = self._signature()
        self.pair = self._read()

    def _signature(self) -> list[tuple[int, int, int]]:
        return [(s.st_mtime_ns, s.st_size, s.st_ino) for s in (path.stat() for path in self._paths)]

    def _read(self) -> Pair:
        pair = Pair(*(read_limited(path, FILE_LIMIT) for path in self._paths))
        check_pair(pair, *map(str, self._paths))
        return pair

    def renewed(self) -> Pair | None:
        """Returns what the files hold when they have changed.

        Raises:
            OSError, ConfigError: they have, and cannot be used (yet).
        """
        signature = self._signature()
        if signature == self._seen:
            return None
        self.pair = self._read()
        self._seen = signature
        return self.pair


def credentials(pair: Pair, client_ca: bytes | None, renewed: Callable[[], Pair | None]) -> grpc.ServerCredentials:
    """Returns credentials of a server.

    Args:
        pair: what it shows at first.
        client_ca: certificates (PEM) of those who sign client certificates; None: clients need none.
        renewed: asked at each handshake for something newer to show; None: there is nothing.
    """

    def configuration(shown: Pair) -> Any:
        return grpc.ssl_server_certificate_configuration([(shown.key, shown.certificate)], client_ca)

    def fetch() -> Any:
        found = renewed()
        return None if found is None else configuration(found)

    made: grpc.ServerCredentials
    made = grpc.dynamic_ssl_server_credentials(configuration(pair), fetch, client_ca is not None)
    return made


def read_authorities(path: str) -> bytes:
    """Returns a PEM file of certificates.

    Raises:
        OSError, ConfigError: it cannot be used.
    """
    raw = read_limited(Path(path).expanduser(), FILE_LIMIT)
    try:
        ssl.create_default_context(cadata=raw.decode("ascii"))
    except (ValueError, ssl.SSLError) as error:
        raise ConfigError(path, [f"holds no certificates in PEM: {error}"]) from error
    return raw
