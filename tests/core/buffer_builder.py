"""Build: puts a command buffer together, for tests of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from umd_core import dtypes
from umd_core.commands import READ, WRITE, Command, CommandBuffer, Dispatch, Ref, Slot, SlotKind, refs_of
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME, KernelRecord, safety

ACCESS = {"r": READ, "w": WRITE, "rw": READ | WRITE}
Place = tuple[int, int]
"""(slot, byte offset)"""


class Build:
    """Builds a command buffer: slots as they are asked for, refs as long as what the launches touch."""

    def __init__(self) -> None:
        self.kernels: dict[KernelRecord, int] = {}
        self.slots: list[Slot] = []
        self.commands: list[Command] = []
        self.constants: list[bytes] = []
        self._data = 0

    def slot(
        self, kind: SlotKind = SlotKind.ARGUMENT, alignment: int = 8, group: int = 0, value: int = 0, length: int = 0
    ) -> int:
        self.slots.append(Slot(int(kind), 0, group, alignment, 0, value, length))
        return len(self.slots) - 1

    def constant(self, data: bytes) -> int:
        self.constants.append(data)
        at, self._data = self._data, self._data + -(-len(data) // 8) * 8
        return self.slot(SlotKind.CONSTANT, value=at, length=len(data))

    def add(self, command: Command) -> int:
        self.commands.append(command)
        return len(self.commands) - 1

    def dispatch(
        self,
        name: str,
        types: Sequence[DType],
        sizes: Sequence[int],
        parameters: Mapping[str, Any],
        places: Mapping[str, Place],
        deps: Sequence[int] = (),
        queue: int = 0,
    ) -> int:
        record = BY_NAME[name].record(types, sizes)
        filled: dict[str, Any] = {f"{o.name}_offset": 0 for o in record.row.operands}
        filled |= {f.name: 0 for f in record.row.fields} | dict(parameters)
        flat = record.flatten(filled)
        refs = []
        for box in record.boxes:
            slot, offset = places[box.operand.name]
            low, high = safety.touched(box, flat)
            assert low >= 0, f"{box.operand.name} reaches below its ref"
            refs.append(Ref(slot, ACCESS[box.operand.access], offset, high))
        kernel = self.kernels.setdefault(record, len(self.kernels))
        block = record.struct.pack(*flat)
        return self.add(Dispatch(kernel, record.geometry(flat), block, tuple(refs), tuple(deps), queue))

    def binary(
        self, name: str, count: int, a: Place, b: Place, out: Place, deps: Sequence[int] = (), queue: int = 0
    ) -> int:
        """Adds a float32 kernel of two operands over `count` elements in a row."""
        strides = {"a_strides": (1,), "b_strides": (1,), "out_strides": (1,)}
        places = {"a": a, "b": b, "out": out}
        parameters = {"extents": (count,), **strides}
        return self.dispatch(f"elementwise_{name}_kernel", [dtypes.float32], [1], parameters, places, deps, queue)

    def done(self, **rest: Any) -> CommandBuffer:
        slots = list(self.slots)
        for command in self.commands:
            for ref in refs_of(command):
                own = slots[ref.slot]
                reach = max(own.min_size, ref.offset + ref.length)
                slots[ref.slot] = own._replace(min_size=reach, access=own.access | ref.access)
        return CommandBuffer(
            kernels=list(self.kernels), slots=slots, commands=self.commands, constants=self.constants, **rest
        )
