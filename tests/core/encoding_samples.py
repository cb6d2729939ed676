"""Fixed command buffers, each with something of its own; golden files hold their bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tests.core.buffer_builder import Build, Place
from umd_core import dtypes
from umd_core.commands import (
    READ,
    WRITE,
    Barrier,
    CommandBuffer,
    Copy,
    DebugInfo,
    Event,
    Fill,
    Flag,
    Mark,
    Newer,
    Nop,
    Patch,
    PatchKind,
    Ref,
    SlotKind,
    Update,
)
from umd_core.encoding.encode import encode


def add() -> CommandBuffer:
    """One addition of 300 elements, with its debug text."""
    build = Build()
    a, b, out = (build.slot(alignment=4) for _ in range(3))
    build.binary("add", 300, (a, 0), (b, 0), (out, 0))
    return build.done(debug=[DebugInfo("Add", "node_7", "model.py:12")])


def empty() -> CommandBuffer:
    """Nothing but END."""
    return CommandBuffer()


def every_command() -> CommandBuffer:
    """Every opcode, with dependencies, queues and all sizes of a fill's pattern."""
    build = Build()
    x, y = build.slot(alignment=4), build.slot(alignment=256)
    arena = build.slot(SlotKind.ARENA, 256, length=4096)
    build.add(Mark(7, "début"))
    fills = [
        build.add(Fill(Ref(arena, WRITE, 256 * i, 64), bytes(range(1, size + 1))))
        for i, size in enumerate((1, 2, 4, 8))
    ]
    update = build.add(Update(Ref(arena, WRITE, 1024, 13), b"thirteen byte", queue=1))
    build.add(Nop((update,)))
    first = build.binary("mul", 16, (arena, 0), (x, 0), (arena, 1280), [fills[0]])
    build.add(Barrier(tuple(fills)))
    second = build.binary("mul", 16, (arena, 1280), (arena, 256), (y, 0), queue=2)
    build.add(Copy(Ref(arena, WRITE, 2048, 64), Ref(y, READ, 0, 64), (first, second)))
    build.add(Mark(0, ""))
    return build.done()


def every_slot() -> CommandBuffer:
    """Arguments in an alias group, arena, constants of odd lengths, handles."""
    build = Build()
    p = build.slot(alignment=4, group=3)
    unused = build.slot(alignment=1)
    assert unused == 1
    out = build.slot(alignment=4, group=3)
    arena = build.slot(SlotKind.ARENA, 256, length=1024)
    one = build.constant(struct.pack("<f", 1.5))
    text = build.constant(b"abc")
    half = build.constant(struct.pack("<3f", 0.5, 0.25, 0.125))
    weights = build.slot(SlotKind.HANDLE, 16, value=5 | 2 << 32)
    state = build.slot(SlotKind.HANDLE, 4, group=9, value=6 | 1 << 32)
    strided = {"extents": (3,), "a_strides": (1,), "b_strides": (0,), "out_strides": (1,)}
    places: dict[str, Place] = {"a": (half, 0), "b": (one, 0), "out": (arena, 0)}
    build.dispatch("elementwise_add_kernel", [dtypes.float32], [1], strided, places)
    build.binary("mul", 3, (arena, 0), (weights, 32), (arena, 256), [0])
    build.binary("add", 3, (p, 0), (arena, 256), (out, 0), [1])
    build.binary("sub", 3, (state, 4), (p, 0), (state, 4), [2])
    build.add(Copy(Ref(arena, WRITE, 512, 3), Ref(text, READ, 0, 3)))
    return build.done()


def adamw_patched() -> CommandBuffer:
    """An update whose constants are values of the submission."""
    build = Build()
    places = {name: (build.slot(alignment=4), 0) for name in ("p", "g", "m", "v", "lr", "step")}
    strides: dict[str, Any] = {f"{name}_strides": (1,) for name in ("p", "g", "m", "v")}
    numbers: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": float("nan")}
    parameters = {"extents": (10,), "decoupled": 1, **strides, **numbers}
    for _ in range(2):
        build.dispatch("adamw_kernel", [dtypes.float32], [1], parameters, places)
    record = next(iter(build.kernels))
    offsets = sorted(at for at in record.patchable if at % 8 == 0)
    patches = [Patch(0, 32 + offsets[3], PatchKind.BITS64, 1)]
    patches += [Patch(1, 32 + at, PatchKind.BITS64, symbol) for symbol, at in enumerate(offsets)]
    return build.done(patches=patches, flags=int(Flag.ONE_SHOT))


