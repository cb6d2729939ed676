"""MatMul: matrix product of the last two axes; the axes before them broadcast, as in NumPy."""

from __future__ import annotations

from umd_core.dtypes import NUMERIC
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, broadcast, element_count
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    a, b = call.desc(0).shape, call.desc(1).shape
    for name, shape in (("A", a), ("B", b)):
        if not shape:
            raise call.error("is 0-d; one axis or more would be right", input=name)
    depth = b[-2:][0]
    if a[-1] != depth:
        raise call.error(
            f"has {depth} rows, but input 'A' has {a[-1]} columns (shapes {list(a)} and {list(b)})", input="B"
        )
    batch = broadcast(a[:-2], b[:-2])
    if batch is None:
        raise call.error(f"leading axes {list(b[:-2])} do not broadcast with input 'A', {list(a[:-2])}", input="B")
    return (batch + (a[-2:-1] if len(a) > 1 else ()) + (b[-1:] if len(b) > 1 else ()),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    a, b = views
    out = product = recorder.out(call)
    if b.rank == 1:
        b, product = b.unsqueeze(1), product.unsqueeze(product.rank)
    if a.rank == 1:
        a, product = a.unsqueeze(0), product.unsqueeze(product.rank - 1)
    recorder.gemm(a, b, product)
    return out


def _flops(call: Call) -> int:
    return 2 * element_count(call.outputs[0].shape) * call.desc(0).shape[-1]


TEMPLATES = (
    OpTemplate(
        "MatMul",
        (Input("A"), Input("B")),
        (Result("Y"),),
        _shape,
        _emit,
        {"T": NUMERIC},
        flops=_flops,
        doc="Y = A · B, matrices of the last two axes; a 1-d input is a row (A) or column (B) and loses that axis.",
    ),
)
