"""Naive reference of every kernel: float64 (or more) arithmetic, Python integers, plain loops. Slow on purpose.

It shares no code with any backend, so that agreement means something.
"""

from __future__ import annotations

from umd_core.testing.reference.core import Case, Expected, reference

__all__ = ["Case", "Expected", "reference"]
