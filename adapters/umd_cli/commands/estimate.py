"""`umd estimate`: how long a model or a command buffer would take on a device, without it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from umd_cli.estimates import as_data, check_room, estimated, profiled, render
from umd_cli.models import Dims, Shapes, filled, opened_model, shapes, sizes
from umd_cli.output import Json, show

if TYPE_CHECKING:
    from umd_core.commands import CommandBuffer
    from umd_core.device.estimation import Timeline

MAGIC = b"UMDCMD"


def estimate(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A model, or a command buffer.")],
    profile: Annotated[
        str, typer.Option("--profile", help="Of which device: h200, a100, t4, cpu, or a .toml file (umd calibrate).")
    ] = "",
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write the timeline here, for Perfetto or chrome://tracing.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="Translate a model for this device; for the profile's by default.")
    ] = "",
    dim: Dims = None,
    shape: Shapes = None,
    json: Json = False,
) -> None:
    """Estimate how long each kernel would take on a device: launches, arithmetic, memory. Nothing is run.

    A model that is larger than the device's memory is refused, with both sizes.
    """
    buffer = _program(file, device or profiled(profile), shapes(shape or []), sizes(dim or []))
    timeline = _timeline(buffer, device, profile)
    check_room(timeline)
    if trace is not None:
        _write(timeline, trace)
    found = as_data(timeline)
    show(found, json, lambda: render(found))


def _program(file: Path, device: str, given: dict[str, list[int]], dims: dict[str, int]) -> CommandBuffer:
    """Returns the command buffer in a file, or that of the model in it."""
    from umd_core.commands import CommandBuffer
    from umd_core.encoding import decode

    with file.open("rb") as handle:
        is_program = handle.read(len(MAGIC)) == MAGIC
    if is_program:
        return decode(file.read_bytes())
    model = opened_model(file, device, given, dims)
    try:
        return model.prepare(filled(model, [], dims, random=True)) or CommandBuffer()
    finally:
        model.close()


def _timeline(buffer: CommandBuffer, device: str, profile: str) -> Timeline:
    from umd_cli.devices import opened
    from umd_core.errors import UnsupportedError

    if profile or not device:
        found = estimated(buffer, None, profile)
    else:
        with opened(device) as named:
            found = estimated(buffer, named, "")
    if found is None:
        raise UnsupportedError("does not say how long programs take; name a --profile", device=device)
    return found


def _write(timeline: Timeline, file: Path) -> None:
    import json

    from umd_core.device.estimation import trace_events

    file.write_text(json.dumps(trace_events(timeline)), encoding="utf-8")
