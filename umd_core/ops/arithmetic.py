"""Add, Sub, Mul, Div: arithmetic of two tensors that broadcast."""

from __future__ import annotations

from umd_core.builders import binary
from umd_core.dtypes import NUMERIC

TEMPLATES = (
    binary("Add", "add", NUMERIC, "C = A + B."),
    binary("Sub", "sub", NUMERIC, "C = A - B."),
    binary("Mul", "mul", NUMERIC, "C = A · B."),
    binary("Div", "div", NUMERIC, "C = A / B; integers truncate toward zero, and x / 0 is 0."),
)
