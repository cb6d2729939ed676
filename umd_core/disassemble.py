"""Command buffers as text, one line a command, and the same as data. Reads both formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from umd_core.commands import CommandBuffer
from umd_core.encoding.decode import decode
from umd_core.encoding.describe import Json, describe
from umd_core.encoding.layout import LIBRARY_LIMITS, Limits
from umd_core.encoding.original import decode_original, is_original

Source = CommandBuffer | bytes | bytearray | memoryview


def disassemble(source: Source, limits: Limits = LIBRARY_LIMITS) -> str:
    """Returns the text of a command buffer: header, kernels, slots, then one line a command.

    Raises:
        DecodeError: the bytes break a rule.
    """
    return "\n".join(_lines(to_json(source, limits))) + "\n"


def to_json(source: Source, limits: Limits = LIBRARY_LIMITS) -> Json:
    """Returns everything that `disassemble` prints, as data fit for JSON.

    Raises:
        DecodeError: the bytes break a rule.
    """
    if isinstance(source, CommandBuffer):
        return describe(source)
    if is_original(source):
        return {"format": "original", "size": memoryview(source).nbytes, **decode_original(source)._asdict()}
    return describe(decode(source, limits))


def _lines(data: Json) -> Iterator[str]:
    if data["format"] == "original":
        yield f"original command buffer, {data['size']} bytes"
        name, count = _safe(data["kernel_name"]), data["element_count"]
        yield f"{name}  {count} elements  grid {data['grid']}  block {data['block']}"
        return
    flags = " ".join(["", *data["flags"]])
    yield f"umd command buffer {data['version']}, {data['size']} bytes, {len(data['commands'])} commands{flags}"
    for kernel in data["kernels"]:
        sizes = "".join(f" {name}={size}" for name, size in kernel["sizes"].items())
        yield (
            f"kernel {kernel['index']}  {kernel['name']}<{', '.join(kernel['types'])}> abi {kernel['abi']}{sizes}  "
            f"{kernel['parameter_size']} bytes  {' '.join(kernel['bindings'])}  {kernel['digest']}"
        )
    constants = iter(data["constants"])
    for slot in data["slots"]:
        yield _slot_line(slot, next(constants) if slot["kind"] == "constant" else "")
    width = len(str(len(data["commands"])))
    for command in data["commands"]:
        yield _command_line(command, width)
    for event in data["events"]:
        yield f"signal {event['signal']} after command {event['command']}"
    for patch in data["patches"]:
        addend = f" + {patch['addend']}" if patch["addend"] else ""
        place = f"command {patch['command']} byte {patch['offset']}"
        yield f"patch {place}: {patch['kind']} value {patch['symbol']}{addend}"
    for section in data["extra"]:
        yield f"section {section['kind']}, {len(section['bytes']) // 2} bytes, unknown"


def _slot_line(slot: Json, constant: str) -> str:
    parts = [f"slot {slot['index']}  {slot['kind']} {slot['access']}", f"{slot['min_size']} bytes"]
    parts.append(f"aligned {slot['alignment']}")
    if slot["alias_group"]:
        parts.append(f"alias group {slot['alias_group']}")
    if slot["kind"] == "handle":
        parts.append(f"handle {slot['value']:#x}")
    if slot["kind"] == "arena":
        parts.append(f"peak {slot['length']}")
    if slot["kind"] == "constant":
        parts.append(_hex(constant))
    return "  ".join(parts)


def _command_line(command: Json, width: int) -> str:
    parts = [f"{command['index']:{width}}  {command['op']}"]
    if "kernel" in command:
        parts[0] += f" {command['kernel']}<{', '.join(command['types'])}>"
        memory = f" +{command['workgroup_memory']} B" if command["workgroup_memory"] else ""
        parts.append(f"{_times(command['workgroup_count'])} of {_times(command['workgroup_size'])}{memory}")
    parts += [
        f"{ref['access']} {ref['name']}=slot{ref['slot']}[{ref['offset']}:{ref['offset'] + ref['length']}]"
        for ref in command.get("refs", ())
    ]
    parts += [f"{name}={_short(value)}" for name, value in command.get("parameters", {}).items()]
    if "pattern" in command:
        parts.append(f"pattern {command['pattern']}")
    if "bytes" in command:
        parts.append(_hex(command["bytes"]))
    if "label" in command:
        parts.append(f"{command['id']} {json.dumps(command['label'])}")
    if command["deps"]:
        parts.append(f"after {','.join(map(str, command['deps']))}")
    if command["queue"]:
        parts.append(f"queue {command['queue']}")
    debug = [_safe(text) for text in command.get("debug", {}).values() if text]
    return "  ".join(parts) + (f"  ; {' '.join(debug)}" if debug else "")


def _times(numbers: Sequence[int]) -> str:
    return "x".join(map(str, numbers))


def _short(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _hex(text: str) -> str:
    return text if len(text) <= 32 else f"{text[:32]}... ({len(text) // 2} bytes)"


def _safe(text: str) -> str:
    """Returns text that cannot disturb a terminal: quoted when anything in it does not print."""
    return text if text.isprintable() else json.dumps(text)
