"""MaxPool, its variant with indices per plane, and its gradient."""

from __future__ import annotations

import math

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS, INDEX, float32, int8, int64, uint8
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, settle, target, trailing, widen
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape
from umd_core.views import View
from umd_core.windows import AUTO_PAD, CEIL_MODE, KERNEL_SHAPE, WINDOW, Windows, pool_windows


def _shape(call: Call) -> tuple[Shape, Shape]:
    lead, over = pool_windows(call)
    return (lead + over.output, lead + over.output)


def _pool(recorder: Recorder, call: Call, x: View, y: View, index: View | None) -> tuple[Shape, Windows]:
    """Records the pool of x into y and, if given, positions in the plane into index; returns (planes, windows)."""
    lead, over = pool_windows(call)
    planes = math.prod(lead)
    operands = {
        "x": recorder.reshape(x, (planes, *over.input)),
        "y": target(recorder, y, (planes, *over.output)),
    }
    kernel = "max_pool_kernel"
    if index is not None:
        kernel = "max_pool_index_kernel"
        operands["index"] = target(recorder, index, (planes, *over.output))
    recorder.launch(kernel, {"batch": planes, **over.extents}, operands, over.fields)
    settle(recorder, operands["y"], y)
    if index is not None:
        settle(recorder, operands["index"], index)
    return lead, over


def _pooled(recorder: Recorder, call: Call, x: View, index: View | None) -> tuple[View, Shape, Windows]:
    """Returns the pool's first output; int8 and uint8, exact in float32, are pooled as that."""
    y = recorder.out(call)
    if x.dtype.is_float:
        return (y, *_pool(recorder, call, x, y, index))
    wide = recorder.new(float32, y.shape)
    lead, over = _pool(recorder, call, widen(recorder, x, float32), wide, index)
    return recorder.copy(wide, y), lead, over


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View, View | None]:
    if not call.wants(1):
        return _pooled(recorder, call, views[0], None)[0], None
    index = recorder.new(int64, call.outputs[1].shape)
    y, lead, over = _pooled(recorder, call, views[0], index)
    if call.attr("storage_order"):
        index = _column_major(recorder, index, over.input)
    return y, _over_tensor(recorder, index, lead, over, recorder.out(call, 1))


def _over_tensor(recorder: Recorder, index: View, lead: Shape, over: Windows, out: View) -> View:
    """Returns positions within each plane as positions within the whole tensor."""
    plane = math.prod(over.input)
    offsets = recorder.new(int64, lead)
    zero, step = recorder.scalar(0, int64), recorder.scalar(plane, int64)
    flat = target(recorder, offsets, (math.prod(lead),))
    recorder.launch("iota_kernel", {"count": flat.shape[0]}, {"start": zero, "step": step, "out": flat})
    return recorder.expression("add", (index, trailing(offsets, len(over.output))), out)


def _column_major(recorder: Recorder, index: View, plane: Shape) -> View:
    """Returns row-major positions in a plane as column-major ones: the first axis runs fastest."""
    result = recorder.fill(recorder.like(index), 0)
    for axis, extent in enumerate(plane):
        after, before = math.prod(plane[axis + 1 :]), math.prod(plane[:axis])
        along = recorder.expression("div", (index, recorder.scalar(after, int64)), recorder.like(index))
        recorder.expression("mod", (along, recorder.scalar(extent, int64)), along)
        recorder.expression("multiply_add", (along, recorder.scalar(before, int64), result), result)
    return result


def _emit_with_indices(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View, View | None]:
    index = recorder.out(call, 1) if call.wants(1) else None
    return _pooled(recorder, call, views[0], index)[0], index


def _grad_shape(call: Call) -> tuple[Shape]:
    dy, index, plane = call.desc(0).shape, call.desc(1).shape, call.attr("plane_shape")
    if dy != index:
        raise call.error(f"has shape {list(index)}, dY has {list(dy)}; equal shapes would be right", input="indices")
    if not 1 <= len(plane) < len(dy) or min(plane) < 0:
        raise call.bad_attribute("plane_shape", f"{list(plane)} is no plane of dY", "the last extents of X")
    return (dy[: len(dy) - len(plane)] + plane,)


def _emit_grad(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Adds each element of dY to the element of its plane that it came from."""
    dx = recorder.out(call)
    rank = len(call.attr("plane_shape"))
    lead = dx.shape[: dx.rank - rank]
    planes, size = math.prod(lead), math.prod(dx.shape[dx.rank - rank :])
    positions = math.prod(views[0].shape[dx.rank - rank :])
    wide = accumulator(dx.dtype)
    total = target(recorder, dx, (planes, size)) if dx.dtype is wide else recorder.new(wide, (planes, size))
    recorder.fill(total, 0)
    updates = recorder.reshape(widen(recorder, views[0]), (planes, positions))
    index = recorder.reshape(views[1], (planes, positions))
    places = total.unsqueeze(1).expand((planes, positions, size))
    recorder.scatter(updates, index, places, size, combine="add")
    return settle(recorder, total, dx)


def _flops(call: Call) -> int:
    return call.outputs[0].element_count * pool_windows(call)[1].kernel_size


def _template(
    name: str, emit: Emit, results: tuple[Result, ...], attributes: tuple[Attribute, ...], doc: str
) -> OpTemplate:
    types = {"T": (*FLOATS, int8, uint8)}
    return OpTemplate(name, (Input("X"),), results, _shape, emit, types, attributes, flops=_flops, doc=doc)


_Y = Result("Y")
_WINDOW = (CEIL_MODE, KERNEL_SHAPE, *WINDOW)
TEMPLATES = (
    _template(
        "MaxPool",
        _emit,
        (_Y, Result("Indices", "int64", optional=True)),
        (AUTO_PAD, *_WINDOW, Attribute("storage_order", "int", 0, choices=(0, 1))),
        "Largest element of each window of X (N, C, …); Indices count over the whole of X, its planes as "
        "storage_order says: 0 row-major, 1 column-major. NaN wins.",
    ),
    _template(
        "umd.MaxPoolWithIndices",
        _emit_with_indices,
        (_Y, Result("Indices", "int64")),
        _WINDOW,
        "As MaxPool, over the last axes of X, as many as kernel_shape has; Indices count row-major within each plane.",
    ),
    OpTemplate(
        "umd.MaxPoolGrad",
        (Input("dY"), Input("indices", "Tind")),
        (Result("dX"),),
        _grad_shape,
        _emit_grad,
        {"T": FLOATS, "Tind": INDEX},
        (Attribute("plane_shape", "ints", required=True),),
        flops=lambda call: call.desc(0).element_count,
        doc="Gradient of umd.MaxPoolWithIndices; plane_shape holds the extents of X that were pooled.",
    ),
)
