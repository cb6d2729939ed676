"""Negative cases of the rules for launches: parameters, touched bytes, geometry, aliases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.core.broken_buffers import F32, Case, data, launch, parameters, replaced_ref, two, wrong_launch
from tests.core.buffer_builder import Build
from tests.core.chain_samples import PROGRAMS, chained
from tests.core.encoding_samples import encoded
from umd_core.commands import CommandBuffer
from umd_core.encoding import encode
from umd_core.encoding.layout import LAUNCH
from umd_core.kernels import BY_NAME, chain

ADD_A_OFFSET, ADD_A_STRIDE, ADD_B_OFFSET, ADD_OUT_OFFSET, ADD_OUT_STRIDE = 48, 56, 64, 80, 88
"""Offsets in an addition's data, launch block first."""


def launch_cases() -> Iterator[Case]:
    yield data("launch-reserved", encoded("add"), 28, b"\1", 0)
    yield data("parameter-padding", encoded("add"), 36, b"\1", 0)
    yield data("parameter-padding", encoded("add"), 39, b"\x80", 0, 36)
    wide = encode(two())
    yield data("parameter-sizes", wide, 96 + 32, b"\4", 1)
    for change, offset in (
        (parameters(a_offset=2**62 - 1), ADD_A_OFFSET),
        (parameters(a_offset=-(2**62)), ADD_A_OFFSET),
        (parameters(a_strides=(2**62,)), ADD_A_OFFSET),
        (parameters(a_strides=(-(2**63),)), ADD_A_OFFSET),
        (parameters(extents=(2**62,), a_strides=(0,), b_strides=(0,)), ADD_A_OFFSET),
        (parameters(extents=(2**64 - 1,), a_strides=(0,)), ADD_A_OFFSET),
        (parameters(extents=(0,), b_strides=(2**61,)), ADD_B_OFFSET),
    ):
        yield launch("parameter-range", two(change), 1, offset)
    for name in ("window_strides", "dilations"):
        yield launch("parameter-window", pooled(**{name: (2, 0)}), 0, LAUNCH.size + pool_field(name) + 8)
    for tokens, at in PROGRAMS:
        yield launch("parameter-program", chained(tokens), 0, LAUNCH.size + program_field() + 4 * at)
    yield launch("parameter-range", pooled(pads=(2**62 - 1, 0)), 0, LAUNCH.size + pool_field("window_strides"))
    yield launch("parameter-range", pooled(window_strides=(2**62, 1)), 0, LAUNCH.size + pool_field("window_strides"))
    yield launch("launch-work", two(), 0, LAUNCH.size, max_work=15)
    for change, offset in (
        (parameters(extents=(17,)), ADD_A_OFFSET),
        (parameters(a_offset=1), ADD_A_OFFSET),
        (parameters(a_offset=-1), ADD_A_OFFSET),
        (parameters(b_strides=(-1,)), ADD_B_OFFSET),
        (parameters(b_offset=14, b_strides=(-1,)), ADD_B_OFFSET),
        (parameters(b_offset=16, b_strides=(-1,)), ADD_B_OFFSET),
        (parameters(out_strides=(2,)), ADD_OUT_OFFSET),
    ):
        yield launch("touched-range", two(change), 1, offset)
    yield launch("touched-range", two(replaced_ref(0, length=60)), 1, ADD_A_OFFSET)
    yield launch("touched-range", two(replaced_ref(0, length=0)), 1, ADD_A_OFFSET)
    yield launch("launch-injective", two(parameters(out_strides=(0,))), 1, ADD_OUT_STRIDE)
    for at in range(7):
        yield launch("launch-geometry", two(wrong_launch(at)), 1, 4 * at)
    yield launch("launch-alias", two(replaced_ref(2, slot=0, offset=4)), 1, ADD_OUT_OFFSET)
    yield launch("launch-alias", shifted_alias(), 0, ADD_OUT_OFFSET)
    backwards = two(lambda d: replaced_ref(2, slot=0)(parameters(a_offset=15, a_strides=(-1,))(d)))
    yield launch("launch-alias", backwards, 1, ADD_OUT_OFFSET)
    yield launch("launch-alias", reduction_in_place(), 0, 32 + field_at("reduce_sum_kernel", (1, 1), "out_offset"))
    yield launch("launch-alias", update_by_itself(), 0, 32 + field_at("sgd_kernel", (1,), "g_offset"))


# command buffers with a launch that is wrong in one thing


POOL = BY_NAME["max_pool_kernel"].record([F32], (2,))


def pooled(**changed: Any) -> CommandBuffer:
    build = Build()
    x, y = build.slot(), build.slot()
    shape = {"batch": 1, "output": (2, 2), "input": (4, 4), "kernel": (2, 2), "x_strides": (0, 4, 1)}
    windows = {"y_strides": (0, 2, 1), "window_strides": (2, 2), "dilations": (1, 1), "pads": (0, 0)}
    build.dispatch("max_pool_kernel", [F32], [2], shape | windows | changed, {"x": (x, 0), "y": (y, 0)})
    return build.done()


def program_field() -> int:
    record = chain.ROW.record([F32], [1])
    fields = record.columns.fields
    assert fields is not None
    return int(fields[f"c{record.index_of['program'][0]}"][1])


def pool_field(name: str) -> int:
    fields = POOL.columns.fields
    assert fields is not None
    return int(fields[f"c{POOL.index_of[name][0]}"][1])


def shifted_alias() -> CommandBuffer:
    """a and out are one buffer by their alias group; out is read two elements later."""
    build = Build()
    a, b, out = build.slot(alignment=4, group=5), build.slot(alignment=4), build.slot(alignment=4, group=5)
    build.binary("add", 16, (a, 0), (b, 0), (out, 8))
    return build.done()


def reduction_in_place() -> CommandBuffer:
    """A reduction in place, which its kernel does not allow."""
    build = Build()
    x = build.slot()
    shape = {"outer": (4,), "inner": (1,), "x_strides": (1, 1), "out_strides": (1,)}
    build.dispatch("reduce_sum_kernel", [F32], [1, 1], shape, {"x": (x, 0), "out": (x, 0)})
    return build.done()


def update_by_itself() -> CommandBuffer:
    """p and g are the same elements, but the kernel does not say that they may be."""
    build = Build()
    p, lr = build.slot(), build.slot()
    shape = {"extents": (4,), "p_strides": (1,), "g_strides": (1,)}
    build.dispatch("sgd_kernel", [F32], [1], shape, {"p": (p, 0), "g": (p, 0), "lr": (lr, 0)})
    return build.done()


def field_at(kernel: str, sizes: tuple[int, ...], name: str) -> int:
    rec = BY_NAME[kernel].record([F32], sizes)
    fields = rec.columns.fields
    assert fields is not None
    return int(fields[f"c{rec.index_of[name][0]}"][1])
