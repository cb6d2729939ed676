"""The server: translation, sessions and bulk data over gRPC, for many clients who do not trust each other."""

from __future__ import annotations

from umd_grpc.addresses import is_local
from umd_grpc.server.app import SERVICES, Server, main, run, serve
from umd_grpc.server.protection import check_addresses
from umd_grpc.server.settings import DEFAULT_LISTEN, Settings

__all__ = ["DEFAULT_LISTEN", "SERVICES", "Server", "Settings", "check_addresses", "is_local", "main", "run", "serve"]
