"""`umd serve`: translate and execute for clients."""

from __future__ import annotations

from typing import Annotated

import typer

from umd_cli.output import Json


def serve(
    devices: Annotated[
        list[str] | None,
        typer.Option(
            "--backend", "--device", "-d", help='What to serve: "sim" (its device 0) or "sim:0"; may be repeated.'
        ),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", "-l", help="127.0.0.1:50051 (port 0: any free one) or unix:/path; may be repeated."),
    ] = None,
    grace: Annotated[
        float, typer.Option("--grace", min=0.0, help="Seconds that SIGTERM leaves to work under way.")
    ] = 30.0,
    allow_insecure: Annotated[
        bool, typer.Option("--allow-insecure", help="Listen beyond loopback though there is no TLS and no token.")
    ] = False,
    json: Json = False,
) -> None:
    """Translate and execute for clients, until SIGTERM or Ctrl-C.

    One JSON line on stdout says when it listens and where; its log, a line a second under load, goes to stderr.
    """
    from umd_grpc.server import DEFAULT_LISTEN, serve

    names = [name if ":" in name else f"{name}:0" for name in devices or ["sim"]]
    serve(names, listen or DEFAULT_LISTEN, grace_seconds=grace, allow_insecure=allow_insecure)
