"""`umd dis`: a command buffer as text, and how a device would make its launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from umd_cli.devices import explains, opened
from umd_cli.output import Json, show

if TYPE_CHECKING:
    from umd_core.device import Choice

Choices = Mapping[int, Sequence["Choice"]]


def dis(
    file: Annotated[Path, typer.Argument(help="A command buffer, of version 1 or of the original format.")],
    device: Annotated[
        str | None, typer.Option("--device", help="Say of each launch what this device would run, and how.")
    ] = None,
    json: Json = False,
) -> None:
    """Print a command buffer: header, kernels, slots, then one line a command."""
    from umd_core.disassemble import disassemble, to_json

    raw = file.read_bytes()
    data = to_json(raw)
    choices = {} if device is None else explained(raw, device)
    if json:
        show(_with_choices(data, choices) if choices else data, True, tuple)
        return
    lines = disassemble(raw).splitlines()
    typer.echo("\n".join(_annotated(lines, data, choices, device or "")))


def explained(raw: bytes, name: str) -> Choices:
    """Returns how a device would make each launch of a command buffer, by command.

    Raises:
        DecodeError: the bytes break a rule, or are of the original format.
        UnsupportedError: there is no such device, or it does not say.
    """
    from umd_core.commands import Dispatch
    from umd_core.encoding import decode
    from umd_core.errors import UnsupportedError

    command_buffer = decode(raw)
    with opened(name) as device:
        explaining = explains(device)
        if explaining is None:
            raise UnsupportedError("does not say how it makes launches; sim and cuda-cpu do", device=name)
        return {
            index: tuple(explaining.explain(command_buffer.kernels[command.kernel], command.parameters))
            for index, command in enumerate(command_buffer.commands)
            if isinstance(command, Dispatch)
        }


def _with_choices(data: dict[str, Any], choices: Choices) -> dict[str, Any]:
    commands = [
        {**command, "choices": [choice._asdict() for choice in choices[index]]} if index in choices else command
        for index, command in enumerate(data["commands"])
    ]
    return {**data, "commands": commands}


def _annotated(lines: Sequence[str], data: dict[str, Any], choices: Choices, device: str) -> Iterator[str]:
    """Returns the lines of a disassembly, each launch followed by how the device makes it."""
    first = 1 + len(data["kernels"]) + len(data["slots"]) if choices else 0
    for number, line in enumerate(lines):
        yield line
        for choice in choices.get(number - first, ()) if choices else ():
            yield f"    {device}: {choice}"
        if choices.get(number - first) == ():
            yield f"    {device}: has no such kernel"