def events() -> CommandBuffer:
    """Signals inside the buffer, the remaining flags, a compat bit, debug text beyond ASCII."""
    build = Build()
    a, b, c = (build.slot(alignment=4) for _ in range(3))
    build.binary("max", 8, (a, 0), (b, 0), (c, 0))
    build.binary("min", 8, (a, 0), (b, 0), (c, 32))
    return build.done(
        events=[Event(3, 0, 1), Event(3, 2, 0), Event(3, 5, 0)],
        flags=int(Flag.SIMULTANEOUS_OK | Flag.DETERMINISTIC),
        compat=1 << 40,
        debug=[DebugInfo("Max", "größer", ""), DebugInfo("Min", "", "m.py:3")],
    )


def strided() -> CommandBuffer:
    """Negative strides, every rank class, windows, a status word, an atomic kernel, aliases, several types."""
    build = Build()
    x, y, z = build.slot(alignment=8), build.slot(alignment=8), build.slot(SlotKind.ARENA, 256, length=1 << 16)
    f64, i32, f16 = dtypes.float64, dtypes.int32, dtypes.float16
    build.dispatch(
        "elementwise_neg_kernel",
        [f64],
        [4],
        {
            "extents": (1, 2, 3, 4),
            "x_offset": 23,
            "x_strides": (0, -12, -4, -1),
            "out_strides": (0, 1, 2, 6),
        },
        {"x": (x, 0), "out": (z, 0)},
    )
    build.dispatch(
        "elementwise_cast_kernel",
        [f64, f16],
        [8],
        {"extents": (1, 1, 1, 1, 2, 3, 2, 2), "x_strides": (0,) * 7 + (1,), "out_strides": (0, 0, 0, 0, 12, 4, 2, 1)},
        {"x": (x, 8), "out": (z, 4096)},
    )
    build.dispatch(
        "conv_kernel",
        [dtypes.float32],
        [2],
        {
            "batch": 1, "groups": 2, "out_channels": 2, "output": (3, 3), "in_channels": 1, "kernel": (3, 2),
            "input": (5, 4), "x_strides": (40, 20, 20, 4, 1), "w_strides": (12, 6, 6, 2, 1),
            "y_strides": (36, 18, 9, 3, 1), "window_strides": (2, 1), "dilations": (1, 1), "pads": (1, 0),
        },
        {"x": (x, 0), "w": (y, 0), "y": (z, 8192)},
    )  # fmt: skip
    build.dispatch(
        "gather_kernel",
        [i32, i32],
        [1],
        {"extents": (5,), "axis": 7, "data_strides": (0, 1), "index_strides": (1,), "out_strides": (1,)},
        {"data": (x, 0), "index": (y, 64), "out": (z, 12288)},
    )
    build.dispatch(
        "scatter_add_kernel",
        [i32, i32],
        [1],
        {"extents": (5,), "axis": 3, "updates_strides": (1,), "index_strides": (1,), "out_strides": (0, 1)},
        {"updates": (x, 0), "index": (y, 64), "out": (z, 12288)},
        [3],
    )
    build.dispatch(
        "softmax_kernel",
        [f16],
        [1, 1],
        {"outer": (4,), "inner": (5,), "x_strides": (5, 1), "y_strides": (5, 1)},
        {"x": (z, 4096), "y": (z, 4096)},
        [1],
    )
    build.dispatch(
        "gemm_kernel",
        [f64],
        [1],
        {
            "batch": (3,), "rows": 4, "columns": 70, "depth": 2, "a_strides": (0, 2, 1), "b_strides": (0, 1, 2),
            "out_strides": (280, 70, 1),
        },
        {"a": (x, 0), "b": (x, 64), "out": (z, 16384)},
    )  # fmt: skip
    return build.done()


def newer_minor() -> CommandBuffer:
    """What a reader of 1.0 keeps of version 1.3: a longer header, longer records, unknown sections."""
    cb = every_command()
    count = len(cb.commands) + 1
    cb.newer = Newer(3, b"headtail", ((2, 40, b"K" * 8), (4, 48, b"c" * 16 * count), (6, 6, b"d" * 2 * 8)))
    assert sum(len(command.deps) for command in cb.commands) == 8
    cb.extra = [(11, 1, 5, b"hello"), (0x7000, 1, 0, b"\0\1\2")]
    return cb


SAMPLES: dict[str, Callable[[], CommandBuffer]] = {
    sample.__name__: sample
    for sample in (add, empty, every_command, every_slot, adamw_patched, events, strided, newer_minor)
}


def encoded(sample: str) -> bytes:
    """Returns a sample's bytes."""
    return encode(SAMPLES[sample]())
