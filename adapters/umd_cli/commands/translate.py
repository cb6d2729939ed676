"""`umd translate`: one op into a command buffer."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from umd_cli import tensors
from umd_cli.devices import device_caps
from umd_cli.output import Json, facts, show

if TYPE_CHECKING:
    from umd_core.commands import CommandBuffer


def translate(
    op: Annotated[str | None, typer.Argument(help="The op, for example Conv. Left out with --request.")] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="An input: f32[1,3,8,8], or i64[2]=3,2 where its values matter."),
    ] = None,
    attributes: Annotated[list[str] | None, typer.Option("--attr", "-a", help="An attribute: strides=1,1.")] = None,
    request: Annotated[
        str | None,
        typer.Option("--request", help='A JSON file ("-" is stdin) with op, inputs and attributes.'),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the command buffer here.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="Use only kernels that this device runs.")] = None,
    legacy: Annotated[bool, typer.Option("--legacy", help="Write the original format (one-launch ops).")] = False,
    json: Json = False,
) -> None:
    """Translate one op, given by flags or JSON, and write the command buffer."""
    name, given, values = _asked(op, inputs or [], attributes or [], request)
    found, raw = _translated(name, given, values, device, legacy=legacy)
    if output is not None:
        output.write_bytes(raw)
        found["file"] = str(output)
    readable = {name: [tensors.short(desc) for desc in found[name]] for name in ("inputs", "outputs")}
    show(found, json, lambda: [facts({**found, **readable})])


def _asked(
    op: str | None, inputs: list[str], attributes: list[str], request: str | None
) -> tuple[str, list[Any], dict[str, Any]]:
    """Returns (op, inputs, attributes) from the flags or the JSON."""
    if request is None:
        if op is None:
            raise typer.BadParameter("name an op (`umd translate Add -i f32[2,3] -i f32[2,3]`) or give --request")
        return op, [tensors.tensor(text) for text in inputs], tensors.attributes(attributes)
    if op is not None or inputs or attributes:
        raise typer.BadParameter("--request says it all: leave out the op, --input and --attr")
    text = sys.stdin.read() if request == "-" else Path(request).read_text(encoding="utf-8")
    try:
        return tensors.request(json_module.loads(text))
    except json_module.JSONDecodeError as error:
        raise typer.BadParameter(f"{request} is not JSON: {error}") from error


def _translated(
    op: str, inputs: list[Any], attributes: dict[str, Any], device: str | None, *, legacy: bool
) -> tuple[dict[str, Any], bytes]:
    """Returns what is worth knowing about the command buffer, and its bytes."""
    import time

    from umd_core.translate import Translator

    translator = Translator(None if device is None else device_caps(device))
    start = time.perf_counter()
    buffer = translator.op(op, inputs, attributes)
    elapsed = time.perf_counter() - start
    raw = _original(buffer) if legacy else bytes(buffer)
    return {
        "format": "original" if legacy else "v1",
        "op": op,
        "inputs": [tensors.described(desc) for desc in buffer.inputs],
        "outputs": [tensors.described(desc) for desc in buffer.outputs],
        "kernels": [record.row.name for record in buffer.kernels],
        "commands": len(buffer.commands),
        "arena_bytes": buffer.arena_size,
        "bytes": len(raw),
        "translate_us": round(elapsed * 1e6, 1),
    }, raw


def _original(buffer: CommandBuffer) -> bytes:
    """Returns the original format's bytes of a buffer that is one launch."""
    from umd_core.commands import Dispatch
    from umd_core.encoding import encode_original
    from umd_core.errors import UnsupportedError

    commands = buffer.commands
    if len(commands) != 1 or not isinstance(commands[0], Dispatch):
        raise UnsupportedError(
            "the original format holds exactly one kernel launch, and this is not one; leave out --legacy"
        )
    return encode_original(buffer.kernels[commands[0].kernel].row.name, buffer.outputs[0].element_count)
