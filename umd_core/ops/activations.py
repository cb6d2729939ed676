"""Activations that one expression kernel computes, some with parameters: Elu, LeakyRelu, HardSigmoid and their kin."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import unary
from umd_core.dtypes import FLOATS, bool_
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, same_shape
from umd_core.views import View


def _with(name: str, kernel: str, doc: str, **parameters: float) -> OpTemplate:
    """Returns an op of one tensor; its parameters are attributes, and scalar operands of the kernel in this order."""

    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        scalars = [recorder.scalar(call.attr(parameter), views[0].dtype) for parameter in parameters]
        return recorder.expression(kernel, (views[0], *scalars), recorder.out(call))

    attributes = tuple(Attribute(parameter, "float", default) for parameter, default in parameters.items())
    return OpTemplate(name, (Input("X"),), (Result("Y"),), same_shape, emit, {"T": FLOATS}, attributes, doc=doc)


_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _emit_selu(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x, out = views[0], recorder.out(call)
    recorder.expression("elu", (x, recorder.scalar(call.attr("alpha"), x.dtype)), out)
    return recorder.expression("mul", (out, recorder.scalar(call.attr("gamma"), x.dtype)), out)


def _emit_thresholded(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    x = views[0]
    kept = recorder.expression("gt", (x, recorder.scalar(call.attr("alpha"), x.dtype)), recorder.new(bool_, x.shape))
    return recorder.expression("select", (kept, x, recorder.scalar(0, x.dtype)), recorder.out(call))


TEMPLATES = (
    _with("LeakyRelu", "leaky_relu", "Y = X, but alpha · X where X < 0.", alpha=0.01),
    _with("Elu", "elu", "Y = X, but alpha · (exp(X) - 1) where X < 0.", alpha=1.0),
    _with("Celu", "celu", "Y = X, but alpha · (exp(X / alpha) - 1) where X < 0.", alpha=1.0),
    _with("HardSigmoid", "hard_sigmoid", "Y = alpha · X + beta, kept between 0 and 1.", alpha=0.2, beta=0.5),
    _with("Swish", "swish", "Y = X · sigmoid(alpha · X).", alpha=1.0),
    unary("HardSwish", "hard_swish", FLOATS, "Y = X · (X / 6 + 1/2, kept between 0 and 1)."),
    unary("Softplus", "softplus", FLOATS, "Y = log(1 + exp(X)), which does not overflow."),
    unary("Softsign", "softsign", FLOATS, "Y = X / (1 + |X|)."),
    unary("Mish", "mish", FLOATS, "Y = X · tanh(softplus(X))."),
    OpTemplate(
        "Selu",
        (Input("X"),),
        (Result("Y"),),
        same_shape,
        _emit_selu,
        {"T": FLOATS},
        (Attribute("alpha", "float", _SELU_ALPHA), Attribute("gamma", "float", _SELU_GAMMA)),
        doc="Y = gamma · (X, but alpha · (exp(X) - 1) where X < 0).",
    ),
    OpTemplate(
        "ThresholdedRelu",
        (Input("X"),),
        (Result("Y"),),
        same_shape,
        _emit_thresholded,
        {"T": FLOATS},
        (Attribute("alpha", "float", 1.0),),
        doc="Y = X where X > alpha, else 0.",
    ),
)
