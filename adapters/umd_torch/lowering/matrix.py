"""Products of matrices."""

from __future__ import annotations

import torch

from umd_torch.builder import Builder, Value
from umd_torch.lowering.common import Number, Table

aten = torch.ops.aten


def _product(b: Builder, x: Value, y: Value) -> Value:
    return b.op("MatMul", x, y)


def _plus_product(b: Builder, bias: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1) -> Value:
    """Returns beta · bias + alpha · x · y; a bias that beta takes away is not read, NaN or not."""
    if x.rank == 2 and y.rank == 2:
        return b.op("Gemm", x, y, bias if beta else None, alpha=float(alpha), beta=float(beta))
    product = b.op("MatMul", x, y)
    if alpha != 1:
        product = b.op("Mul", product, b.scalar(alpha, product.dtype))
    if not beta:
        return product
    scaled = bias if beta == 1 else b.op("Mul", bias, b.scalar(beta, bias.dtype))
    return b.op("Add", scaled, product)


def _dot(b: Builder, x: Value, y: Value) -> Value:
    return b.reshape(b.op("MatMul", x, y), ())


def _linear(b: Builder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    product = b.op("MatMul", x, b.transpose(weight, (1, 0)) if weight.rank == 2 else weight)
    return product if bias is None else b.op("Add", product, bias)


TABLE: Table = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.mv.default: _product,
    aten.matmul.default: _product,
    aten.dot.default: _dot,
    aten.addmm.default: _plus_product,
    aten.addmv.default: _plus_product,
    aten.baddbmm.default: _plus_product,
    aten.linear.default: _linear,
}
