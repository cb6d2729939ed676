"""How long a program would take on a device: asked of one that says, as data and as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from rich.console import RenderableType

from umd_cli.devices import opened
from umd_cli.output import facts, table

if TYPE_CHECKING:
    from umd_core.commands import CommandBuffer
    from umd_core.device import Device
    from umd_core.device.estimation import Estimate, Estimates, Timeline

ESTIMATOR = "sim:0"
"""The device that estimates for any other, by profiles."""


def profiled(profile: str) -> str:
    """Returns the name of a device that estimates for a profile; "" is the simulator's own."""
    return f"{ESTIMATOR}?profile={profile}" if profile else ESTIMATOR


def estimated(command_buffer: CommandBuffer, device: Device | None, profile: str) -> Timeline | None:
    """Returns the timeline of a program: by a profile if one is named, else by the device; None when that cannot say.

    Raises:
        AttributeValueError, ConfigError, OSError: there is no such profile, or it is wrong.
    """
    if device is not None and not profile:
        if "estimate" not in device.caps().flags:
            return None
        return cast("Estimates", device).estimate(command_buffer)
    with opened(profiled(profile)) as estimator:
        return cast("Estimates", estimator).estimate(command_buffer)


def check_room(timeline: Timeline) -> None:
    """Checks that a program fits into the memory of the device that it was estimated for.

    Raises:
        OutOfMemoryError: it does not.
    """
    from umd_core.errors import OutOfMemoryError

    if timeline.lacking:
        capacity = timeline.capacity
        raise OutOfMemoryError(timeline.needed, 0, capacity, capacity, device=timeline.profile)


def as_data(timeline: Timeline) -> dict[str, Any]:
    """Returns a timeline as data: times in microseconds."""
    return {
        "profile": timeline.profile,
        "source": timeline.source,
        "error": timeline.error,
        "microseconds": round(timeline.seconds * 1e6, 3),
        "memory": {"needed": timeline.needed, "of": timeline.capacity},
        "kernels": [_row(name, commands, timeline.seconds) for name, commands in _by_kernel(timeline.commands)],
    }


def _by_kernel(commands: Sequence[Estimate]) -> list[tuple[str, list[Estimate]]]:
    """Returns the commands by name, those that take longest first."""
    found: dict[str, list[Estimate]] = defaultdict(list)
    for command in commands:
        found[command.name].append(command)
    return sorted(found.items(), key=lambda item: -sum(command.seconds for command in item[1]))


def _row(name: str, commands: Sequence[Estimate], seconds: float) -> dict[str, Any]:
    taken = sum(command.seconds for command in commands)
    bound: dict[str, int] = defaultdict(int)
    for command in commands:
        bound[command.bound] += 1
    return {
        "kernel": name,
        "launches": len(commands),
        "microseconds": round(taken * 1e6, 3),
        "share": round(taken / seconds, 4) if seconds else 0.0,
        "bound_by": dict(bound),
        "operations": sum(command.operations for command in commands),
        "bytes": sum(command.traffic for command in commands),
        "occupancy": round(sum(command.occupancy * command.seconds for command in commands) / (taken or 1.0), 4),
    }


def render(found: dict[str, Any]) -> Iterable[RenderableType]:
    """Returns what `as_data` returned, for people."""
    memory = found["memory"]
    yield facts(
        {
            "estimated": _time(found["microseconds"]),
            "for": found["profile"],
            "by": found["source"],
            "but": found["error"],
            "memory": f"{memory['needed']:,} of {memory['of']:,} bytes",
        }
    )
    headings = ("kernel", ">launches", ">time", ">share", "bound by", ">operations", ">bytes", ">occupancy")
    yield table(headings, (_cells(row) for row in found["kernels"]))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["kernel"],
        f"{row['launches']:,}",
        _time(row["microseconds"]),
        f"{row['share']:.1%}",
        ", ".join(f"{what} {count}" for what, count in row["bound_by"].items()),
        f"{row['operations']:.3g}",
        f"{row['bytes']:.3g}",
        f"{row['occupancy']:.0%}",
    )


def _time(microseconds: float) -> str:
    return f"{microseconds / 1e3:,.3f} ms" if microseconds >= 1e3 else f"{microseconds:,.1f} µs"
