"""`umd inspect`: what is in an ONNX model, and what it needs of a device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from umd_cli.estimates import ESTIMATOR, as_data, check_room, estimated, profiled, render
from umd_cli.exits import Exit
from umd_cli.models import Dims, Runnable, Shapes, filled, is_onnx, opened_model, shapes, sizes
from umd_cli.output import Json, facts, show, table

if TYPE_CHECKING:
    from umd_core.commands import CommandBuffer
    from umd_core.device import Device
    from umd_onnx.inspection import Contents


def inspect(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The model.")],
    device: Annotated[
        str, typer.Option("--device", help="Where it is to run; the profile's, or the first device.")
    ] = "",
    profile: Annotated[
        str, typer.Option("--profile", help="Whose time to estimate: h200, a100, t4, cpu, or a .toml file.")
    ] = "",
    dim: Dims = None,
    shape: Shapes = None,
    json: Json = False,
) -> None:
    """Show a model's inputs, ops and parameters, what a device lacks for it, and its memory and time there.

    Exits with 1 if it cannot run there. Values that decide shapes are taken as 0 and 1. Times are estimates: the
    device's, where it makes any, or those of a profile.
    """
    from umd_onnx.inspection import inspect as contents_of
    from umd_onnx.loading import load_model

    if not is_onnx(file):
        raise typer.BadParameter(f"{file} is no ONNX model")
    contents = contents_of(load_model(file))
    found: dict[str, Any] = _contents(contents)
    if not contents.missing:
        found |= _program(file, device, shapes(shape or []), sizes(dim or []), profile)
    show(found, json, lambda: _render(found))
    if contents.missing or "refused" in found:
        raise typer.Exit(Exit.FOUND)


def _contents(contents: Contents) -> dict[str, Any]:
    return {
        "producer": contents.producer,
        "opset": contents.opset,
        "inputs": contents.inputs,
        "outputs": contents.outputs,
        "parameters": contents.parameters,
        "parameter_bytes": contents.bytes,
        "missing": contents.missing,
        "ops": {name: {"count": contents.ops[name], "how": contents.how[name]} for name in sorted(contents.ops)},
    }


def _program(
    file: Path, device: str, given: dict[str, list[int]], dims: dict[str, int], profile: str
) -> dict[str, Any]:
    """Returns what the program for inputs of these shapes needs, or why there is none."""
    from umd_core.errors import UmdError, UnsupportedError

    model = opened_model(file, device or (profiled(profile) if profile else ""), given, dims)
    try:
        arrays = filled(model, [], dims, random=True)
        buffer = model.prepare(arrays)
        described = {name: f"{array.dtype}[{','.join(map(str, array.shape))}]" for name, array in arrays.items()}
        found = {"device": model.device.name, "for": described, **_needs(buffer, model.device.caps().memory)}
        return found | _time(buffer, model.device, profile)
    except UnsupportedError as error:
        return {"device": model.device.name, "refused": str(error), "lacks": _lacking(file, model, given, dims)}
    except UmdError as error:
        return {"device": model.device.name, "refused": str(error)}
    finally:
        model.close()


def _time(buffer: CommandBuffer | None, device: Device, profile: str) -> dict[str, Any]:
    """Returns the estimated time, nothing when nobody says.

    Raises:
        OutOfMemoryError: the program is larger than the memory of the profile's device.
    """
    timeline = None if buffer is None else estimated(buffer, device, profile)
    if timeline is None:
        return {}
    check_room(timeline)
    return {"estimate": as_data(timeline)}


def _lacking(file: Path, model: Runnable, given: dict[str, list[int]], dims: dict[str, int]) -> dict[str, str]:
    """Returns every op that the device lacks a kernel for, with the reason. The simulator, which has all, is asked."""
    from umd_core.errors import UmdError
    from umd_onnx import load
    from umd_onnx.inspection import lacking

    with contextlib.suppress(UmdError):  # nothing can run it: the reason that is told already stands alone
        arrays = filled(model, [], dims, random=True)
        with load(file, ESTIMATOR, shapes=dict(given), dims=dims) as session:
            return lacking(session.imported(arrays).graph, model.device.caps())
    return {}


def _needs(buffer: CommandBuffer | None, memory: int) -> dict[str, Any]:
    if buffer is None:
        return {"launches": 0}
    arguments = sum(desc.byte_size for desc in (*buffer.inputs, *buffer.outputs))
    return {
        "launches": len(buffer.commands),
        "kernels": len(buffer.kernels),
        "command_buffer_bytes": len(bytes(buffer)),
        "memory": {"weights, inputs, outputs": arguments, "arena": buffer.arena_size, "of": memory},
    }


def _render(found: dict[str, Any]) -> Iterable[RenderableType]:
    plain = {name: value for name, value in found.items() if not isinstance(value, dict)}
    joined: dict[str, str] = {
        str(name): ", ".join(f"{key} {value}" for key, value in found[name].items())
        for name in ("inputs", "outputs", "for", "memory")
        if name in found
    }
    yield facts({**plain, **joined})
    yield table(("op", ">count", "how"), [(name, row["count"], row["how"]) for name, row in found["ops"].items()])
    if found.get("lacks"):
        yield table(("op that the device lacks", "why"), found["lacks"].items())
    if "estimate" in found:
        yield from render(found["estimate"])
