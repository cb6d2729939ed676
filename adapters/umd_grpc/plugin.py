"""Registers the backends `grpc` and `grpcs`: devices of a server."""

from __future__ import annotations

from umd_core.device import BackendInfo, Device, Unavailable
from umd_core.hookspecs import hookimpl

PRIORITY = -10


@hookimpl
def umd_register_backends() -> list[BackendInfo]:
    """Returns the backends of this package."""
    return [
        BackendInfo("grpc", probe=_probe, open=_open, priority=PRIORITY),
        BackendInfo("grpcs", probe=_probe, open=_open_secure, priority=PRIORITY),
    ]


def _probe() -> Unavailable:
    return Unavailable("needs an address, for example grpc://127.0.0.1:50051/sim:0")


def _open(rest: str) -> Device:
    return _connect("grpc", rest)


def _open_secure(rest: str) -> Device:
    return _connect("grpcs", rest)


def _connect(scheme: str, rest: str) -> Device:
    from umd_grpc.client.access import read_url  # noqa: PLC0415  # gRPC loads when a device is opened
    from umd_grpc.client.remote import RemoteDevice  # noqa: PLC0415  # loaded when a device is opened, not before

    _, access, device = read_url(f"{scheme}:{rest}")
    return RemoteDevice(access, device)
