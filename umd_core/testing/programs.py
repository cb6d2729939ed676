"""Random whole programs over integers, and their exact results by the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from umd_core import dtypes
from umd_core.commands import Command, CommandBuffer, Copy, Dispatch, Fill, SlotKind, Update
from umd_core.device.order import command_order
from umd_core.dtypes import DType
from umd_core.ir import Array
from umd_core.kernels import BY_NAME, KernelRow
from umd_core.testing.launches import Launch, Plan, build
from umd_core.testing.recording import Recording, refs_of
from umd_core.testing.reference import Case, reference
from umd_core.testing.values import Random

CELL, CELLS = 512, 3
"""Bytes of a cell, and cells of each slot: every operand of a launch lies in a cell of its own."""
Supports = Callable[[str, tuple[DType, ...]], bool]
_FAMILIES = {"expression", "reduce", "gemm", "iota"}
_TRIES = 50


def exact_rows(supports: Supports, dtype: DType = dtypes.int32) -> list[KernelRow]:
    """Returns the kernels whose results over one integer type are exact and reproducible."""
    return [
        row
        for row in BY_NAME.values()
        if row.family in _FAMILIES
        and len(row.types) == 1
        and dtype in row.types[0][1]
        and all(operand.type == row.types[0][0] for operand in row.operands)
        and supports(row.name, (dtype,))
    ]


def random_program(random: Random, rows: Sequence[KernelRow], length: int, flags: int = 0) -> CommandBuffer:
    """Returns a program of `length` random commands over two arguments and an arena that it fills first."""
    recording = Recording()
    slots = [recording.argument(), recording.argument(), recording.arena()]
    cells = [(slot, CELL * cell) for slot in slots for cell in range(CELLS)]
    recording.fill((slots[2], 0, CELL * CELLS), bytes(random.integers(0, 256, 4, dtype=np.uint8)))
    for number in range(length):
        kind = random.random()
        order = [cells[int(i)] for i in random.permutation(len(cells))]
        if kind < 0.1:
            recording.copy((*order[0], 64), (*order[1], 64))
        elif kind < 0.2:
            recording.fill((*order[0], 48), bytes(random.integers(0, 256, 8, dtype=np.uint8)))
        elif kind < 0.3:
            recording.update(*order[0], bytes(random.integers(0, 256, 24, dtype=np.uint8)))
        elif kind < 0.35:
            recording.barrier()
        elif kind < 0.4:
            recording.mark(f"place {number}", number)
        else:
            launch = _small_launch(random, rows)
            pieces = zip(launch.pieces, order, strict=False)
            recording.dispatch(
                launch.record, launch.parameters, [(slot, offset, piece.length) for piece, (slot, offset) in pieces]
            )
    for slot in slots[:2]:
        recording.update(slot, CELL * CELLS, bytes(8))
    return recording.finish(flags)


def _small_launch(random: Random, rows: Sequence[KernelRow]) -> Launch:
    row = rows[int(random.integers(len(rows)))]
    layouts = ("contiguous", "permuted", "negative", "overlapping")
    launch = build(random, row, (dtypes.int32,), Plan("ones"))
    for _ in range(_TRIES):
        tried = build(random, row, (dtypes.int32,), Plan("ordinary", layouts[int(random.integers(len(layouts)))]))
        if all(piece.length <= CELL for piece in tried.pieces):
            return tried
    return launch


def reordered(command_buffer: CommandBuffer, pick: Callable[[int], int]) -> CommandBuffer:
    """Returns the program with its commands in another legal order, dependencies renumbered."""
    order = command_order(command_buffer.commands, pick)
    place = {old: new for new, old in enumerate(order)}
    commands: list[Command] = []
    for old in order:
        command = command_buffer.commands[old]
        commands.append(command._replace(deps=tuple(sorted(place[d] for d in command.deps))))
    used = [c.kernel for c in commands if isinstance(c, Dispatch)]
    kernels = sorted(set(used), key=used.index)
    commands = [c._replace(kernel=kernels.index(c.kernel)) if isinstance(c, Dispatch) else c for c in commands]
    return CommandBuffer(
        kernels=[command_buffer.kernels[k] for k in kernels],
        slots=command_buffer.slots,
        commands=commands,
        constants=command_buffer.constants,
        flags=command_buffer.flags,
    )


def reference_run(command_buffer: CommandBuffer, arguments: Sequence[Array]) -> list[Array]:
    """Returns the arguments' bytes after the program, by the reference, command after command.

    Raises:
        IndexRangeError: an index is out of range.
    """
    given, constants = iter(arguments), iter(command_buffer.constants)
    memory = []
    for slot in command_buffer.slots:
        if slot.kind == SlotKind.ARGUMENT:
            memory.append(next(given).copy())
        elif slot.kind == SlotKind.CONSTANT:
            memory.append(np.frombuffer(next(constants), np.uint8))
        else:
            memory.append(np.zeros(slot.length, np.uint8))
    for command in command_buffer.commands:
        _reference_step(command_buffer, command, memory)
    return [m for m, slot in zip(memory, command_buffer.slots, strict=True) if slot.kind == SlotKind.ARGUMENT]


def _reference_step(command_buffer: CommandBuffer, command: Command, memory: Sequence[Array]) -> None:
    ranges = [memory[ref.slot][ref.offset : ref.offset + ref.length] for ref in refs_of(command)]
    match command:
        case Copy():
            ranges[0][:] = ranges[1]
        case Fill(pattern=pattern):
            ranges[0][:] = np.frombuffer(pattern * (ranges[0].size // len(pattern)), np.uint8)
        case Update(data=data):
            ranges[0][:] = np.frombuffer(data, np.uint8)
        case Dispatch():
            record = command_buffer.kernels[command.kernel]
            boxes = [
                np.ndarray(view.shape, view.dtype.numpy, held, view.offset, view.strides)
                for view, held in zip(record.views(command.parameters), ranges, strict=True)
            ]
            names = [operand.name for operand in record.row.operands]
            case = Case(record, command.parameters, {n: b.copy() for n, b in zip(names, boxes, strict=True)})
            for name, expected in reference(case).items():
                box = boxes[names.index(name)]
                box[...] = expected.value.astype(box.dtype)
        case _:
            pass


def random_arguments(random: Random, command_buffer: CommandBuffer) -> list[Array]:
    """Returns random bytes for each argument of a program: (min_size,) uint8 each."""
    return [
        random.integers(0, 256, slot.min_size, dtype=np.uint8)
        for slot in command_buffer.slots
        if slot.kind == SlotKind.ARGUMENT
    ]
