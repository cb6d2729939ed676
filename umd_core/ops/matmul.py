"""MatMul: matrix product of the last two axes; the axes before them broadcast, as in NumPy."""

from __future__ import annotations

from umd_core.dtypes import NUMERIC
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, Shape, element_count, matrix_product
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    return (matrix_product(call, 0, 1),)


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
