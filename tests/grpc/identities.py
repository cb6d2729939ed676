"""Users and servers of the security tests: their files, tokens and certificates."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import umd_core as umd
from umd_grpc.server.entries import Entry, digest, new_secret
from umd_grpc.server.tokens import TokenFile

X = np.arange(6, dtype=np.float32)
REVOKE_SECONDS = 2.0


def move_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives this process, and those that it starts, files of their own and an environment that says nothing."""
    for name in ("UMD_TOKEN", "UMD_TLS_CA", "UMD_TLS_CERT", "UMD_TLS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UMD_STATE_DIR", str(folder / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))


def double(device: Any) -> np.ndarray[Any, Any]:
    """Returns 2 · X, computed by a device."""
    (y,) = device.run(umd.translate("Add", [X, X]), [X, X])
    return y.numpy()  # type: ignore[no-any-return]  # a tensor's array has any type


def mode(path: Path) -> int:
    """Returns the permissions of a file."""
    return path.stat().st_mode & 0o777


def add(tokens: TokenFile, name: str, **options: Any) -> str:
    """Adds a token and returns it."""
    secret = new_secret()
    tokens.add(Entry(name, digest(secret), **options))
    return secret


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "authority") -> None:
        self.certificate, self.key = self._made(name, None)

    def sign(
        self, name: str, hosts: Sequence[str] = ("localhost",)
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """Returns a certificate for a common name and hosts, and its key."""
        return self._made(name, self, hosts)

    def _made(
        self, name: str, issuer: Authority | None, hosts: Sequence[str] = ()
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.certificate.subject if issuer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        )
        if hosts:
            names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(issuer.key if issuer else key, hashes.SHA256()), key

    def issue(self, folder: Path, name: str, common: str = "") -> tuple[Path, Path]:
        """Writes a certificate and its key; returns their paths."""
        certificate, key = self.sign(common or name)
        paths = folder / f"{name}.pem", folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        paths[1].write_bytes(private)
        return paths

    def write(self, path: Path) -> Path:
        """Writes its own certificate."""
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return path
