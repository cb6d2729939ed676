"""Softmax and LogSoftmax along one axis, and their gradients."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.recorder import Recorder
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape, normal_axis, same_shape
from umd_core.views import View


def _order(call: Call) -> tuple[list[int], list[int]]:
    """Returns the axes that stay and the axis that is summed over (none in a 0-d tensor)."""
    rank = call.desc(0).rank
    axis = normal_axis(call, call.attr("axis"), rank)
    return [a for a in range(rank) if a != axis], [axis] if rank else []


def _shape(call: Call) -> tuple[Shape]:
    _order(call)
    return same_shape(call)


def _grad_shape(call: Call) -> tuple[Shape]:
    dy, y = call.desc(0).shape, call.desc(1).shape
    if dy != y:
        raise call.error(f"has shape {list(y)}, dY has {list(dy)}; equal shapes would be right", input="Y")
    return _shape(call)


def _rows(kernel: str, names: tuple[str, ...]) -> Emit:
    """Returns an emit function: a kernel over rows along the axis; `names` are its operands, the last one written."""

    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        outer, inner = _order(call)
        out = recorder.out(call)
        extents = {"outer": tuple(out.shape[a] for a in outer), "inner": tuple(out.shape[a] for a in inner)}
        operands = {n: v.permute([*outer, *inner]) for n, v in zip(names, (*views, out), strict=True)}
        recorder.launch(kernel, extents, operands)
        return out

    return emit


def _template(name: str, inputs: tuple[str, ...], result: str, emit: Emit, axis: Attribute, doc: str) -> OpTemplate:
    return OpTemplate(
        name,
        tuple(Input(i) for i in inputs),
        (Result(result),),
        _shape if len(inputs) == 1 else _grad_shape,
        emit,
        {"T": FLOATS},
        (axis,),
        flops=lambda call: 5 * call.desc(0).element_count,
        doc=doc,
    )


_AXIS = Attribute("axis", "int", -1)
TEMPLATES = (
    _template(
        "Softmax", ("input",), "output", _rows("softmax_kernel", ("x", "y")), _AXIS,
        "exp(input) divided by its sum along axis.",
    ),
    _template(
        "LogSoftmax", ("input",), "output", _rows("log_softmax_kernel", ("x", "y")), _AXIS,
        "Logarithm of Softmax along axis.",
    ),
    _template(
        "umd.SoftmaxGrad", ("dY", "Y"), "dX", _rows("softmax_grad_kernel", ("dy", "y", "dx")), _AXIS,
        "dX = Y · (dY - sum of dY · Y along axis); Y is Softmax's result.",
    ),
    _template(
        "umd.LogSoftmaxGrad", ("dY", "Y"), "dX", _rows("log_softmax_grad_kernel", ("dy", "y", "dx")), _AXIS,
        "dX = dY - exp(Y) · sum of dY along axis; Y is LogSoftmax's result.",
    ),
)  # fmt: skip
