"""Gradients of elementwise activations, in terms of their results."""

from __future__ import annotations

from umd_core.builders import gradient

TEMPLATES = (
    gradient("umd.ReluGrad", "relu_grad", "Y", "dX = 0 where Y <= 0, else dY (NaN included); Y is Relu's result."),
    gradient("umd.SigmoidGrad", "sigmoid_grad", "Y", "dX = dY · Y · (1 - Y); Y is Sigmoid's result."),
    gradient("umd.TanhGrad", "tanh_grad", "Y", "dX = dY · (1 - Y²); Y is Tanh's result."),
)
