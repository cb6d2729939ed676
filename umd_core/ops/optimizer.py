"""umd.SGD and umd.AdamW: one step on one parameter, out of place for the graph, in place where that is allowed."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS, float32, float64
from umd_core.recorder import Recorder
from umd_core.shaping import widen
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View

_SCALARS = ("lr", "step")


def _check(call: Call) -> Shape:
    """Returns the parameter's shape; its gradient and state must have it too, lr and step hold one number."""
    shape = call.desc(0).shape
    call.desc(len(call.template.inputs) - 1)
    for index, spec in enumerate(call.template.inputs):
        if spec.optional and not call.has(index):
            continue
        own = call.desc(index)
        if spec.name in _SCALARS and own.element_count != 1:
            raise call.error(f"has shape {list(own.shape)}; one number would be right", input=spec.name)
        if spec.name not in _SCALARS and own.shape != shape:
            raise call.error(f"has shape {list(own.shape)}, the parameter's is {list(shape)}", input=spec.name)
    return shape


def _scalar(recorder: Recorder, view: View) -> View:
    """Returns a tensor of one element as a 0-d float32."""
    return widen(recorder, View(view.buffer, view.dtype, (), (), view.offset), float32)


def _sgd_shape(call: Call) -> tuple[Shape, ...]:
    shape = _check(call)
    if call.attr("momentum") and not call.has(2):
        raise call.bad_attribute("momentum", "needs input M, the momentum so far", "0, or an input M")
    return (shape, shape) if call.has(2) else (shape,)


def _emit_sgd(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View, ...]:
    gradient, momentum, lr, step = views[1:]
    p = recorder.mutable(views[0])
    operands = {"p": p, "g": gradient, "lr": _scalar(recorder, lr)}
    fields = {"weight_decay": call.attr("weight_decay")}
    if not momentum:
        recorder.launch("sgd_kernel", {"extents": p.shape}, operands, fields)
        return (p,)
    m = operands["m"] = recorder.mutable(momentum)
    operands["step"] = _scalar(recorder, step)
    fields |= {"momentum": call.attr("momentum"), "dampening": call.attr("dampening")}
    fields["nesterov"] = int(call.attr("nesterov"))
    recorder.launch("sgd_momentum_kernel", {"extents": p.shape}, operands, fields)
    return (p, m)


def _adamw_shape(call: Call) -> tuple[Shape, Shape, Shape]:
    shape = _check(call)
    return (shape, shape, shape)


def _emit_adamw(recorder: Recorder, call: Call, views: tuple[View, ...]) -> tuple[View, ...]:
    p, m, v = (recorder.mutable(views[i]) for i in (0, 2, 3))
    operands = {
        "p": p, "g": views[1], "m": m, "v": v, "lr": _scalar(recorder, views[4]), "step": _scalar(recorder, views[5]),
    }  # fmt: skip
    fields = {name: call.attr(name) for name in ("beta1", "beta2", "epsilon", "weight_decay")}
    fields["decoupled"] = int(call.attr("decoupled"))
    recorder.launch("adamw_kernel", {"extents": p.shape}, operands, fields)
    return (p, m, v)


def _float(name: str, default: float) -> Attribute:
    return Attribute(name, "float", default)


_TYPES = {"T": FLOATS, "L": (float32, float64), "S": (float32, float64)}
TEMPLATES = (
    OpTemplate(
        "umd.SGD",
        (Input("P"), Input("G"), Input("M", optional=True), Input("lr", "L"), Input("step", "S")),
        (Result("new_P"), Result("new_M", optional=True)),
        _sgd_shape,
        _emit_sgd,
        _TYPES,
        (_float("dampening", 0.0), _float("momentum", 0.0), Attribute("nesterov", "bool", False),
         _float("weight_decay", 0.0)),
        flops=lambda call: 4 * call.desc(0).element_count,
        doc="One step of torch.optim.SGD on parameter P with gradient G and, if given, momentum M; step counts this "
        "update, from 1.",
        source="https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html",
    ),
    OpTemplate(
        "umd.AdamW",
        (Input("P"), Input("G"), Input("M"), Input("V"), Input("lr", "L"), Input("step", "S")),
        (Result("new_P"), Result("new_M"), Result("new_V")),
        _adamw_shape,
        _emit_adamw,
        _TYPES,
        (_float("beta1", 0.9), _float("beta2", 0.999), Attribute("decoupled", "bool", True),
         _float("epsilon", 1e-8), _float("weight_decay", 0.01)),
        flops=lambda call: 14 * call.desc(0).element_count,
        doc="One step of torch.optim.AdamW, or of Adam where decoupled is 0, on parameter P with gradient G and "
        "moments M and V; step counts this update, from 1.",
        source="Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019",
    ),
)  # fmt: skip
