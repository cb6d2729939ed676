"""Elementwise ops of one tensor: arithmetic, functions of a float, rounding, logic."""

from __future__ import annotations

from umd_core.builders import unary
from umd_core.dtypes import BOOL, FLOATS, INTEGERS, NUMERIC

TEMPLATES = (
    unary("Neg", "neg", NUMERIC, "Y = -X; integers wrap."),
    unary("Abs", "abs", NUMERIC, "Y = |X|; the least integer stays what it is."),
    unary("Sign", "sign", NUMERIC, "Y = -1, 0 or 1; NaN stays NaN."),
    unary("Reciprocal", "reciprocal", FLOATS, "Y = 1 / X."),
    unary("Exp", "exp", FLOATS, "Y = e to the power of X."),
    unary("Log", "log", FLOATS, "Y = natural logarithm of X; NaN below 0."),
    unary("Sqrt", "sqrt", FLOATS, "Y = square root of X; NaN below 0."),
    unary("Sin", "sin", FLOATS, "Y = sine of X in radians."),
    unary("Cos", "cos", FLOATS, "Y = cosine of X in radians."),
    unary("Tan", "tan", FLOATS, "Y = tangent of X in radians."),
    unary("Asin", "asin", FLOATS, "Y = arc sine of X in radians; NaN outside [-1, 1]."),
    unary("Acos", "acos", FLOATS, "Y = arc cosine of X in radians; NaN outside [-1, 1]."),
    unary("Atan", "atan", FLOATS, "Y = arc tangent of X in radians."),
    unary("Sinh", "sinh", FLOATS, "Y = hyperbolic sine of X."),
    unary("Cosh", "cosh", FLOATS, "Y = hyperbolic cosine of X."),
    unary("Asinh", "asinh", FLOATS, "Y = inverse hyperbolic sine of X."),
    unary("Acosh", "acosh", FLOATS, "Y = inverse hyperbolic cosine of X; NaN below 1."),
    unary("Atanh", "atanh", FLOATS, "Y = inverse hyperbolic tangent of X; NaN outside [-1, 1]."),
    unary("Tanh", "tanh", FLOATS, "Y = hyperbolic tangent of X."),
    unary("Sigmoid", "sigmoid", FLOATS, "Y = 1 / (1 + exp(-X))."),
    unary("Erf", "erf", FLOATS, "Y = error function of X."),
    unary("Floor", "floor", FLOATS, "Y = largest integer not above X."),
    unary("Ceil", "ceil", FLOATS, "Y = smallest integer not below X."),
    unary("Round", "round", FLOATS, "Y = nearest integer to X, halves to even."),
    unary("Relu", "relu", NUMERIC, "Y = max(X, 0)."),
    unary("IsNaN", "isnan", FLOATS, "Y = whether X is NaN.", out="bool"),
    unary("Not", "not", BOOL, "Y = not X."),
    unary("BitwiseNot", "bitnot", INTEGERS, "Y = X with every bit flipped."),
    unary("umd.Rsqrt", "rsqrt", FLOATS, "Y = 1 / square root of X."),
    unary("umd.Log1p", "log1p", FLOATS, "Y = log(1 + X), accurate near 0."),
    unary("umd.Expm1", "expm1", FLOATS, "Y = exp(X) - 1, accurate near 0."),
    unary("umd.Trunc", "trunc", FLOATS, "Y = X without its fraction."),
)
