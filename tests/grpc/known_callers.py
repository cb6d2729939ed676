"""A server for tests, with limits of its own, whose callers are who their metadata says.

python known_callers.py --listen 127.0.0.1:0 '{"callers": {"anna": {"quota": {"memory": 4096}}}, "limits": {}}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc

from umd_core.errors import NotAuthorisedError
from umd_grpc.limits import DEFAULT
from umd_grpc.server import app
from umd_grpc.server.identity import CALLER, LOCAL, Identity, Quota
from umd_grpc.server.interceptors import Activity
from umd_grpc.server.settings import Settings, WorkerSettings


class Known(Activity):
    """Sets the caller of each call."""

    callers: dict[str, Identity]

    @asynccontextmanager
    async def around(self, context: Any) -> AsyncGenerator[None]:
        """Recognises the caller by its word."""
        CALLER.set(self.callers.get(dict(context.invocation_metadata()).get("who", ""), LOCAL))
        async with super().around(context):
            yield


def identity(name: str, quota: dict[str, int] | None = None, devices: list[str] | None = None, **more: Any) -> Identity:
    """Returns an identity as the arguments describe it."""
    return Identity(name, None if devices is None else frozenset(devices), Quota(**(quota or {})), **more)


class Server(app.Server):
    """The server, with one method more: it ends the sessions of a caller."""

    async def start(self) -> None:
        """Listens."""
        await super().start()
        runtime = self._runtime

        async def revoke(name: bytes, context: Any) -> bytes:
            count = runtime.end_sessions(name.decode(), NotAuthorisedError("the token was revoked"))
            return str(count).encode()

        methods: dict[str, Any] = {"Revoke": grpc.unary_unary_rpc_method_handler(revoke)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", methods),))


def main() -> None:
    """Serves until it is told to end."""
    given = json.loads(sys.argv[3])
    Known.callers = {name: identity(name, **facts) for name, facts in given.get("callers", {}).items()}
    for name, replacement in (("Activity", Known), ("Server", Server)):
        setattr(app, name, replacement)  # the server is put together there
    limits = replace(DEFAULT, **given.get("limits", {}))
    workers = WorkerSettings(given.get("workers", "auto"))
    app.serve(Settings(listen=(sys.argv[2],), limits=limits, workers=workers, grace_seconds=20))


if __name__ == "__main__":
    main()
