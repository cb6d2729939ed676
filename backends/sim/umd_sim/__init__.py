"""The simulator backend: NumPy lowerings for every kernel, and a strict mode that finds driver bugs."""

from __future__ import annotations

__all__: list[str] = []
