"""`umd devices`: what can run command buffers here or on a server, and why something cannot."""

from __future__ import annotations

from typing import Annotated

import typer

from umd_cli.output import Json, show, table


def devices(
    server: Annotated[
        str | None, typer.Argument(help="A server, for example grpcs://host:port: list its devices instead.")
    ] = None,
    json: Json = False,
) -> None:
    """List backends and their devices, and say why one is not available."""
    if server is None:
        _here(json)
    else:
        _there(server, json)


def _here(json: bool) -> None:
    from dataclasses import asdict

    from umd_core.registry import devices as found

    entries = found()
    rows = [{**asdict(entry), "slow": entry.slow} for entry in entries]
    show(
        rows,
        json,
        lambda: [
            table(
                ("device", "backend", "available", "what it is, or why not", ">probe"),
                (
                    (
                        e.name,
                        e.backend or e.plugin,
                        "yes" if e.available else "no",
                        e.detail,
                        f"{e.seconds * 1e3:.0f} ms",
                    )
                    for e in entries
                ),
            )
        ],
    )


def _there(server: str, json: bool) -> None:
    """Lists the devices of a server that the caller may use."""
    from umd_grpc.client import Client
    from umd_grpc.client.access import read_url

    scheme, access, _ = read_url(server)
    with Client(access) as client:
        found = client.describe().devices
    rows = [
        {"name": f"{scheme}://{access.target}/{d.name}", "memory": d.memory, "kernels": len(d.kernels)} for d in found
    ]
    show(
        rows,
        json,
        lambda: [
            table(("device", ">memory", ">kernels"), ((r["name"], f"{r['memory']:,}", r["kernels"]) for r in rows))
        ],
    )
