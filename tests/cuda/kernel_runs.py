"""Launches of single kernels on the host compiler: memory with red zones, compared with the naive reference."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from umd_core.dtypes import DType
from umd_core.ir import Array
from umd_core.kernels import BY_NAME, KernelRecord, KernelRow
from umd_core.kernels.geometry import Flat
from umd_core.testing.compare import difference
from umd_core.testing.launches import LAYOUTS, SHAPES, Launch, Piece, Plan, build, type_arguments
from umd_core.testing.reference import reference
from umd_cuda import host, plans
from umd_cuda.geometry import Geometry, launch_geometry
from umd_cuda.host import toolchain
from umd_cuda.sources import KernelSource, source_for

RED_ZONE = 64
MARK = 0xA5


def has_compiler() -> bool:
    """Returns whether this machine has a C++ compiler."""
    try:
        toolchain.find_compiler()
    except host.NoCompilerError:
        return False
    return True


@functools.lru_cache(maxsize=512)
def function(source: KernelSource) -> Any:
    """Returns the compiled entry of a source."""
    return host.compile(source.text, source.options).function(source.entry)


def with_sizes(row: KernelRow, sizes: Sequence[int]) -> KernelRow:
    """Returns the row with these array lengths and no others, so that few modules are compiled."""
    return replace(row, sizes=tuple((name, (size,)) for (name, _), size in zip(row.sizes, sizes, strict=True)))


def pick(name: str, turn: int = 0) -> tuple[KernelRow, tuple[DType, ...]]:
    """Returns a kernel with one choice of array lengths and type arguments; others for other turns."""
    row = BY_NAME[name]
    kinds = type_arguments(row)
    number = sum(name.encode()) + turn
    sizes = [allowed[(number + at) % len(allowed)] for at, (_, allowed) in enumerate(row.sizes)]
    return with_sizes(row, sizes), kinds[number * 7 % len(kinds)]


def launches_of(row: KernelRow, types: Sequence[DType], seed: int = 0, count: int = 6) -> list[Launch]:
    """Returns launches of every kind of shape and layout, some with NaN and infinities, some in place."""
    random = np.random.default_rng([seed, sum(row.name.encode())])
    plans = [Plan(SHAPES[i % 5], LAYOUTS[(i + i // 5) % 5], i % 3 == 1, i % 2 == 0) for i in range(count)]
    return [build(random, row, types, plan) for plan in plans]


def launch_of(
    name: str, types: Sequence[DType], arrays: Sequence[Array], sizes: Sequence[int] | None = None, **parameters: Any
) -> Launch:
    """Returns a launch over whole arrays, one per operand; the same array twice means in place."""
    row = BY_NAME[name]
    sizes = [allowed[0] for _, allowed in row.sizes] if sizes is None else sizes
    record = with_sizes(row, sizes).record(types, sizes)
    memories: list[Array] = []
    pieces: list[Piece] = []
    for operand, array in zip(row.operands, arrays, strict=True):
        same = next((i for i, other in enumerate(arrays[: len(pieces)]) if other is array), None)
        memory = len(memories) if same is None else pieces[same].memory
        if same is None:
            memories.append(array.reshape(-1).view(np.uint8))
        pieces.append(Piece(memory, 0, array.nbytes, (), 0))
        parameters.setdefault(f"{operand.name}_offset", 0)
        parameters.setdefault(f"{operand.name}_strides", (1,))
    return Launch(record, record.pack(**parameters), tuple(memories), tuple(pieces))


def run(
    launch: Launch,
    *,
    wide: bool = False,
    geometry: Callable[[KernelRecord, Flat], Geometry] | None = None,
    plan: plans.Plan | None = None,
    planned: bool = True,
    seed: int = 0,
) -> tuple[list[Array], tuple[int, int]]:
    """Returns the memories after a launch, and the status word's code and value.

    Bytes before and after each memory, and before and after scratch, must not change.
    """
    source = source_for(launch.record, wide, planned)
    assert source is not None
    entry = function(source)
    fenced = [np.full(memory.size + 2 * RED_ZONE, MARK, np.uint8) for memory in launch.memories]
    inside = [memory[RED_ZONE:-RED_ZONE] for memory in fenced]
    for memory, given in zip(inside, launch.memories, strict=True):
        memory[...] = given
    packed: list[Any] = [ctypes.c_void_p(inside[p.memory].ctypes.data + p.offset) for p in launch.pieces]
    status = (ctypes.c_uint32 * 4)()
    if launch.record.row.status:
        packed.append(ctypes.c_void_p(ctypes.addressof(status)))
    flat = launch.record.struct.unpack(launch.parameters)
    plan = plan or plan_of(source, launch.record, flat, geometry)
    scratch = np.full(plan.scratch + 2 * RED_ZONE, MARK, np.uint8)
    for turn, (grid, block, shared) in plan.passes:
        parameters = _block(source, launch, scratch.ctypes.data + RED_ZONE, turn)
        entry.launch(grid, block, shared, [*packed, parameters], seed=seed)
    for memory in (*fenced, scratch):
        assert (memory[:RED_ZONE] == MARK).all()
        assert (memory[-RED_ZONE:] == MARK).all()
    return inside, (status[0], ctypes.c_int64.from_buffer(status, 8).value)


def plan_of(
    source: KernelSource,
    record: KernelRecord,
    flat: Flat,
    geometry: Callable[[KernelRecord, Flat], Geometry] | None,
) -> plans.Plan:
    """Returns the plan of a launch: one pass when the geometry is given, else what a GPU would get."""
    if source.plan is not None and geometry is None:
        return source.plan(record, flat)
    return plans.Plan(0, ((0, (geometry or launch_geometry)(record, flat)),))


def _block(source: KernelSource, launch: Launch, scratch: int, turn: int) -> bytes:
    return launch.parameters if source.plan is None else plans.block_of(launch.parameters, scratch, turn)


def disagreements(launch: Launch, memories: Sequence[Array]) -> list[str]:
    """Returns where written operands differ from the reference beyond the kernel's tolerance."""
    expected = reference(launch.case())
    found = []
    for index, operand in enumerate(launch.record.row.operands):
        if operand.writes:
            dtype = launch.record.dtype(operand.type)
            got = launch.box(index, memories)
            text = difference(got, expected[operand.name], dtype, launch.record.row.tolerance)
            found += [f"{operand.name}: {text} ({launch.note})"] if text else []
    return found


