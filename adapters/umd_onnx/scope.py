"""Names while a model is imported."""

from __future__ import annotations

from collections.abc import Iterable

from umd_core.errors import UnsupportedError
from umd_onnx.values import Value


class Scope:
    """Names and what they stand for: the model's graph, a branch of it or a function's body."""

    def __init__(self, outer: Scope | None = None) -> None:
        self._outer = outer
        self._values: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        if not name:
            return None
        scope: Scope | None = self
        while scope is not None:
            if name in scope._values:
                return scope._values[name]
            scope = scope._outer
        raise UnsupportedError(f"value {name!r} is used before it is there")

    def forget(self, names: Iterable[str]) -> None:
        """Lets go of values that nothing needs any more: weights made ready are large."""
        for name in names:
            self._values.pop(name, None)

    def __setitem__(self, name: str, value: Value) -> None:
        if name:
            self._values[name] = value
