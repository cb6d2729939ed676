"""`umd devices`: what can run command buffers here, and why something cannot."""

from __future__ import annotations

from umd_cli.output import Json, show, table


def devices(json: Json = False) -> None:
    """List backends and their devices, and say why one is not available."""
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
