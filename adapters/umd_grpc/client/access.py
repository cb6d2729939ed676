"""How a server is reached: whom the client trusts, what it shows, and that a token never travels in the clear."""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from umd_core.errors import DeviceLostError, NotAuthorisedError, UnsupportedError
from umd_grpc._pb.umd import access_pb2 as pb
from umd_grpc.addresses import is_local, split_host
from umd_grpc.client import joined
from umd_grpc.client.address import split_address
from umd_grpc.client.errors import call_error
from umd_grpc.client.forks import check_opening
from umd_grpc.files import read_limited

CA, CERTIFICATE, KEY, TOKEN = "UMD_TLS_CA", "UMD_TLS_CERT", "UMD_TLS_KEY", "UMD_TOKEN"
SECONDS = 10.0
FILE_LIMIT = 1 << 20
NAME = "umd"
_SCHEMES = {"grpc": False, "grpcs": True}
_ONE_TIME = "umdj_"
_JOIN = "/umd.access.Access/Join"
_OVERRIDE = "grpc.ssl_target_name_override"


@dataclass(frozen=True, slots=True)
class Access:
    """How a server is reached.

    Attributes:
        target: "host:port" or "unix:/path".
        secure: whether to use TLS.
        fingerprint: SHA-256 of the only certificate that is trusted, hexadecimal; "" trusts UMD_TLS_CA or the
            system's roots.
        token: to show there, "" for none.
    """

    target: str
    secure: bool = False
    fingerprint: str = ""
    token: str = ""

    def resolved(self) -> Access:
        """Returns this with what the user's files and environment add; joins the server with a one-time token.

        What is given counts most, then what joining the server left, then UMD_TOKEN.

        Raises:
            NotAuthorisedError: the token would travel in the clear, or the one-time token is not accepted.
            UmdError: the server cannot be reached, or a file cannot be used.
        """
        if self.fingerprint and not self.secure:
            raise UnsupportedError("a fingerprint needs TLS: write grpcs://", device=self.target)
        known = joined.find(self.target)
        if known is not None and self.fingerprint not in ("", known.fingerprint):
            known = None
        found = self
        if known is not None and self.secure:
            found = replace(self, fingerprint=known.fingerprint)
        if self.token and not self.token.startswith(_ONE_TIME):
            return found.checked()
        if known is not None and (self.secure or not known.fingerprint):
            return replace(found, token=known.token).checked()
        if self.token:
            return join(self)
        return replace(found, token=os.environ.get(TOKEN, "")).checked()

    def checked(self) -> Access:
        """Returns this.

        Raises:
            NotAuthorisedError: the token would travel in the clear.
        """
        if self.token and not self.secure and not is_local(self.target):
            raise NotAuthorisedError(
                f"a token is not sent to {self.target} without TLS: write grpcs://, or use ssh -L to a loopback address"
            )
        return self

    def credentials(self) -> tuple[grpc.ChannelCredentials, list[tuple[str, Any]]]:
        """Returns the channel's credentials, and options that belong to them.

        Raises:
            NotAuthorisedError: the server shows another certificate than the pinned one.
            DeviceLostError: it cannot be reached.
            UnsupportedError: a file of the environment's cannot be read.
        """
        key, chain = _file(KEY), _file(CERTIFICATE)
        if self.fingerprint:
            pem = pinned(self.target, self.fingerprint)
            return grpc.ssl_channel_credentials(pem, key, chain), [(_OVERRIDE, certificate_name(pem))]
        return grpc.ssl_channel_credentials(_file(CA), key, chain), []

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns what every call carries."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


def reach(target: str | Access, *, secure: bool = False, token: str = "") -> Access:
    """Returns how a server is reached.

    Args:
        target: "host:port" or "unix:/path", or what says it all and is used as it is once resolved.
        secure: whether to use TLS.
        token: to show there; "" for what joining the server left, or UMD_TOKEN.

    Raises:
        UmdError: see `Access.resolved`.
    """
    return (target if isinstance(target, Access) else Access(target, secure, token=token)).resolved()


def read_url(name: str) -> tuple[str, Access, str]:
    """Returns (scheme, access, device) of a server's or device's name: "grpcs://host:port/sim:0#sha256=…".

    Raises:
        UnsupportedError: it is something else.
    """
    scheme, _, rest = name.partition(":")
    if scheme not in _SCHEMES:
        raise UnsupportedError("not the address of a server; it begins with grpc:// or grpcs://")
    target, device, fingerprint, token = split_address(rest)
    return scheme, Access(target, _SCHEMES[scheme], fingerprint, token), device


def _file(variable: str) -> bytes | None:
    """Returns the bytes of the file that a variable of the environment names, None when it names none."""
    name = os.environ.get(variable)
    if not name:
        return None
    try:
        return read_limited(Path(name), FILE_LIMIT)
    except OSError as error:
        raise UnsupportedError(f"{variable} names {name}: {error.strerror}") from error


def pinned(target: str, fingerprint: str, timeout: float = SECONDS) -> bytes:
    """Returns the server's certificate, PEM, when it is the one that was pinned.

    gRPC's own connections then trust this certificate and no other, so nobody can come in between afterwards.

    Raises:
        NotAuthorisedError: it is another one.
        DeviceLostError: the server cannot be reached.
    """
    host, port = split_host(target)
    try:
        pem = ssl.get_server_certificate((host, int(port)), timeout=timeout)
    except (OSError, ValueError) as error:
        raise DeviceLostError(target, f"its certificate cannot be read: {error}") from error
    shown = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    if not hmac.compare_digest(shown, fingerprint):
        raise NotAuthorisedError(
            f"{target} shows a certificate with SHA-256 {shown}, {fingerprint} was expected: either the server has a "
            "new one and must be joined again, or somebody is in between"
        )
    return pem.encode()


def certificate_name(pem: bytes) -> str:
    """Returns a name that a certificate is for: gRPC compares it, though the fingerprint has said it all."""
    from cryptography import x509  # noqa: PLC0415  # only pinned servers need it
    from cryptography.x509.oid import NameOID  # noqa: PLC0415  # only pinned servers need it

    certificate = x509.load_pem_x509_certificate(pem)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common: Sequence[Any] = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(common[0].value) if common else ""
    found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return found[0].replace("*", NAME, 1) if found else ""


def join(access: Access, timeout: float = SECONDS) -> Access:
    """Returns the access that a one-time token is exchanged for, and remembers it in the user's file.

    A token that is a lasting one already is only remembered.

    Raises:
        NotAuthorisedError: the token was used before, has expired or never was one; or it would travel in the clear.
        UmdError: the server cannot be reached, or the file cannot be written.
    """
    access.checked()
    joined.check()
    if not access.token.startswith(_ONE_TIME):
        joined.keep(access.target, joined.Joined(access.fingerprint, access.token))
        return access
    check_opening(access.target)
    if access.secure:
        credentials, options = access.credentials()
        channel = grpc.secure_channel(access.target, credentials, options=options)
    else:
        channel = grpc.insecure_channel(access.target, options=[("grpc.enable_http_proxy", 0)])
    with channel:
        method: Any = channel.unary_unary(_JOIN, pb.JoinRequest.SerializeToString, pb.JoinResponse.FromString)
        try:
            answer = method(pb.JoinRequest(), timeout=timeout, metadata=access.metadata())
        except grpc.RpcError as error:
            raise call_error(error, access.target) from error
    joined.keep(access.target, joined.Joined(access.fingerprint, answer.token, answer.name))
    return replace(access, token=answer.token)
