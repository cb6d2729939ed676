"""`umd kernels`: the kernel table, and what a device runs of it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from umd_cli.devices import explains, opened
from umd_cli.output import Json, show, table

if TYPE_CHECKING:
    from umd_core.device import Caps
    from umd_core.kernels import KernelRow


def kernels(
    name: Annotated[str | None, typer.Argument(help="A kernel, to see its bindings and parameters.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="Say which of them this device runs.")] = None,
    json: Json = False,
) -> None:
    """List the kernels that command buffers may dispatch, or describe one."""
    from umd_core.errors import UnsupportedError
    from umd_core.kernels import BY_NAME, KERNELS

    caps, runs = (None, {}) if device is None else _asked(device)
    if name is None:
        rows = [
            {**_summary(row, caps), **_runs(row, runs)}
            for row in sorted(KERNELS.values(), key=lambda r: (r.level, r.family, r.name, r.abi))
        ]
        show(rows, json, lambda: [_listing(rows, device)])
        return
    if name not in BY_NAME:
        nearest = difflib.get_close_matches(name, BY_NAME, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(nearest)}?" if nearest else "`umd kernels` lists them"
        raise UnsupportedError(f"is not in the kernel table; {hint}", op=name)
    found = {**_details(BY_NAME[name], caps), **_runs(BY_NAME[name], runs)}
    show(found, json, lambda: _page(found, device))


def _asked(name: str) -> tuple[Caps, dict[str, str]]:
    """Returns what a device can do, and what runs each kernel there, as far as the device says."""
    from umd_core.kernels import BY_NAME

    with opened(name) as device:
        caps, explaining = device.caps(), explains(device)
        if explaining is None:
            return caps, {}
        return caps, {row.name: explaining.implementation(row) for row in BY_NAME.values()}


def _runs(row: KernelRow, runs: dict[str, str]) -> dict[str, str]:
    return {"runs": runs[row.name]} if row.name in runs else {}


def _summary(row: KernelRow, caps: Caps | None) -> dict[str, Any]:
    summary = {
        "name": row.name,
        "abi": row.abi,
        "level": row.level,
        "family": row.family,
        "bindings": [f"{o.name}:{o.access}" for o in row.operands],
        "digest": f"{row.digest:016x}",
        "mathematics": row.mathematics,
    }
    return summary if caps is None else {**summary, "supported": _supported(row, caps)}


def _supported(row: KernelRow, caps: Caps) -> str:
    """Returns "all", "none" or the number of type combinations that the device runs."""
    if row.name not in caps.kernels:
        return "none"
    allowed = caps.kernels[row.name]
    return "all" if allowed is None else f"{len(allowed)} type combinations"


def _details(row: KernelRow, caps: Caps | None) -> dict[str, Any]:
    patchable = {field.name for field in row.fields if field.patchable}
    return {
        **_summary(row, caps),
        "types": {name: [d.name for d in allowed] for name, allowed in row.types},
        "bindings": [
            {"name": o.name, "access": o.access, "type": o.type, "extents": list(o.box)} for o in row.operands
        ],
        "parameters": [
            {"name": name, "type": kind, "patchable": name in patchable} for name, kind in row.field_types()
        ],
        "sizes": {name: list(allowed) for name, allowed in row.sizes},
        "geometry": row.geometry,
        "alias": [list(pair) for pair in row.alias],
        "program": row.program,
        "atomic": row.atomic,
        "status": row.status,
        "deterministic": row.deterministic,
        "tolerance": row.tolerance,
        "source": row.source,
    }


def _listing(rows: list[dict[str, Any]], device: str | None) -> RenderableType:
    headings = ["kernel", ">abi", ">level", "family", "bindings", *([f"on {device}"] if device else [])]
    headings += [*(["run by"] if any("runs" in row for row in rows) else []), "mathematics"]
    return table(headings, (_cells(row) for row in rows))


def _cells(row: dict[str, Any]) -> list[object]:
    supported = [row[name] for name in ("supported", "runs") if name in row]
    return [
        row["name"], row["abi"], row["level"], row["family"], " ".join(row["bindings"]), *supported, row["mathematics"],
    ]  # fmt: skip


def _page(found: dict[str, Any], device: str | None) -> Iterable[RenderableType]:
    yield f"{found['name']} abi {found['abi']}, level {found['level']}, family {found['family']}"
    yield found["mathematics"]
    if found["source"]:
        yield found["source"]
    if device:
        runs = f", run by {found['runs']}" if found.get("runs") else ""
        yield f"on {device}: {found['supported']}{runs}"
    yield ""
    yield table(("type", "may be"), ((name, " ".join(allowed)) for name, allowed in found["types"].items()))
    yield ""
    yield table(
        ("binding", "access", "type", "over extents"),
        ((b["name"], b["access"], b["type"], " ".join(b["extents"])) for b in found["bindings"]),
    )
    yield ""
    yield table(
        ("parameter", "type", ""),
        ((p["name"], p["type"], "patchable" if p["patchable"] else "") for p in found["parameters"]),
    )
    facts = ("geometry", "program", "atomic", "status", "deterministic", "tolerance", "digest")
    yield ""
    yield table(("fact", "value"), ((fact, found[fact]) for fact in facts if found[fact] != ""))