def findings(
    launch: Launch,
    seed: int = 0,
    geometry: Callable[[KernelRecord, Flat], Geometry] | None = None,
    plan: plans.Plan | None = None,
) -> list[str]:
    """Returns what a checked run finds: every operand may touch its own range alone."""
    source = source_for(launch.record)
    assert source is not None
    entry = checked_function(source)
    memories = [memory.copy() for memory in launch.memories]
    status = np.zeros(2, np.int64)
    ranges, packed, seen = [], [], set()
    for operand, piece in zip(launch.record.row.operands, launch.pieces, strict=True):
        address = memories[piece.memory].ctypes.data + piece.offset
        packed.append(ctypes.c_void_p(address))
        if piece.memory not in seen and piece.length:
            ranges.append(host.Range(operand.name, address, piece.length))
        seen.add(piece.memory)
    if launch.record.row.status:
        packed.append(ctypes.c_void_p(status.ctypes.data))
        ranges.append(host.Range("status", status.ctypes.data, status.nbytes))
    plan = plan or plan_of(source, launch.record, launch.record.struct.unpack(launch.parameters), geometry)
    scratch = np.full(max(plan.scratch, 1), MARK, np.uint8)
    ranges += [host.Range("scratch", scratch.ctypes.data, plan.scratch)] if plan.scratch else []
    found: list[host.Finding] = []
    for turn, (grid, block, shared) in plan.passes:
        parameters = _block(source, launch, scratch.ctypes.data, turn)
        found += host.check_launch(entry, grid, block, shared, [*packed, parameters], ranges, seed=seed)
    return [*map(str, found), *disagreements(launch, memories)]


@functools.lru_cache(maxsize=64)
def checked_function(source: KernelSource) -> Any:
    """Returns the checked entry of a source."""
    return host.compile(source.text, source.options, checked=True).function(source.entry)
