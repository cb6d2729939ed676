"""Gelu and its gradient, exact or by the tanh approximation."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.builders import like_gradient
from umd_core.dtypes import FLOATS
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, same_shape
from umd_core.views import View

_KERNELS = {"none": "gelu", "tanh": "gelu_tanh"}
_GRAD_KERNELS = {"none": "gelu_grad", "tanh": "gelu_tanh_grad"}
_APPROXIMATE = (Attribute("approximate", "string", "none", choices=tuple(_KERNELS)),)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    return recorder.expression(_KERNELS[call.attr("approximate")], views, recorder.out(call))


def _emit_grad(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    return recorder.expression(_GRAD_KERNELS[call.attr("approximate")], views, recorder.out(call))


TEMPLATES = (
    OpTemplate(
        "Gelu",
        (Input("X"),),
        (Result("Y"),),
        same_shape,
        _emit,
        {"T": FLOATS},
        _APPROXIMATE,
        doc="Y = X / 2 · (1 + erf(X / sqrt 2)), or with approximate tanh "
        "X / 2 · (1 + tanh(sqrt(2 / pi) · (X + 0.044715 X³))).",
        source="Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415",
    ),
    OpTemplate(
        "umd.GeluGrad",
        (Input("dY"), Input("X")),
        (Result("dX"),),
        like_gradient,
        _emit_grad,
        {"T": FLOATS},
        _APPROXIMATE,
        doc="dX = dY · derivative of Gelu at X, which is Gelu's input.",
    ),
)
