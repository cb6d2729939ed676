"""Strategies for op requests: an op of the table with inputs and attributes that it accepts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from umd_core.commands import CommandBuffer
from umd_core.dtypes import BY_NAME, DType
from umd_core.errors import UmdError
from umd_core.ir import TensorDesc
from umd_core.ops import OPS
from umd_core.template import OpTemplate
from umd_core.translate import translate

Shape = tuple[int, ...]
Drawn = tuple[list[Shape], dict[str, Any]]
_SIDE = st.integers(1, 4)
_RANK = st.lists(_SIDE, min_size=1, max_size=4).map(tuple)


@dataclass(frozen=True, slots=True)
class OpRequest:
    """What a framework asks for: `translate(op, inputs, **attributes)`."""

    op: str
    inputs: tuple[TensorDesc, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def translate(self) -> CommandBuffer:
        """Returns the command buffer."""
        return translate(self.op, self.inputs, **self.attributes)


def _broadcast(draw: st.DrawFn, count: int) -> Drawn:
    """Shapes that broadcast together."""
    whole = draw(_RANK)
    shapes = []
    for _ in range(count):
        kept = whole[draw(st.integers(0, len(whole))) :]
        shapes.append(tuple(extent if draw(st.integers(0, 3)) else 1 for extent in kept))
    return shapes, {}


def _matmul(draw: st.DrawFn, count: int) -> Drawn:
    rows, depth, columns = draw(_SIDE), draw(_SIDE), draw(_SIDE)
    batch = draw(st.lists(_SIDE, max_size=2).map(tuple))
    return [(*batch, rows, depth), (*batch[len(batch) // 2 :], depth, columns)], {}


def _gemm(draw: st.DrawFn, count: int) -> Drawn:
    rows, depth, columns = draw(_SIDE), draw(_SIDE), draw(_SIDE)
    left, right = draw(st.booleans()), draw(st.booleans())
    shapes = [(depth, rows) if left else (rows, depth), (columns, depth) if right else (depth, columns), (columns,)]
    return shapes[:count], {"transA": left, "transB": right, "alpha": draw(st.sampled_from([1.0, 0.5]))}


def _window(draw: st.DrawFn) -> tuple[Shape, Shape, dict[str, Any]]:
    """Input plane, kernel, and window attributes."""
    axes = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(axes))
    plane = tuple(draw(st.integers(2 * k, 7)) for k in kernel)
    attributes = {
        "strides": [draw(st.integers(1, 2)) for _ in range(axes)],
        "pads": [draw(st.integers(0, k - 1)) for k in kernel] * 2,
    }
    return plane, kernel, attributes


def _conv(draw: st.DrawFn, count: int) -> Drawn:
    plane, kernel, attributes = _window(draw)
    groups, inputs, outputs = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    shapes = [(draw(_SIDE), groups * inputs, *plane), (groups * outputs, inputs, *kernel), (groups * outputs,)]
    return shapes[:count], {**attributes, "group": groups}


def _pool(draw: st.DrawFn, count: int) -> Drawn:
    plane, kernel, attributes = _window(draw)
    return [(draw(_SIDE), draw(_SIDE), *plane)], {**attributes, "kernel_shape": list(kernel)}


def _reduction(draw: st.DrawFn, count: int) -> Drawn:
    shape = draw(_RANK)
    axes = draw(st.lists(st.sampled_from(range(-len(shape), 0)), unique=True, min_size=1))
    return [shape], {"axes": axes, "keepdims": draw(st.booleans())}


def _along_axis(draw: st.DrawFn, count: int) -> Drawn:
    shape = draw(_RANK)
    return [shape], {"axis": draw(st.integers(-len(shape), len(shape) - 1))}


def _top_k(draw: st.DrawFn, count: int) -> Drawn:
    (shape,), attributes = _along_axis(draw, count)
    return [shape], {
        **attributes,
        "K": [draw(st.integers(0, shape[attributes["axis"]]))],
        "largest": draw(st.booleans()),
    }


def _concat(draw: st.DrawFn, count: int) -> Drawn:
    shape = draw(_RANK)
    axis = draw(st.integers(0, len(shape) - 1))
    shapes = [(*shape[:axis], draw(_SIDE), *shape[axis + 1 :]) for _ in range(draw(st.integers(1, 3)))]
    return shapes, {"axis": axis}


def _transpose(draw: st.DrawFn, count: int) -> Drawn:
    shape = draw(_RANK)
    return [shape], {"perm": list(draw(st.permutations(range(len(shape)))))}


def _reshape(draw: st.DrawFn, count: int) -> Drawn:
    shape = draw(_RANK)
    return [shape], {"shape": [-1] if draw(st.booleans()) else list(shape[::-1])}


def _gather(draw: st.DrawFn, count: int) -> Drawn:
    shape = draw(_RANK)
    return [shape, draw(st.lists(_SIDE, max_size=2).map(tuple))], {"axis": draw(st.integers(0, len(shape) - 1))}


def _slice(draw: st.DrawFn, count: int) -> Drawn:
    shape = draw(_RANK)
    axis, step = draw(st.integers(0, len(shape) - 1)), draw(st.sampled_from([-2, -1, 1, 2]))
    ends = st.integers(-5, 5)
    return [shape], {"starts": [draw(ends)], "ends": [draw(ends)], "axes": [axis], "steps": [step]}


def _expand(draw: st.DrawFn, count: int) -> Drawn:
    whole = draw(_RANK)
    kept = whole[draw(st.integers(0, len(whole))) :]
    return [tuple(1 if draw(st.booleans()) else extent for extent in kept)], {"shape": list(whole)}


def _pad(draw: st.DrawFn, count: int) -> Drawn:
    shape = draw(_RANK)
    return [shape], {"pads": [draw(st.integers(0, 2)) for _ in range(2 * len(shape))]}


def _unsqueeze(draw: st.DrawFn, count: int) -> Drawn:
    shape = draw(_RANK)
    return [shape], {"axes": [draw(st.integers(-len(shape) - 1, len(shape)))]}


def _layer_norm(draw: st.DrawFn, count: int) -> Drawn:
    shape = draw(_RANK)
    axis = draw(st.integers(0, len(shape) - 1))
    return [shape, shape[axis:], shape[axis:]][:count], {"axis": axis}


def _batch_norm(draw: st.DrawFn, count: int) -> Drawn:
    shape = (draw(_SIDE), draw(_SIDE), *draw(st.lists(_SIDE, max_size=2)))
    return [shape, *[(shape[1],)] * 4], {}


def _cast(draw: st.DrawFn, count: int) -> Drawn:
    return [draw(_RANK)], {"to": draw(st.sampled_from(sorted(BY_NAME)))}


_HINTS: dict[str, Callable[[st.DrawFn, int], Drawn]] = {
    "MatMul": _matmul, "Gemm": _gemm, "Conv": _conv, "MaxPool": _pool, "AveragePool": _pool,
    "ReduceSum": _reduction, "ReduceMean": _reduction, "ReduceMax": _reduction, "ReduceMin": _reduction,
    "ArgMax": _along_axis, "ArgMin": _along_axis, "Softmax": _along_axis, "LogSoftmax": _along_axis,
    "CumSum": _along_axis, "CumProd": _along_axis, "TopK": _top_k,
    "Concat": _concat, "Transpose": _transpose, "Reshape": _reshape, "Gather": _gather, "Slice": _slice,
    "Expand": _expand, "Pad": _pad, "Unsqueeze": _unsqueeze, "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm, "Cast": _cast,
}  # fmt: skip


@functools.cache
def requestable() -> tuple[str, ...]:
    """Returns the ops that `op_requests` knows how to ask for: those above, and all whose inputs just broadcast."""
    plain = []
    for name, template in OPS.items():
        inputs = [i for i in template.inputs if not i.optional]
        if (
            name in _HINTS
            or not inputs
            or any(i.static for i in inputs)
            or any(a.required for a in template.attributes)
        ):
            continue
        try:
            translate(name, [TensorDesc(_types(template, i.type)[0], (2, 3)) for i in inputs])
            translate(name, [TensorDesc(_types(template, i.type)[0], ()) for i in inputs])
        except UmdError:  # an op that refuses these is not plain
            continue
        plain.append(name)
    return (*_HINTS, *plain)


def _types(template: OpTemplate, name: str) -> Sequence[DType]:
    return template.types.get(name) or (BY_NAME[name],)


@st.composite
def op_requests(draw: st.DrawFn, ops: Sequence[str] | None = None) -> OpRequest:
    """Returns a strategy for requests that the op table accepts, over dtypes, shapes and attributes."""
    op = draw(st.sampled_from(list(ops or requestable())))
    template = OPS[op]
    wanted = [i for i in template.inputs if not i.static]
    least = sum(not (i.optional or i.variadic) for i in wanted)
    count = draw(st.integers(max(least, 1), len(wanted)))
    shapes, attributes = _HINTS.get(op, _broadcast)(draw, count)
    bound: dict[str, DType] = {}
    inputs = []
    for index, shape in enumerate(shapes):
        kind = wanted[min(index, len(wanted) - 1)].type
        dtype = bound.setdefault(kind, draw(st.sampled_from(list(_types(template, kind)))))
        inputs.append(TensorDesc(dtype, shape))
    request = OpRequest(op, tuple(inputs), attributes)
    try:
        request.translate()
    except UmdError:
        assume(False)
    return request
