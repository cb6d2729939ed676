"""Elementwise logic and bit operations of two tensors that broadcast."""

from __future__ import annotations

from umd_core.builders import binary
from umd_core.dtypes import BOOL, INTEGERS

TEMPLATES = (
    binary("And", "and", BOOL, "C = A and B."),
    binary("Or", "or", BOOL, "C = A or B."),
    binary("Xor", "xor", BOOL, "C = A differs from B."),
    binary("BitwiseAnd", "bitand", INTEGERS, "C = A & B."),
    binary("BitwiseOr", "bitor", INTEGERS, "C = A | B."),
    binary("BitwiseXor", "bitxor", INTEGERS, "C = A ^ B."),
)
