"""Elementwise comparisons of two tensors that broadcast; the result is bool."""

from __future__ import annotations

from umd_core.builders import compare
from umd_core.dtypes import ALL

TEMPLATES = (
    compare("Equal", "eq", "C = A == B; NaN equals nothing.", ALL),
    compare("umd.NotEqual", "ne", "C = A != B; NaN differs from everything.", ALL),
    compare("Less", "lt", "C = A < B."),
    compare("LessOrEqual", "le", "C = A <= B."),
    compare("Greater", "gt", "C = A > B."),
    compare("GreaterOrEqual", "ge", "C = A >= B."),
)
