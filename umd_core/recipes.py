"""From one use of an op to a recipe: what it launches, in terms of its own buffers. Cached by signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from umd_core.decompositions import DECOMPOSITIONS
from umd_core.errors import UmdError
from umd_core.ir import Array, TensorDesc, row_major
from umd_core.ops import op_template
from umd_core.recorder import CopyBytes, Recorder, Step, Supports
from umd_core.views import View

CAPACITY = 65536
"""Entries that a cache holds before it is emptied."""


class Recipe(NamedTuple):
    """What one use of an op launches.

    Attributes:
        steps: launches, copies and fills in order; their refs name recipe buffers.
        sizes: bytes of each new buffer, by recipe buffer number.
        constants: bytes of each constant buffer, by recipe buffer number.
        outputs: a view per output, None where it is not wanted.
        descs: description of each output.
        adopts: whether a step copies into a buffer that may become its source.
    """

    steps: tuple[Step, ...]
    sizes: Mapping[int, int]
    constants: Mapping[int, bytes]
    outputs: tuple[View | None, ...]
    descs: tuple[TensorDesc, ...]
    adopts: bool = False


class Recipes:
    """Recipes for one set of kernels, cached by op signature."""

    def __init__(self, supports: Supports | None = None) -> None:
        self.supports = supports
        self._cache: dict[Any, Recipe] = {}
        self.hits: int = 0
        self.misses: int = 0

    def get(
        self,
        op: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[View | None],
        values: Sequence[Array | None],
        wanted: tuple[bool, ...],
        layouts: tuple[TensorDesc | None, ...] = (),
    ) -> Recipe:
        """Returns the recipe of one use of an op.

        `inputs` are views of the values (their buffers and offsets do not matter), `values` what is known of them.

        Raises:
            UmdError: the op does not accept this, or the device cannot do it.
        """
        key = (
            op,
            freeze(attributes) if attributes else (),
            tuple([None if v is None else (v.dtype.code, v.shape, v.strides) for v in inputs]),
            tuple([None if v is None else (v.dtype.str, v.shape, v.tobytes()) for v in values]) if values else (),
            wanted,
            tuple([None if d is None else d.key for d in layouts]) if layouts else (),
        )
        recipe = self._cache.get(key)
        if recipe is not None:
            self.hits += 1
            return recipe
        self.misses += 1
        recipe = self._record(op, attributes, inputs, values, wanted, layouts)
        if len(self._cache) >= CAPACITY:
            self._cache.clear()
        self._cache[key] = recipe
        return recipe

    def _record(
        self,
        op: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[View | None],
        values: Sequence[Array | None],
        wanted: tuple[bool, ...],
        layouts: tuple[TensorDesc | None, ...],
    ) -> Recipe:
        template = op_template(op)
        descs = [None if v is None else row_major(v.dtype, v.shape) for v in inputs]
        call = template.call(descs, attributes, values, wanted)
        views = [None if v is None else View(i, v.dtype, v.shape, v.strides) for i, v in enumerate(inputs)]
        recorder = Recorder(views, layouts, self.supports, DECOMPOSITIONS)
        try:
            result = template.emit(recorder, call, recorder.views)
        except UmdError as error:
            raise error.at(op=op) from None
        outputs = (result,) if isinstance(result, View) else tuple(result)
        steps = tuple(recorder.steps)
        adopts = any(type(step) is CopyBytes and step.adopt for step in steps)
        return Recipe(steps, recorder.sizes, recorder.constants, outputs, call.outputs, adopts)


def freeze(attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns attributes as a hashable key."""
    return tuple([(name, _freeze_value(attributes[name])) for name in sorted(attributes)])


def _freeze_value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_freeze_value(v) for v in value)
    if hasattr(value, "tobytes"):
        return (str(value.dtype), value.shape, value.tobytes())
    return (type(value).__name__, value) if isinstance(value, (bool, int, float)) else value
