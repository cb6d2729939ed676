"""Gemm: alpha times a product of two matrices, plus beta times a matrix that broadcasts."""

from __future__ import annotations

import numpy as np

from umd_core.attributes import Attribute
from umd_core.dtypes import NUMERIC
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, broadcast
from umd_core.views import View


def _sides(call: Call) -> tuple[Shape, Shape]:
    """Returns (rows, depth) of A and (depth, columns) of B, transposed as asked."""
    sides = []
    for index, flag in ((0, "transA"), (1, "transB")):
        shape = call.desc(index).shape
        if len(shape) != 2:
            raise call.error(f"has rank {len(shape)}; 2 would be right", input="AB"[index])
        sides.append(shape[::-1] if call.attr(flag) else shape)
    return sides[0], sides[1]


def _shape(call: Call) -> tuple[Shape]:
    a, b = _sides(call)
    if a[1] != b[0]:
        raise call.error(f"has {b[0]} rows, but input 'A' has {a[1]} columns, after any transposition", input="B")
    shape = (a[0], b[1])
    if call.has(2) and broadcast(call.desc(2).shape, shape) != shape:
        raise call.error(f"has shape {list(call.desc(2).shape)}, which does not broadcast to {list(shape)}", input="C")
    for name in ("alpha", "beta") if call.types["T"].is_integer else ():
        limits, value = np.iinfo(call.types["T"].numpy), call.attr(name)
        if not (value.is_integer() and limits.min <= value <= limits.max):
            raise call.bad_attribute(
                name, f"{value} is not a number of {call.types['T']}", "a whole number in its range"
            )
    return (shape,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    a, b = (v.permute((1, 0)) if call.attr(f) else v for v, f in zip(views, ("transA", "transB"), strict=False))
    out = recorder.out(call)
    alpha, beta = call.attr("alpha"), call.attr("beta")
    if alpha == 0:
        recorder.fill(out, 0)
    else:
        recorder.gemm(a, b, out)
    if alpha not in (0, 1):
        recorder.expression("mul", (out, recorder.scalar(alpha, out.dtype)), out)
    if beta == 0 or len(views) < 3 or not views[2]:
        return out
    if beta == 1:
        return recorder.expression("add", (out, views[2]), out)
    return recorder.expression("multiply_add", (views[2], recorder.scalar(beta, out.dtype), out), out)


def _flops(call: Call) -> int:
    (rows, depth), (_, columns) = _sides(call)
    return rows * columns * (2 * depth + 2 * call.has(2))


TEMPLATES = (
    OpTemplate(
        "Gemm",
        (Input("A"), Input("B"), Input("C", optional=True)),
        (Result("Y"),),
        _shape,
        _emit,
        {"T": NUMERIC},
        (
            Attribute("alpha", "float", 1.0),
            Attribute("beta", "float", 1.0),
            Attribute("transA", "bool", False),
            Attribute("transB", "bool", False),
        ),
        flops=_flops,
        doc="Y = alpha · A · B + beta · C, with A and B transposed as asked; C is not read where beta is 0.",
    ),
)
