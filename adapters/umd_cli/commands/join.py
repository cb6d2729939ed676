"""`umd join`: become known to a server."""

from __future__ import annotations

from typing import Annotated

import typer

from umd_cli.output import Json, facts, show


def join(
    line: Annotated[str, typer.Argument(help="What the operator gave you: grpcs://host:port/device#sha256=…&token=…")],
    json: Json = False,
) -> None:
    """Exchange a join line's one-time token for a lasting one, and remember the server and its certificate.

    From then on the address alone will do: grpcs://host:port/device.
    """
    from umd_core.errors import UnsupportedError
    from umd_grpc.client import Client
    from umd_grpc.client.access import join, read_url

    scheme, given, device = read_url(line)
    if not given.token:
        raise UnsupportedError("a join line ends with #…token=…; the operator prints one: `umd token invite NAME`")
    with Client(join(given)) as client:
        devices = [f"{scheme}://{given.target}/{found.name}" for found in client.describe().devices]
    named = [name for name in devices if name.endswith(f"/{device}")] or devices
    found = {"server": given.target, "sha256": given.fingerprint, "devices": devices, "use": named[0] if named else ""}
    show(found, json, lambda: [facts(found)])
