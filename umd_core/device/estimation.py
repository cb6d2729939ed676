"""What a device says of how long a command buffer would take, when its caps have the flag "estimate"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from umd_core.commands import CommandBuffer

MICROSECONDS = 1e6
"""In a second."""


class Estimate(NamedTuple):
    """One command as the device would run it.

    Attributes:
        command: its index in program order.
        name: the kernel's name, or "copy", "fill", "update".
        queue: which queue it runs on.
        start, seconds: when it begins, and how long it takes.
        bound: what takes most of that: "launch", "memory" or "compute".
        operations: arithmetic, two a multiply-add.
        traffic: bytes read and written.
        waves: how often the device is filled with workgroups; below 1 part of it has nothing to do.
        occupancy: share of the invocations that the device can hold at once, 0 to 1.
        node: where the command came from, "" when that is not known.
    """

    command: int
    name: str
    queue: int
    start: float
    seconds: float
    bound: str
    operations: int
    traffic: int
    waves: float
    occupancy: float
    node: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A command buffer as a device would run it.

    Attributes:
        profile: the device that the numbers are of.
        source: where they come from.
        commands: in program order.
        seconds: from the start of the first command to the end of the last one.
        error: how far off such estimates are known to be, in words.
        needed: bytes of device memory: arguments, constants and the arena.
        capacity: bytes that the device has.
    """

    profile: str
    source: str
    commands: Sequence[Estimate]
    seconds: float
    error: str
    needed: int
    capacity: int

    @property
    def lacking(self) -> int:
        """Bytes by which the program is larger than the device's memory, 0 when it fits."""
        return max(0, self.needed - self.capacity)


class Estimates(Protocol):
    """What a device with the flag "estimate" offers beside `Device`. Nothing is run or allocated."""

    def estimate(self, command_buffer: CommandBuffer) -> Timeline:
        """Returns how long each command would take. What the host does, and its transfers, is not part of it."""
        ...


def memory_needed(command_buffer: CommandBuffer) -> int:
    """Returns the bytes of device memory that one submission in flight takes: arguments, constants and the arena.

    An output that shares an input's buffer counts once. Arguments that are not described count by what is touched.
    """
    constants = sum(map(len, command_buffer.constants))
    descs = [*command_buffer.inputs, *command_buffer.outputs]
    if not descs:
        descs_size = sum(slot.min_size for slot in command_buffer.slots[: command_buffer.argument_count])
        return descs_size + constants + command_buffer.arena_size
    shared = {len(command_buffer.inputs) + output for output, _ in command_buffer.aliases}
    sizes = [desc.byte_size for place, desc in enumerate(descs) if place not in shared]
    return sum(sizes) + constants + command_buffer.arena_size


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """Returns a timeline in the Trace Event Format, which Perfetto and chrome://tracing show.

    Source: Google, Trace Event Format, 2016: complete events ("X") in microseconds, metadata events ("M").
    """
    queues = sorted({command.queue for command in timeline.commands})
    named = [{"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": timeline.profile}}]
    named += [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": queue, "args": {"name": f"queue {queue}"}}
        for queue in queues
    ]
    return {
        "traceEvents": [*named, *map(_event, timeline.commands)],
        "displayTimeUnit": "ns",
        "otherData": {"profile": timeline.profile, "source": timeline.source, "error": timeline.error},
    }


def _event(command: Estimate) -> dict[str, Any]:
    return {
        "name": command.name,
        "cat": command.bound,
        "ph": "X",
        "pid": 0,
        "tid": command.queue,
        "ts": command.start * MICROSECONDS,
        "dur": command.seconds * MICROSECONDS,
        "args": {
            "command": command.command,
            "node": command.node,
            "bound": command.bound,
            "operations": command.operations,
            "bytes": command.traffic,
            "waves": round(command.waves, 3),
            "occupancy": round(command.occupancy, 3),
        },
    }
