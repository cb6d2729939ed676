"""Clients of a server: calls for threads and asyncio, and devices of a server as devices of this process."""

from __future__ import annotations

from umd_grpc.client.calls import AsyncClient, Client, Request, Translation

__all__ = ["AsyncClient", "Client", "Request", "Translation"]
