"""Addresses that are listened on or connected to: "host:port", "[::1]:port", "unix:/path"."""

from __future__ import annotations

import ipaddress

UNIX = ("unix:", "unix-abstract:")


def is_unix(address: str) -> bool:
    """Returns whether an address is a socket of this machine's file system, or an abstract one."""
    return address.startswith(UNIX)


def split_host(address: str) -> tuple[str, str]:
    """Returns (host without brackets, port) of "host:port"; the port is "" when there is none."""
    host, colon, port = address.rpartition(":")
    if not colon or "]" in port:
        host, port = address, ""
    return host.removeprefix("[").removesuffix("]"), port


def join_host(host: str, port: str) -> str:
    """Returns "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(address: str) -> bool:
    """Returns whether an address can be reached from this machine only."""
    if is_unix(address):
        return True
    host = split_host(address)[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_every(address: str) -> bool:
    """Returns whether an address means every interface of the machine."""
    host = split_host(address)[0]
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host in ("", "*")
