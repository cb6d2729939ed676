"""Hypothesis strategies for those who test with umd: types, shapes, layouts, arrays, launches, command buffers, ops.

from hypothesis import given
from umd_core.testing import strategies as us

@given(us.command_buffers())
def test_round_trip(command_buffer): ...
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from umd_core import dtypes as all_dtypes
from umd_core.commands import CommandBuffer, Event, Flag
from umd_core.dtypes import DType
from umd_core.ir import MAX_RANK, Array, TensorDesc
from umd_core.kernels import BY_NAME, KernelRow
from umd_core.testing.launches import LAYOUTS, SHAPES, Launch, Plan, build, make_strides, type_arguments
from umd_core.testing.recording import Recording
from umd_core.testing.requests import OpRequest, op_requests
from umd_core.testing.values import values

__all__ = [
    "Launch",
    "OpRequest",
    "arrays",
    "command_buffers",
    "dtypes",
    "encoded",
    "launches",
    "mutated",
    "op_requests",
    "shapes",
    "strides",
    "tensor_descs",
]
HEADER_SIZE, CRC_AT = 64, 56


def dtypes(among: Sequence[DType] = all_dtypes.ALL) -> st.SearchStrategy[DType]:
    """Returns a strategy for element types."""
    return st.sampled_from(list(among))


def shapes(
    *, min_rank: int = 0, max_rank: int = 4, min_side: int = 0, max_side: int = 5
) -> st.SearchStrategy[tuple[int, ...]]:
    """Returns a strategy for shapes; zero-size and 0-d ones among them."""
    sides = st.integers(min_side, max_side)
    return st.lists(sides, min_size=min_rank, max_size=min(max_rank, MAX_RANK)).map(tuple)


def strides(shape: Sequence[int], *, injective: bool = True) -> st.SearchStrategy[tuple[int, ...]]:
    """Returns a strategy for strides in elements: permuted, negative, with gaps.

    Without `injective`, elements may also coincide.
    """
    kinds = st.sampled_from([layout for layout in LAYOUTS if not (injective and layout == "overlapping")])
    return st.builds(
        lambda seed, kind: make_strides(np.random.default_rng(seed), shape, kind, injective), seeds(), kinds
    )


def seeds() -> st.SearchStrategy[int]:
    """Returns a strategy for seeds of NumPy generators."""
    return st.integers(0, 2**32 - 1)


@st.composite
def tensor_descs(
    draw: st.DrawFn,
    dtype: st.SearchStrategy[DType] | None = None,
    shape: st.SearchStrategy[tuple[int, ...]] | None = None,
    *,
    contiguous: bool = False,
) -> TensorDesc:
    """Returns a strategy for tensor descriptions: any layout, unless `contiguous`."""
    kind, extents = draw(dtypes() if dtype is None else dtype), draw(shapes() if shape is None else shape)
    if contiguous:
        return TensorDesc(kind, extents)
    steps = draw(strides(extents))
    reach = sum((extent - 1) * step for extent, step in zip(extents, steps, strict=True) if step < 0 < extent)
    return TensorDesc(kind, extents, steps, draw(st.integers(0, 3)) - reach)


@st.composite
def arrays(draw: st.DrawFn, desc: TensorDesc, *, special: bool = True) -> Array:
    """Returns a strategy for arrays with the shape, type and strides of `desc`; NaN and infinities if `special`."""
    random = np.random.default_rng(draw(seeds()))
    count = max(desc.byte_size // desc.dtype.size, 1)
    flat = values(random, desc.dtype, count, special=special)
    if not desc.element_count:
        return np.empty(desc.shape, desc.dtype.numpy)
    steps = tuple(step * desc.dtype.size for step in desc.strides)
    return np.ndarray(desc.shape, desc.dtype.numpy, flat, desc.element_offset * desc.dtype.size, steps)


@st.composite
def launches(
    draw: st.DrawFn,
    rows: Sequence[KernelRow] | None = None,
    supports: Callable[[str, tuple[DType, ...]], bool] | None = None,
) -> Launch:
    """Returns a strategy for launches that obey rule 7, with their memory.

    Args:
        draw: Hypothesis's.
        rows: kernels to draw from; all of the table when None.
        supports: leaves out (kernel, types) for which it is False; `device.caps().supports` fits.
    """
    chosen = list(rows or BY_NAME.values())
    if supports is not None:
        chosen = [row for row in chosen if any(supports(row.name, types) for types in type_arguments(row))]
    row = draw(st.sampled_from(chosen))
    types = [t for t in type_arguments(row) if supports is None or supports(row.name, t)]
    plan = Plan(draw(st.sampled_from(SHAPES)), draw(st.sampled_from(LAYOUTS)), draw(st.booleans()), draw(st.booleans()))
    return build(np.random.default_rng(draw(seeds())), row, draw(st.sampled_from(types)), plan)


@st.composite
def command_buffers(draw: st.DrawFn, max_commands: int = 8, rows: Sequence[KernelRow] | None = None) -> CommandBuffer:
    """Returns a strategy for valid command buffers: every command, arguments, arena, constants, events, flags."""
    recording = Recording()
    arguments = [recording.argument() for _ in range(draw(st.integers(1, 3)))]
    steps = draw(st.lists(st.sampled_from(sorted(_STEPS)), max_size=max_commands))
    planned = [draw(launches(rows)) if step == "dispatch" else None for step in steps]
    own = [[recording.argument() for _ in launch.memories] if launch else [] for launch in planned]
    arena = recording.arena() if draw(st.booleans()) else None
    constants = [recording.constant(data) for data in draw(st.lists(st.binary(min_size=1, max_size=20), max_size=2))]
    writable = [*arguments, *([arena] if arena is not None else [])]
    for step, launch, slots in zip(steps, planned, own, strict=True):
        if launch is not None:
            places = [(slots[piece.memory], piece.offset, piece.length) for piece in launch.pieces]
            recording.dispatch(launch.record, launch.parameters, places)
        else:
            _STEPS[step](draw, recording, writable, [*writable, *constants])
    count = len(recording.commands)
    events = [
        Event(3, signal, draw(st.integers(0, count - 1))) for signal in range(draw(st.integers(0, 2)) if count else 0)
    ]
    flags = draw(st.sampled_from([0, Flag.ONE_SHOT, Flag.SIMULTANEOUS_OK]))
    return recording.finish(int(flags), events)


_Step = Callable[[st.DrawFn, Recording, Sequence[int], Sequence[int]], object]


def _copy(draw: st.DrawFn, recording: Recording, writable: Sequence[int], readable: Sequence[int]) -> None:
    target, source = draw(st.sampled_from(writable)), draw(st.sampled_from(readable))
    size = draw(st.integers(0, min(16, recording.room(source))))
    recording.copy((target, draw(st.integers(0, 8)), size), (source, 32 if source == target else 0, size))


def _fill(draw: st.DrawFn, recording: Recording, writable: Sequence[int], readable: Sequence[int]) -> None:
    pattern = bytes(range(1, 1 + draw(st.sampled_from([1, 2, 4, 8]))))
    place = (draw(st.sampled_from(writable)), 8 * draw(st.integers(0, 4)), 8 * draw(st.integers(0, 4)))
    recording.fill(place, pattern)


def _update(draw: st.DrawFn, recording: Recording, writable: Sequence[int], readable: Sequence[int]) -> None:
    recording.update(draw(st.sampled_from(writable)), draw(st.integers(0, 32)), draw(st.binary(max_size=24)))


def _mark(draw: st.DrawFn, recording: Recording, writable: Sequence[int], readable: Sequence[int]) -> None:
    recording.mark(draw(st.text(max_size=12)), draw(st.integers(0, 2**32 - 1)))


_STEPS: dict[str, _Step] = {
    "dispatch": lambda draw, recording, writable, readable: None,
    "copy": _copy,
    "fill": _fill,
    "update": _update,
    "mark": _mark,
    "barrier": lambda draw, recording, writable, readable: recording.barrier(),
    "nop": lambda draw, recording, writable, readable: recording.nop(),
}


def encoded(max_commands: int = 8) -> st.SearchStrategy[bytes]:
    """Returns a strategy for valid encoded command buffers."""
    return command_buffers(max_commands).map(bytes)


@st.composite
def mutated(draw: st.DrawFn, raw: st.SearchStrategy[bytes] | None = None, max_changes: int = 4) -> bytes:
    """Returns a strategy for damaged command buffers whose checksums are right again.

    Numbers are changed to others nearby and to edges, bytes are removed or repeated; the CRCs hold, so that what
    refuses them is one of the other rules.
    """
    data = bytearray(draw(encoded() if raw is None else raw))
    for _ in range(draw(st.integers(1, max_changes))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        _CHANGES[draw(st.sampled_from(sorted(_CHANGES)))](draw, data, at)
    return repaired(data)


def _number(draw: st.DrawFn, data: bytearray, at: int) -> None:
    size = draw(st.sampled_from([1, 2, 4, 8]))
    at -= at % size
    old = int.from_bytes(data[at : at + size], "little")
    edges = st.sampled_from([0, 1, (1 << 8 * size) - 1, 1 << (8 * size - 1)])
    near = st.integers(-9, 9).map(lambda step: (old + step) % (1 << 8 * size))
    data[at : at + size] = draw(st.one_of(near, edges)).to_bytes(size, "little")[: len(data) - at]


def _bit(draw: st.DrawFn, data: bytearray, at: int) -> None:
    if data:
        data[at] ^= 1 << draw(st.integers(0, 7))


def _cut(draw: st.DrawFn, data: bytearray, at: int) -> None:
    del data[at : at + draw(st.sampled_from([1, 8, 24, 32]))]


def _repeat(draw: st.DrawFn, data: bytearray, at: int) -> None:
    at -= at % 8
    data[at:at] = data[at : at + draw(st.sampled_from([8, 24, 32]))]


_CHANGES: dict[str, Callable[[st.DrawFn, bytearray, int], None]] = {
    "number": _number,
    "bit": _bit,
    "cut": _cut,
    "repeat": _repeat,
}


def repaired(data: bytes | bytearray) -> bytes:
    """Returns the bytes with both checksums made right, where there is room for them."""
    fixed = bytearray(data)
    if len(fixed) >= HEADER_SIZE:
        fixed[CRC_AT : CRC_AT + 4] = zlib.crc32(fixed[HEADER_SIZE:]).to_bytes(4, "little")
        fixed[CRC_AT + 4 : HEADER_SIZE] = zlib.crc32(fixed[: CRC_AT + 4]).to_bytes(4, "little")
    return bytes(fixed)
