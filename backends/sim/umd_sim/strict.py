"""Strict mode: a simulator that looks for driver bugs while it runs.

Fresh, freed and transient memory holds a pattern that is NaN for every float type and far out of range as an index.
Every byte has a shadow that says whether anything has written it. So these are found, and named:

- a command that reads an element that nothing has written;
- a kernel that writes outside its operands, writes an operand that it only reads, or leaves part of a result unwritten;
- a program that leaves part of an output unwritten;
- two commands that touch the same bytes and that nothing orders, when the program is loaded. Independent commands run
  in a random legal order, a new one for each submission.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umd_core.commands import Command, CommandBuffer, Dispatch
from umd_core.device import Binding, FenceValue, Program, legal_order
from umd_core.encoding import verify_dependencies
from umd_core.kernels import Geometry, KernelRecord
from umd_sim.device import SimDevice
from umd_sim.lowerings.layout import Executable, bind
from umd_sim.options import Options
from umd_sim.shadow import Guarded, StrictError, Use, box, checked, first_false

_NAMED = 10
"""Missing dependencies that one error names."""


class _Loaded(NamedTuple):
    """An executable and the record that says which bytes are its."""

    record: KernelRecord
    executable: Executable


class _Plain(NamedTuple):
    """What a lowering sees of a buffer."""

    memory: NDArray[np.uint8]


class StrictDevice(SimDevice):
    """A SimDevice that looks for driver bugs; several times slower."""

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self._random = random.Random(self.options.seed)

    # memory

    def allocate_memory(self, size: int) -> Any:
        guarded = Guarded(super().allocate_memory(size), owned=True)
        guarded.spoil()
        return guarded

    def free_memory(self, memory: Any) -> None:
        if memory.owned:
            memory.spoil()

    def wrap_memory(self, data: Any) -> Any:
        return Guarded(data, owned=False)

    def write_memory(self, memory: Any, offset: int, data: memoryview) -> None:
        super().write_memory(memory.memory, offset, data)
        memory.written[offset : offset + data.nbytes] = True

    def read_memory(self, memory: Any, offset: int, size: int) -> memoryview:
        return super().read_memory(memory.memory, offset, size)

    def copy(self, destination: Binding, source: Binding) -> None:
        for name in ("memory", "written"):
            _range(destination, name)[...] = _range(source, name)

    def fill(self, destination: Binding, pattern: bytes) -> None:
        _range(destination, "memory")[...] = np.resize(np.frombuffer(pattern, np.uint8), destination.size)
        _range(destination, "written").fill(True)

    # programs

    def _load(self, raw: bytes, inputs: Any, outputs: Any, aliases: Any) -> Program:
        program = super()._load(raw, inputs, outputs, aliases)
        missing = verify_dependencies(program.command_buffer).missing
        if missing:
            held, commands = program.command_buffer, program.command_buffer.commands
            lines = [
                f"{found} ({_name(held, commands[found.first])}, {_name(held, commands[found.second])})"
                for found in missing[:_NAMED]
            ]
            pairs = [(found.first, found.second) for found in missing]
            raise StrictError("; ".join(lines), finding="missing dependency", pairs=pairs)
        return program

    def order(self, program: Program) -> Sequence[int]:
        return legal_order(program, self._random.randrange)

    def perform(
        self,
        program: Program,
        bindings: tuple[Binding, ...],
        words: tuple[int, ...],
        signals: Sequence[FenceValue],
    ) -> Exception | None:
        if program.arena is not None:
            program.arena.memory.spoil()
        return super().perform(program, bindings, words, signals) or _unwritten_output(program, bindings)

    # kernels

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        return _Loaded(record, super().load_kernel(record, parameters))

    def bind(self, executable: Any, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None]:
        record = executable.record
        uses = [
            Use(place.operand, view, buffer.memory, start)
            for place, view, (buffer, start, _) in zip(record.boxes, record.views(parameters), bindings, strict=True)
        ]
        plain = [(_Plain(_visible(use)), use.start, 0) for use in uses]
        call = bind(executable.executable, parameters, plain, self.scratch)
        return functools.partial(checked, record, uses, call)

    def dispatch(self, executable: Any, launch: Geometry, parameters: bytes, bindings: Sequence[Binding]) -> None:
        with np.errstate(all="ignore"):
            self.bind(executable, parameters, bindings)()


def _visible(use: Use) -> NDArray[np.uint8]:
    """Returns the memory as the kernel may use it: read-only where the operand is."""
    memory = use.guarded.memory.view()
    if not use.operand.writes:
        memory.flags.writeable = False
    return memory


def _range(binding: Binding, name: str) -> NDArray[Any]:
    whole: NDArray[Any] = getattr(binding.buffer.memory, name)
    return whole[binding.offset : binding.offset + binding.size]


def _name(command_buffer: CommandBuffer, command: Command) -> str:
    if isinstance(command, Dispatch):
        return command_buffer.kernels[command.kernel].row.name
    return type(command).__name__.lower()


def _unwritten_output(program: Program, bindings: Sequence[Binding]) -> StrictError | None:
    """Returns an error for the first output that the program has not written whole; None when all are."""
    results = bindings[len(program.inputs) : len(program.inputs) + len(program.outputs)]
    for index, (desc, (buffer, offset, _)) in enumerate(zip(program.outputs, results, strict=False)):
        if desc.element_count == 0:
            continue
        size = desc.dtype.size
        strides = [step * size for step in desc.strides]
        at = first_false(box(buffer.memory.written, offset + desc.element_offset * size, desc.shape, strides, size))
        if at is not None:
            message = f"element {at} of output {index} is left unwritten"
            return StrictError(message, finding="unwritten output", output=index, element=at)
    return None
