"""Builders of whole families of op templates: unary, binary, compare, gradients, movement."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.attributes import Attribute
from umd_core.dtypes import DType
from umd_core.recorder import Recorder
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape, broadcast_shape, same_shape
from umd_core.views import View


def expression(kernel: str) -> Emit:
    """Returns an emit function: one expression kernel over all inputs, broadcast."""

    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        return recorder.expression(kernel, views, recorder.out(call))

    return emit


def unary(
    name: str,
    kernel: str,
    types: tuple[DType, ...],
    doc: str,
    *,
    out: str = "T",
    attributes: tuple[Attribute, ...] = (),
) -> OpTemplate:
    """Returns an op of one tensor that one expression kernel computes elementwise."""
    return OpTemplate(
        name, (Input("X"),), (Result("Y", out),), same_shape, expression(kernel), {"T": types}, attributes, doc=doc
    )


def binary(name: str, kernel: str, types: tuple[DType, ...], doc: str, *, out: str = "T") -> OpTemplate:
    """Returns an op of two tensors that broadcast."""
    return OpTemplate(
        name,
        (Input("A"), Input("B")),
        (Result("C", out),),
        broadcast_shape,
        expression(kernel),
        {"T": types},
        doc=doc,
    )


def compare(name: str, kernel: str, doc: str, types: tuple[DType, ...] = dtypes.NUMERIC) -> OpTemplate:
    """Returns an op of two tensors whose result is bool."""
    return binary(name, kernel, types, doc, out="bool")


def gradient(name: str, kernel: str, second: str, doc: str) -> OpTemplate:
    """Returns an op that turns dY, the gradient of a result, and `second` into the gradient of the input."""
    return OpTemplate(
        name,
        (Input("dY"), Input(second)),
        (Result("dX"),),
        like_gradient,
        expression(kernel),
        {"T": dtypes.FLOATS},
        doc=doc,
    )


def like_gradient(call: Call) -> tuple[Shape]:
    """Shape rule: both inputs have one shape, and so has the output."""
    first, second = call.desc(0).shape, call.desc(1).shape
    if first != second:
        names = [i.name for i in call.template.inputs]
        detail = f"has shape {list(second)}, input {names[0]!r} has {list(first)}; equal shapes would be right"
        raise call.error(detail, input=names[1])
    return (first,)


def check_indexable(call: Call, extent: int, index: int = 1) -> None:
    """Checks that input `index`, which holds indices, is empty when the axis that they count along is.

    Raises:
        ShapeError: any index would be out of range.
    """
    if extent == 0 and call.desc(index).element_count:
        detail = f"has {call.desc(index).element_count} elements, but the axis that they index has none"
        raise call.error(detail, input=call.template.inputs[index].name)


def no_flops(call: Call) -> int:
    """Cost of an op that only moves data: 0."""
    return 0


def input_flops(call: Call) -> int:
    """Cost of an op that does one operation per element of its first input."""
    return call.desc(0).element_count
