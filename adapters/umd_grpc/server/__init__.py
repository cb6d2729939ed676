"""The server: translation, sessions and bulk data over gRPC, for many clients who do not trust each other."""

from __future__ import annotations

from umd_grpc.server.app import DEFAULT_LISTEN, SERVICES, Server, Settings, check_addresses, is_local, main, run, serve

__all__ = ["DEFAULT_LISTEN", "SERVICES", "Server", "Settings", "check_addresses", "is_local", "main", "run", "serve"]
