"""Command buffers as plain data: what `disassemble` prints and `diff` compares."""

from __future__ import annotations

import math
from typing import Any

from umd_core.commands import (
    READ,
    WRITE,
    Command,
    CommandBuffer,
    Copy,
    Dispatch,
    Fill,
    Flag,
    Mark,
    Patch,
    PatchKind,
    Ref,
    Slot,
    SlotKind,
    Update,
)
from umd_core.encoding.layout import VERSION
from umd_core.kernels import KernelRecord

Json = dict[str, Any]
_ACCESS = {0: "-", READ: "r", WRITE: "w", READ | WRITE: "rw"}


def describe(cb: CommandBuffer) -> Json:
    """Returns a command buffer as data fit for JSON."""
    commands = [_command(cb, index, command) for index, command in enumerate(cb.commands)]
    return {**describe_header(cb), "commands": commands}


def describe_header(cb: CommandBuffer) -> Json:
    """Returns everything but the commands."""
    minor = cb.newer.minor if cb.newer else VERSION[1]
    return {
        "format": "v1",
        "version": f"{VERSION[0]}.{minor}",
        "size": len(bytes(cb)),
        "flags": [str(flag.name) for flag in Flag if cb.flags & flag],
        "compat": cb.compat,
        "kernels": [_kernel(index, record) for index, record in enumerate(cb.kernels)],
        "slots": [_slot(index, slot) for index, slot in enumerate(cb.slots)],
        "constants": [data.hex() for data in cb.constants],
        "events": [event._asdict() for event in cb.events],
        "patches": [_patch(patch) for patch in cb.patches],
        "extra": [
            {"kind": kind, "flags": flags, "stride": stride, "bytes": data.hex()}
            for kind, flags, stride, data in cb.extra
        ],
    }


def _kernel(index: int, record: KernelRecord) -> Json:
    row = record.row
    return {
        "index": index,
        "name": row.name,
        "abi": row.abi,
        "types": [dtype.name for dtype in record.types],
        "sizes": {name: size for (name, _), size in zip(row.sizes, record.sizes, strict=True)},
        "parameter_size": record.size,
        "bindings": [operand.name for operand in row.operands],
        "digest": f"{row.digest:#018x}",
    }


def _slot(index: int, slot: Slot) -> Json:
    fields = slot._asdict()
    return {"index": index, **fields, "kind": SlotKind(slot.kind).name.lower(), "access": _ACCESS[slot.access]}


def _patch(patch: Patch) -> Json:
    return {**patch._asdict(), "kind": PatchKind(patch.kind).name}


def _ref(ref: Ref, name: str) -> Json:
    return {"name": name, **ref._asdict(), "access": _ACCESS[ref.access]}


def command_fields(cb: CommandBuffer, command: Command) -> Json:
    """Returns what a command does, as data: its opcode, and the fields that this opcode has."""
    fields: Json = {"op": type(command).__name__.upper()}
    if isinstance(command, Dispatch):
        record = cb.kernels[command.kernel]
        names = [operand.name for operand in record.row.operands]
        parameters = record.unpack(command.parameters)
        fields["kernel"] = record.row.name
        fields["abi"] = record.row.abi
        fields["types"] = [dtype.name for dtype in record.types]
        fields["workgroup_count"] = list(command.launch[:3])
        fields["workgroup_size"] = list(command.launch[3:6])
        fields["workgroup_memory"] = command.launch[6]
        fields["refs"] = [_ref(ref, name) for ref, name in zip(command.refs, names, strict=True)]
        fields["parameters"] = {name: _number(value) for name, value in parameters.items()}
    elif isinstance(command, Copy):
        fields["refs"] = [_ref(command.destination, "destination"), _ref(command.source, "source")]
    elif isinstance(command, Fill):
        fields["refs"] = [_ref(command.destination, "destination")]
        fields["pattern"] = command.pattern.hex()
    elif isinstance(command, Update):
        fields["refs"] = [_ref(command.destination, "destination")]
        fields["bytes"] = command.data.hex()
    elif isinstance(command, Mark):
        fields["id"] = command.id
        fields["label"] = command.label
    fields["deps"] = list(command.deps)
    fields["queue"] = command.queue
    return fields


def _command(cb: CommandBuffer, index: int, command: Command) -> Json:
    fields = {"index": index, **command_fields(cb, command)}
    if cb.debug:
        fields["debug"] = cb.debug[index]._asdict()
    return fields


def _number(value: Any) -> Any:
    """Returns a parameter fit for JSON, which has no NaN and no infinity."""
    if isinstance(value, tuple):
        return [_number(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
