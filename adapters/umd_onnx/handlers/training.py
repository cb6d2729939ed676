"""Optimizers of ONNX's preview domain for training: function bodies for one parameter, applied to each.

Source: the ops' documentation in ONNX, domain ai.onnx.preview.training, version 1.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx
from onnx import parser

from umd_core.errors import AttributeValueError
from umd_onnx.handlers.common import Attributes
from umd_onnx.scope import Scope
from umd_onnx.values import Value

if TYPE_CHECKING:
    from umd_onnx.importer import Handler, Importer

DOMAIN = "ai.onnx.preview.training"
_START = """
    one = Constant <value_float = 1.0> ()
    zero = Constant <value_float = 0.0> ()
    t = Cast <to = 1> (T)
    r32 = Cast <to = 1> (R)
    later = Greater (t, zero)
    regularization = Constant <value_float: float = @norm_coefficient> ()
    regularization_x = CastLike (regularization, X)
    decayed = Mul (regularization_x, X)
    g = Add (decayed, G)
"""
_BODIES = {
    "Adagrad": (
        "<norm_coefficient, decay_factor, epsilon> (R, T, X, G, H) => (X_new, H_new)",
        """
    decay = Constant <value_float: float = @decay_factor> ()
    grown = Mul (t, decay)
    divisor = Add (one, grown)
    rate = Div (r32, divisor)
    rate_x = CastLike (rate, X)
    g_squared = Mul (g, g)
    H_new = Add (H, g_squared)
    root = Sqrt (H_new)
    small = Constant <value_float: float = @epsilon> ()
    small_x = CastLike (small, X)
    adaptive = Add (root, small_x)
    scaled = Mul (rate_x, g)
    step = Div (scaled, adaptive)
    X_new = Sub (X, step)
""",
    ),
    "Adam": (
        "<norm_coefficient, norm_coefficient_post, alpha, beta, epsilon> (R, T, X, G, V, H) => (X_new, V_new, H_new)",
        """
    a = Constant <value_float: float = @alpha> ()
    a_x = CastLike (a, X)
    b = Constant <value_float: float = @beta> ()
    b_x = CastLike (b, X)
    one_x = CastLike (one, X)
    a_rest = Sub (one_x, a_x)
    b_rest = Sub (one_x, b_x)
    v_old = Mul (a_x, V)
    v_part = Mul (a_rest, g)
    V_new = Add (v_old, v_part)
    g_squared = Mul (g, g)
    h_old = Mul (b_x, H)
    h_part = Mul (b_rest, g_squared)
    H_new = Add (h_old, h_part)
    root = Sqrt (H_new)
    small = Constant <value_float: float = @epsilon> ()
    small_x = CastLike (small, X)
    h_root = Add (root, small_x)
    b_power = Pow (b, t)
    b_left = Sub (one, b_power)
    b_root = Sqrt (b_left)
    a_power = Pow (a, t)
    a_left = Sub (one, a_power)
    factor = Div (b_root, a_left)
    corrected = Mul (r32, factor)
    rate = Where (later, corrected, r32)
    rate_x = CastLike (rate, X)
    scaled = Mul (rate_x, V_new)
    step = Div (scaled, h_root)
    moved = Sub (X, step)
    post = Constant <value_float: float = @norm_coefficient_post> ()
    kept = Sub (one, post)
    kept_x = CastLike (kept, X)
    X_new = Mul (kept_x, moved)
""",
    ),
    "Momentum": (
        "<norm_coefficient, alpha, beta> (R, T, X, G, V) => (X_new, V_new)",
        """
    a = Constant <value_float: float = @alpha> ()
    a_x = CastLike (a, X)
    b = Constant <value_float: float = @beta> ()
    b_used = Where (later, b, one)
    b_x = CastLike (b_used, X)
    v_old = Mul (a_x, V)
    v_part = Mul (b_x, g)
    V_new = Add (v_old, v_part)
    rate = CastLike (R, X)
    step = Mul (rate, V_new)
    X_new = Sub (X, step)
""",
    ),
}
_NESTEROV = (
    "    step = Mul (rate, V_new)",
    "    ahead = Mul (a_x, V_new)\n    direction = Add (g, ahead)\n    step = Mul (rate, direction)",
)


@functools.cache
def _body(op: str, nesterov: bool) -> onnx.FunctionProto:
    signature, body = _BODIES[op]
    if nesterov:
        body = body.replace(*_NESTEROV)
    text = f'<domain: "{DOMAIN}", opset_import: ["" : 28]>\n{op} {signature} {{{_START}{body}}}'
    return parser.parse_function(text)


def _optimizer(i: Importer, scope: Scope, node: onnx.NodeProto, attributes: Attributes) -> Sequence[Value]:
    mode = attributes.get("mode", "standard")
    if mode not in ("standard", "nesterov"):
        raise AttributeValueError(node.op_type, "mode", "is unknown", value=mode, wanted="standard or nesterov")
    body = _body(node.op_type, mode == "nesterov")
    rate, count, *tensors = (scope[name] for name in node.input)
    parameters = len(tensors) // (len(body.input) - 2)
    columns = [
        i.function(body, node, [rate, count, *tensors[n::parameters]], [True] * len(body.output))
        for n in range(parameters)
    ]
    return [value for row in zip(*columns, strict=True) for value in row]


HANDLERS: Mapping[str, Handler] = {f"{DOMAIN}.{op}": _optimizer for op in _BODIES}
