"""Cells of recurrent layers in plain parts: torch asks devices other than the CPU for fused ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _gates(x: Tensor, h: Tensor, x_bias: Tensor | None, h_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    return (x if x_bias is None else x + x_bias), (h if h_bias is None else h + h_bias)


def lstm(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns (hy, cy, workspace): states (batch, hidden), and the four gates (batch, 4 · hidden) for the gradient.

    Source: Hochreiter and Schmidhuber 1997, in the order input, forget, cell, output of PyTorch 2.13.
    """
    x, h = _gates(input_gates, hidden_gates, input_bias, hidden_bias)
    first, forget, cell, last = (x + h).chunk(4, 1)
    first, forget, cell, last = first.sigmoid(), forget.sigmoid(), cell.tanh(), last.sigmoid()
    cy = forget * cx + first * cell
    return last * cy.tanh(), cy, torch.cat([first, forget, cell, last], 1)


def lstm_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the gradients of the gates (batch, 4 · hidden), of cx and of a bias."""
    first, forget, cell, last = workspace.chunk(4, 1)
    dhy = torch.zeros_like(cx) if grad_hy is None else grad_hy
    squashed = cy.tanh()
    dcy = dhy * last * (1 - squashed * squashed)
    if grad_cy is not None:
        dcy = dcy + grad_cy
    parts = [
        dcy * cell * first * (1 - first),
        dcy * cx * forget * (1 - forget),
        dcy * first * (1 - cell * cell),
        dhy * squashed * last * (1 - last),
    ]
    gates = torch.cat(parts, 1)
    return gates, dcy * forget, gates.sum(0) if has_bias else None


def gru(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns (hy, workspace): the state (batch, hidden), and what the gradient needs (batch, 5 · hidden).

    Source: Cho et al. 2014, in the order reset, update, new of PyTorch 2.13.
    """
    x, h = _gates(input_gates, hidden_gates, input_bias, hidden_bias)
    x_reset, x_update, x_new = x.chunk(3, 1)
    h_reset, h_update, h_new = h.chunk(3, 1)
    reset, update = (x_reset + h_reset).sigmoid(), (x_update + h_update).sigmoid()
    new = (x_new + reset * h_new).tanh()
    return new + update * (hx - new), torch.cat([reset, update, new, hx, h_new], 1)


def gru_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Returns the gradients of both gates (batch, 3 · hidden), of hx and of both biases."""
    reset, update, new, hx, h_new = workspace.chunk(5, 1)
    d_update = grad_hy * (hx - new) * update * (1 - update)
    d_new = grad_hy * (1 - update) * (1 - new * new)
    d_reset = d_new * h_new * reset * (1 - reset)
    x_gates = torch.cat([d_reset, d_update, d_new], 1)
    h_gates = torch.cat([d_reset, d_update, d_new * reset], 1)
    x_bias, h_bias = (x_gates.sum(0), h_gates.sum(0)) if has_bias else (None, None)
    return x_gates, h_gates, grad_hy * update, x_bias, h_bias


DECOMPOSITIONS: dict[Any, Any] = {
    aten._thnn_fused_lstm_cell.default: lstm,
    aten._thnn_fused_lstm_cell_backward_impl.default: lstm_backward,
    aten._thnn_fused_gru_cell.default: gru,
    aten._thnn_fused_gru_cell_backward.default: gru_backward,
}
"""Overload → what is traced instead."""
