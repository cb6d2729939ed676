"""The device model: how long the commands of a program would take on a device that a profile describes.

A command takes a launch, then the longer of what its arithmetic and what its bytes take (the roofline), each lengthened
where the launch cannot fill the device:

- arithmetic by the **tail**: the processor with the most workgroups decides, so that 133 workgroups on 132 processors
  take as long as 264;
- bytes by **occupancy**: memory is at its bandwidth only when enough invocations wait for it.

What was measured of a kernel family, where a profile has it, then scales the roof.

Source: Williams, Waterman and Patterson, Roofline: An Insightful Visual Performance Model, 2009; Volkov, Better
Performance at Lower Occupancy, GTC 2010.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from umd_core.commands import Barrier, Command, CommandBuffer, Copy, Dispatch, Fill, Update
from umd_core.device.estimation import Estimate, Timeline, memory_needed
from umd_core.dtypes import DType
from umd_core.kernels import Geometry, KernelRecord
from umd_core.kernels.costs import Cost, cost, traffic
from umd_sim.timing_profile import ANY, Profile
from umd_sim.timing_queues import Work, schedule

ENOUGH = 0.25
"""Share of the invocations that a device holds from which on its memory is at its bandwidth (Volkov, 2010)."""


class Filling(NamedTuple):
    """How well a launch fills a device.

    Attributes:
        waves: workgroups, by how many the device holds at once.
        balance: share of the processors' time that is used while the busiest one works, 0 to 1.
        occupancy: share of the invocations that the device can hold, 0 to 1.
    """

    waves: float
    balance: float
    occupancy: float


FULL = Filling(1.0, 1.0, 1.0)


class Modelled(NamedTuple):
    """A command by itself.

    Attributes:
        launch, compute, memory: seconds.
        efficiency: what the roof, the larger of the last two, is divided by.
        operations, traffic: what it does.
        filling: of the device.
    """

    launch: float
    compute: float = 0.0
    memory: float = 0.0
    efficiency: float = 1.0
    operations: int = 0
    traffic: int = 0
    filling: Filling = FULL

    @property
    def work(self) -> float:
        """Seconds after the launch."""
        return max(self.compute, self.memory) / self.efficiency

    @property
    def bound(self) -> str:
        """What takes most of the time: "launch", "memory" or "compute"."""
        if self.launch >= self.work:
            return "launch"
        return "memory" if self.memory >= self.compute else "compute"


def estimate(command_buffer: CommandBuffer, profile: Profile) -> Timeline:
    """Returns how long each command would take on the device, and all of them, queue by queue."""
    modelled = [_modelled(command, command_buffer, profile) for command in command_buffer.commands]
    works = [
        Work(c.queue, c.deps, isinstance(c, Barrier), m.launch, m.work, min(1.0, m.filling.waves or 1.0))
        for c, m in zip(command_buffer.commands, modelled, strict=True)
    ]
    spans = schedule(works)
    nodes = [info.node or info.op for info in command_buffer.debug]
    estimates = [
        Estimate(
            command=index,
            name=_name(command, command_buffer),
            queue=command.queue,
            start=spans[index].start,
            seconds=spans[index].end - spans[index].start,
            bound=one.bound,
            operations=one.operations,
            traffic=one.traffic,
            waves=one.filling.waves,
            occupancy=one.filling.occupancy,
            node=nodes[index] if index < len(nodes) else "",
        )
        for index, (command, one) in enumerate(zip(command_buffer.commands, modelled, strict=True))
        if one.launch or one.work
    ]
    needed = memory_needed(command_buffer)
    end = max((span.end for span in spans), default=0.0)
    return Timeline(profile.name, profile.source, estimates, end, profile.error, needed, profile.memory)


def _name(command: Command, command_buffer: CommandBuffer) -> str:
    if isinstance(command, Dispatch):
        return command_buffer.kernels[command.kernel].row.name
    return type(command).__name__.lower()


def _modelled(command: Command, command_buffer: CommandBuffer, profile: Profile) -> Modelled:
    if isinstance(command, Dispatch):
        if 0 in command.launch[:3]:
            return Modelled(0.0)
        return modelled(command_buffer.kernels[command.kernel], command.parameters, command.launch, profile)
    if isinstance(command, (Copy, Fill, Update)):
        moved = command.destination.length * (2 if isinstance(command, Copy) else 1)
        return Modelled(profile.launch, 0.0, moved / _bandwidth(moved, profile), traffic=moved)
    return Modelled(0.0)


def modelled(record: KernelRecord, parameters: bytes, geometry: Geometry, profile: Profile) -> Modelled:
    """Returns what one launch takes."""
    asked = cost(record, parameters)
    moved = traffic(record, record.struct.unpack(parameters), profile.granule).total
    filling = fill(geometry, profile)
    saturation = min(1.0, filling.occupancy / ENOUGH)
    return Modelled(
        profile.launches.get(record.row.family, profile.launch),
        compute_seconds(asked, profile) / filling.balance,
        moved / _bandwidth(moved, profile) / saturation,
        profile.efficiency.get(record.row.family, 1.0),
        asked.operations,
        moved,
        filling,
    )


def fill(geometry: Geometry, profile: Profile) -> Filling:
    """Returns how well a launch of this geometry fills the device."""
    groups = math.prod(geometry[:3])
    width, shared = math.prod(geometry[3:6]), geometry[6]
    held = min(profile.workgroups, profile.invocations // width)
    if shared:
        held = min(held, profile.workgroup_memory // shared)
    held = max(held, 1)
    busiest = -(-groups // profile.processors)
    at_once = min(groups / profile.processors, held)
    return Filling(
        waves=groups / (profile.processors * held),
        balance=groups / (profile.processors * busiest),
        occupancy=min(1.0, at_once * width / profile.invocations),
    )


def compute_seconds(asked: Cost, profile: Profile) -> float:
    """Returns what the arithmetic takes on a device that is full."""
    seconds = asked.products / _rate(profile.products, asked.dtype) if asked.products else 0.0
    seconds += asked.simple / _rate(profile.arithmetic, asked.dtype) if asked.simple else 0.0
    for name, count in asked.functions.items():
        seconds += count / profile.functions.get(name, profile.functions[ANY])
    return seconds


def _rate(table: Mapping[str, float], dtype: DType) -> float:
    """Returns the rate of a type; what a table does not name goes at the rate of int32 or float32."""
    instead = "float32" if dtype.is_float or "int32" not in table else "int32"
    return table.get(dtype.name, table[instead])


def _bandwidth(footprint: int, profile: Profile) -> float:
    """Returns the bandwidth of the smallest memory that holds all that a launch touches."""
    return next((cache.bandwidth for cache in profile.caches if footprint <= cache.size), profile.bandwidth)
