"""Certificates of servers and clients. Servers are real processes."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

import umd_core as umd
from tests.grpc.identities import REVOKE_SECONDS, Authority, X, add, double, move_home
from umd_core.errors import NotAuthorisedError, UmdError, UnsupportedError
from umd_grpc.client import Client, joined
from umd_grpc.client.access import Access, certificate_name
from umd_grpc.files import state_folder
from umd_grpc.server.entries import Entry
from umd_grpc.server.tls import automatic, fingerprint
from umd_grpc.server.tokens import TokenFile

Start = Callable[..., Any]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user and a server without files of their own."""
    move_home(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def tokens(home: Path) -> TokenFile:
    return TokenFile(home / "tokens.json")


def test_a_certificate_is_made_for_any_host_and_kept(home: Path) -> None:
    now = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    made = automatic(home, ["gpu7.example.org", "192.0.2.7", "2001:db8::7", "büro.example", "no..name", "x" * 70], now)
    names = x509.load_pem_x509_certificate(made.certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    dns = names.value.get_values_for_type(x509.DNSName)
    assert {"umd", "localhost", "gpu7.example.org", "xn--bro-hoa.example"} <= set(dns)
    assert {"192.0.2.7", "2001:db8::7"} <= set(map(str, names.value.get_values_for_type(x509.IPAddress)))
    assert [name for name in dns if ".." in name or len(name) > 63] == []
    assert automatic(home, ["other"], now + datetime.timedelta(days=3640)) == made
    assert automatic(home, [], now + datetime.timedelta(days=3651)) != made
    (home / "server-key.pem").chmod(0o644)
    with pytest.raises(NotAuthorisedError, match="chmod 600"):
        automatic(home, [], now)


@pytest.mark.parametrize(("names", "wanted"), [(["*.example.org"], "umd.example.org"), (["a", "b"], "a"), ([], "cn")])
def test_a_name_that_a_certificate_is_for(names: list[str], wanted: str) -> None:
    certificate = Authority().sign("cn", names)[0]
    assert certificate_name(certificate.public_bytes(serialization.Encoding.PEM)) == wanted


def test_without_a_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.delenv("UMD_STATE_DIR")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert joined.find("h:1") is None
    with pytest.raises(UnsupportedError, match="set XDG_STATE_HOME"):
        state_folder()


def test_client_certificates_say_who_calls(
    start_server: Start, home: Path, monkeypatch: pytest.MonkeyPatch, tokens: TokenFile
) -> None:
    ours, theirs = Authority(), Authority()
    ca = ours.write(home / "ca.pem")
    certificate, key = ours.issue(home, "server")
    tokens.add(Entry("alice", devices=("sim:1",)))
    server = start_server(
        "--tls-cert", str(certificate), "--tls-key", str(key), "--tls-client-ca", str(ca),
        "--tokens", str(tokens.path), "--device", "sim:0", "--device", "sim:1",
    )  # fmt: skip
    target = f"localhost:{server.address.rpartition(':')[2]}"

    def allowed(who: tuple[Path, Path] | None) -> list[str]:
        for name, path in zip(("UMD_TLS_CERT", "UMD_TLS_KEY"), who or ("", ""), strict=True):
            monkeypatch.setenv(name, str(path))
        monkeypatch.setenv("UMD_TLS_CA", str(ca))
        with Client(target, secure=True, timeout=5) as client:
            return [found.name for found in client.describe().devices]

    alice = ours.issue(home, "alice")
    assert allowed(alice) == ["sim:1"]
    assert allowed(ours.issue(home, "bob")) == ["sim:0", "sim:1"]
    pinned = f"grpcs://{target}/sim:1#sha256={fingerprint(certificate.read_bytes())}"
    allowed(alice)
    monkeypatch.delenv("UMD_TLS_CA")
    device: Any = umd.open_device(pinned)
    np.testing.assert_array_equal(double(device), 2 * X)
    for unknown in (None, theirs.issue(home, "mallory", "alice")):
        with pytest.raises(UmdError, match=r"UNAVAILABLE|DEADLINE"):
            allowed(unknown)
    with pytest.raises(NotAuthorisedError, match="refused"):
        allowed(ours.issue(home, "strange", "../alice"))
    tokens.revoke("alice")
    server.wait_for(lambda: device._session.link.lost is not None, REVOKE_SECONDS)
    with pytest.raises(NotAuthorisedError, match="revoked"):
        double(device)
    with pytest.raises(NotAuthorisedError, match="the certificate of 'alice' is refused"):
        allowed(alice)
    device.close()
    server.check_sound()


def test_a_renewed_certificate_is_shown_without_a_restart(
    start_server: Start, home: Path, monkeypatch: pytest.MonkeyPatch, tokens: TokenFile
) -> None:
    authority = Authority()
    monkeypatch.setenv("UMD_TLS_CA", str(authority.write(home / "ca.pem")))
    certificate, key = authority.issue(home, "server")
    monkeypatch.setenv("UMD_TOKEN", add(tokens, "alice"))
    server = start_server("--tls-cert", str(certificate), "--tls-key", str(key), "--tokens", str(tokens.path))
    target = f"localhost:{server.address.rpartition(':')[2]}"

    def shown() -> str:
        with Client(Access(target, secure=True, fingerprint=fingerprint(certificate.read_bytes()))) as client:
            client.describe()
        return fingerprint(certificate.read_bytes())

    with Client(target, secure=True) as client:
        assert client.describe().devices
    before = shown()
    first = certificate.read_bytes()
    authority.issue(home, "server")
    renewed = certificate.read_bytes()
    certificate.write_bytes(first)  # the key is new, the certificate is not: half of a renewal changes nothing
    assert shown() == before
    certificate.write_bytes(renewed)
    assert shown() == fingerprint(renewed) != before
    server.check_sound()
